"""The pages that the demo opens: each once, when it has something to show, and without a token in its address."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from scanflow.agent.agent_records import Event
from scanflow_client.demo.browser_pages import BrowserPages, has_browser
from tests.waiting import patient, wait_until

SERVER = "http://127.0.0.1:46666"


def make_event(type: str, app: str = "mnist") -> Event:
    return Event(at=0.0, type=type, app=app)


def test_pages_are_opened_once_as_the_demo_goes_on(tmp_path: Path) -> None:
    addresses: list[str] = []
    lines: list[str] = []
    pages = BrowserPages(f"{SERVER}/", lines.append, is_open=True, open_address=addresses.append)
    pages.open_first()
    wait_until(lambda: addresses, "the first page is opened", patience_s=patient(5))
    pages.follow(make_event("run.started", "early"))
    pages.follow(make_event("drift.found"))
    pages.follow(make_event("model.promoted"))
    wait_until(lambda: len(addresses) >= 2, "the application's page is opened", patience_s=patient(5))
    pages.open_report(tmp_path / "a report.html")
    wait_until(lambda: len(addresses) >= 3, "the report is opened", patience_s=patient(5))
    assert addresses == [f"{SERVER}/", f"{SERVER}/reports/mnist", f"file://{tmp_path}/a%20report.html"]
    assert lines == [f"Opened in the browser: {SERVER}/, with the token of: scanflow token show"]


def test_without_a_browser_the_address_is_printed_and_nothing_opened(tmp_path: Path) -> None:
    def fail(address: str) -> None:
        raise AssertionError(address)

    lines: list[str] = []
    pages = BrowserPages(SERVER, lines.append, is_open=False, open_address=fail)
    pages.open_first()
    pages.follow(make_event("drift.found"))
    pages.open_report(tmp_path / "report.html")
    assert lines == [f"Web page: {SERVER}/, with the token of: scanflow token show"]


def test_a_browser_that_stays_open_does_not_hold_up_the_demo() -> None:
    may_close, windows = threading.Event(), list[str]()

    def open_and_wait(address: str) -> None:
        may_close.wait(patient(1))
        windows.append(address)

    BrowserPages(SERVER, lambda _line: None, is_open=True, open_address=open_and_wait).open_first()
    assert windows == []
    may_close.set()
    wait_until(lambda: windows, "the browser is closed")


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
