"""The pages that the demo opens: each once, when it has something to show, and without a token in its address."""

from __future__ import annotations

import threading
from pathlib import Path

from scanflow.agent.agent_records import Event
from scanflow.errors import UnavailableError
from scanflow_client.demo.browser_pages import BrowserPages
from tests.waiting import patient, wait_until

SERVER = "http://127.0.0.1:46666"


def make_event(type: str, app: str = "mnist") -> Event:
    return Event(at=0.0, type=type, app=app)


def test_pages_are_opened_once_as_the_demo_goes_on(tmp_path: Path) -> None:
    addresses: list[str] = []
    lines: list[str] = []

    def log_in() -> None:
        addresses.append("the login")
        raise UnavailableError("No browser came.")

    pages = BrowserPages(f"{SERVER}/", lines.append, is_open=True, log_in=log_in, open_address=addresses.append)
    pages.open_first()
    wait_until(lambda: addresses, "the first page is opened", patience_s=patient(5))
    pages.follow(make_event("run.started", "early"))
    pages.follow(make_event("drift.found"))
    pages.follow(make_event("model.promoted"))
    wait_until(lambda: len(addresses) >= 2, "the application's page is opened", patience_s=patient(5))
    pages.open_report(tmp_path / "a report.html")
    wait_until(lambda: len(addresses) >= 3, "the report is opened", patience_s=patient(5))
    assert addresses == ["the login", f"{SERVER}/reports/mnist", f"file://{tmp_path}/a%20report.html"]
    assert lines == [f"Opened in the browser: {SERVER}/. To log in: scanflow dashboard"]


def test_without_a_browser_the_address_is_printed_and_nothing_opened(tmp_path: Path) -> None:
    def fail(*address: str) -> None:
        raise AssertionError(address)

    lines: list[str] = []
    pages = BrowserPages(SERVER, lines.append, is_open=False, log_in=fail, open_address=fail)
    pages.open_first()
    pages.follow(make_event("drift.found"))
    pages.open_report(tmp_path / "report.html")
    assert lines == [f"Dashboard: {SERVER}/. To log in: scanflow dashboard"]


def test_a_browser_that_stays_open_does_not_hold_up_the_demo() -> None:
    may_close, windows = threading.Event(), list[str]()

    def open_and_wait() -> None:
        may_close.wait(patient(1))
        windows.append(SERVER)

    BrowserPages(SERVER, lambda _line: None, is_open=True, log_in=open_and_wait).open_first()
    assert windows == []
    may_close.set()
    wait_until(lambda: windows, "the browser is closed")
