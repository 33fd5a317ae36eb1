"""People sign in at a provider of OpenID Connect that is not ours, with a password and their consent, in Chromium.

The server is at 127.0.0.1, and the provider at another address of loopback, which is another site to the browser: so
its rules for cookies and for pages of other sites hold as they do between two hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from tests.browser.chromium import Browser
from tests.browser.conftest import browser
from tests.http_requests import HTTP
from tests.oidc import PASSWORDS
from tests.server import ServerProcess, bearer
from tests.serving import hold_port
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["browser"]

CLIENT, SECRET = "scanflow", "of the client: a secret"
CHECKOUT = Path(__file__).parents[2]
PROVIDER = "127.0.0.2"

pytestmark = [
    pytest.mark.oidc,
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("oauth2_provider") is None, reason="django-oauth-toolkit is not installed"),
]

TAB, ENTER = "\ue004", "\ue007"


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server, and the provider of its people."""
    with hold_port(PROVIDER) as held:
        provider = f"http://{PROVIDER}:{held.getsockname()[1]}"
        variables = {
            "SCANFLOW_OIDC_ISSUER": f"{provider}/o",
            "SCANFLOW_OIDC_CLIENT_ID": CLIENT,
            "SCANFLOW_OIDC_CLIENT_SECRET": "env:CLIENT_SECRET",
            "SCANFLOW_OIDC_GROUPS": "vision-editors=vision:editor",
            "SCANFLOW_OIDC_SCOPES": "openid email groups",
            "SCANFLOW_OIDC_LABEL": "Django",
            "CLIENT_ID": CLIENT,
            "CLIENT_SECRET": SECRET,
        }
        process = ServerProcess(home, environ=variables)
        words = [str(tmp_path), PROVIDER, str(held.getsockname()[1]), f"{process.url}/login/callback"]
        environ = {**os.environ, **variables}
        command = [sys.executable, "-m", "tests.oidc.provider", *words]
        with subprocess.Popen(command, cwd=CHECKOUT, env=environ) as django:
            try:
                wait_until(lambda: answers(f"{provider}/o/.well-known/openid-configuration"), "the provider answers")
                process.start()
                yield process
            finally:
                process.close()
                django.kill()


def answers(address: str) -> bool:
    try:
        return HTTP.get(address, timeout=PATIENCE_S).status_code == 200
    except httpx2.TransportError:
        return False


def log_in_at_provider(browser: Browser, name: str) -> None:
    wait_until(lambda: browser.driver.title == "Log in", "the provider asks for a password")
    browser.press(name, TAB, PASSWORDS[name], ENTER)
    consent(browser)


def consent(browser: Browser) -> None:
    browser.wait_for("Authorize Scanflow?")
    browser.find("input[name='allow']").click()


@pytest.mark.parametrize("width", [pytest.param(390, id="phone"), pytest.param(1200, id="desk")])
def test_a_person_signs_in_and_makes_a_token_and_another_is_refused(
    browser: Browser, server: ServerProcess, width: int
) -> None:
    browser.resize(width)
    browser.open(f"{server.url}/labels", "Sign in with Django")
    assert browser.measure("login") == (width, [])
    browser.find("a.button").click()
    log_in_at_provider(browser, "ada")
    browser.wait_for("No sample is waiting")
    browser.open(server.url, "ada@example.org")
    assert browser.measure("first") == (width, [])

    browser.find("a[href='/login/oidc?for=token']").click()
    consent(browser)
    browser.wait_for("SCANFLOW_TOKEN=")
    assert browser.measure("token") == (width, [])
    token = browser.find("code.token").text.rpartition("SCANFLOW_TOKEN=")[2]
    assert HTTP.get(f"{server.url}/api/v1/runs", headers=bearer(token)).status_code == 200
    assert HTTP.get(f"{server.url}/api/v1/tokens", headers=bearer(token)).status_code == 403
    used = browser.driver.current_url
    browser.open(used, "did not begin in this browser")
    browser.open(server.url, "ada@example.org")
    browser.find("header button").click()
    browser.wait_for("Sign in with Django")
    browser.open(server.url, "Sign in with Django")

    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.find("a.button").click()
    log_in_at_provider(browser, "bob")
    browser.wait_for("is in no group that may use this server")
    assert browser.measure("refused") == (width, [])
    messages = [message for message in browser.read_console() if message.startswith(server.url)]
    assert [next(status for status in ("401", "403") if status in message) for message in messages] == ["401", "403"]
    entries = server.api.get("/audit").json()
    recorded = [(entry["who"], entry["role"], entry["team"], entry["status"]) for entry in entries]
    ada = "ada@example.org", "editor", "vision"
    assert recorded == [
        ("", "", None, 403), (*ada, 303), ("", "", None, 401), (*ada, 403), (*ada, 200), (*ada, 200),
    ]  # fmt: skip
