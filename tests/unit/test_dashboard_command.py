"""``scanflow dashboard``: a browser that opens a file of the user's is in, and where there is none, what to do."""

from __future__ import annotations

import stat
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx2
import pytest
from typer.testing import CliRunner, Result

from scanflow.errors import UnavailableError
from scanflow.http.home_token import ensure_home_token
from scanflow.settings import Settings
from scanflow.transport import ServerClient
from scanflow_client.cli.command_tree import app
from scanflow_client.dashboard_browser import has_browser, open_dashboard
from scanflow_server.auth import register_home
from scanflow_server.server_context import make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store.migrations import migrate
from tests.http_requests import http_client
from tests.page_reader import PageReader, read_signed_in
from tests.unit.server.answering import answering
from tests.waiting import patient, wait_until

FOREIGN = {"origin": "null", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
"""What browsers send with a form in a file."""


@pytest.fixture
def url(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    context = make_context(ServerSettings(library=Settings(home=home)))
    migrate(context.store)
    register_home(context)
    with answering(context) as url:
        monkeypatch.setenv("SCANFLOW_URL", url)
        monkeypatch.setenv("DISPLAY", ":0")
        yield url
    context.store.close()


class FileBrowser:
    """Reads a page in a file and sends its form, as browsers do whose script does so."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.modes: list[int] = []
        self.codes: list[str] = []
        self.answers: list[httpx2.Response] = []

    def open(self, address: str) -> bool:
        self.addresses.append(address)
        file = Path(unquote(urlsplit(address).path))
        self.modes.append(stat.S_IMODE(file.stat().st_mode))
        (form,) = PageReader(file.read_text(encoding="utf-8")).forms
        self.codes.append(form.fields["code"])
        with http_client(timeout=patient(60)) as client:
            self.answers.append(client.post(form.action, data=form.fields, headers=FOREIGN))
        return True


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> FileBrowser:
    browser = FileBrowser()
    monkeypatch.setattr(webbrowser, "open", browser.open)
    return browser


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["dashboard", *words])


def test_the_browser_is_in_on_the_page_that_was_named_and_the_file_is_gone(
    url: str, home: Path, browser: FileBrowser
) -> None:
    done = call("runs")
    assert (done.exit_code, done.output) == (0, f"Opening {url}/runs in the browser.\n")
    wait_until(lambda: browser.answers, "the browser has its answer, after the code was used")
    (answer,), (address,) = browser.answers, browser.addresses
    assert (answer.status_code, read_signed_in(answer.text)["data-next"]) == (200, "/runs")
    assert browser.modes == [0o600]
    assert not Path(urlsplit(address).path).exists()
    token = ensure_home_token(home)
    for secret in (*browser.codes, token):
        assert secret not in address + done.output, "an address is seen among the arguments of processes"
    assert token not in answer.text


def test_where_nothing_can_be_opened_it_says_what_to_do(
    url: str, browser: FileBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    done, port = call("/runs"), urlsplit(url).port
    assert (done.exit_code, browser.addresses) == (0, [])
    assert done.output.splitlines() == [
        f"Open {url}/runs in a browser, and log in with the token of: scanflow token show",
        f"From another machine: ssh -L {port}:127.0.0.1:{port} THIS-HOST, then open that address there.",
    ]


@pytest.mark.parametrize("reply", [True, False], ids=["one that may not read the file", "none"])
def test_a_browser_that_does_not_come_is_an_error_that_says_what_to_do(
    url: str, home: Path, reply: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def open_nothing(address: str) -> bool:
        opened.append(Path(urlsplit(address).path))
        return reply

    server = ServerClient(url, token=ensure_home_token(home))
    came = open_dashboard(server, home, "/", open_nothing, patience_s=0.3 if reply else patient(60))
    assert (came, [file.exists() for file in opened]) == (False, [False])
    monkeypatch.setattr(webbrowser, "open", lambda _address: False)
    with pytest.raises(UnavailableError, match=f"Open {url}/ and log in with the token of: scanflow token show"):
        raise call().exception or AssertionError


def test_a_command_without_a_token_of_the_server_says_so(
    url: str, browser: FileBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_TOKEN", "other")
    assert "token" in str(call().exception)
    assert (url, browser.addresses) == (url, [])


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"BROWSER": "firefox"}, "linux", True),
        ({}, "darwin", True),
    ],
)
def test_a_terminal_without_a_display_has_no_browser(
    environment: dict[str, str], platform: str, expected: bool
) -> None:
    assert has_browser(environment, platform) == expected
