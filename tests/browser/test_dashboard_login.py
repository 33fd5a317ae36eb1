"""``scanflow dashboard`` in a real browser: what the file that it opens does, and what is left of it."""

from __future__ import annotations

from functools import partial

import pytest

from scanflow.transport import ServerClient
from scanflow_client.dashboard_browser import open_dashboard
from tests.browser.chromium import Browser
from tests.server import ServerProcess
from tests.waiting import patient

pytestmark = [pytest.mark.browser, pytest.mark.processes]

ENTER = "\ue007"


def open_as(browser: Browser, server: ServerProcess, token: str, page: str) -> bool:
    open_file = partial(Browser.open, browser, text="")
    return open_dashboard(ServerClient(server.url, token=token), server.home, page, open_file, patience_s=patient(30))


def test_the_home_is_in_without_a_word_and_may_change_things(browser: Browser, server: ServerProcess) -> None:
    assert open_as(browser, server, server.token, "/settings/tokens")
    browser.wait_for("Log out")
    assert browser.driver.current_url == f"{server.url}/settings/tokens"
    browser.find("form[action='/settings/tokens'] input[name='name']").send_keys("ada", ENTER)
    browser.wait_for("ada")
    assert [token["name"] for token in server.api.get("/tokens").json() if token["name"] == "ada"], "it has the key"
    assert list(server.home.glob("dashboard-*")) == []
    assert browser.list_hosts() == {server.url, "file://"}
    assert browser.read_console() == []


def test_a_person_says_yes_to_the_name(browser: Browser, server: ServerProcess) -> None:
    token = server.api.post("/tokens", json={"name": "ada", "role": "viewer", "team": "red"}).json()["token"]
    assert open_as(browser, server, token, "/runs")
    browser.wait_for("Log in as ada: viewer of the team red?")
    browser.press(ENTER)
    browser.wait_for("Log out")
    assert browser.driver.current_url == f"{server.url}/runs"
    assert browser.read_console() == []


def test_the_request_to_confirm_is_read_by_everybody(browser: Browser, server: ServerProcess) -> None:
    token = server.api.post("/tokens", json={"name": "ada"}).json()["token"]
    assert open_as(browser, server, token, "/")
    browser.wait_for("Log in as ada")
    assert browser.check_access() == []
