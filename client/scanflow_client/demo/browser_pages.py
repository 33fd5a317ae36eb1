"""The server's pages in a browser, opened as the demo goes on; the first of them logs in."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scanflow.agent.agent_records import Event
from scanflow.errors import ScanflowError
from scanflow.reports.loop_events import TYPES
from scanflow.transport import build_path
from scanflow_client.dashboard_browser import OpenAddress


class BrowserPages:
    """Opens each page once. Without a browser, addresses are only printed."""

    def __init__(
        self,
        server: str,
        say: Callable[[str], None],
        *,
        is_open: bool,
        log_in: Callable[[], object],
        open_address: OpenAddress = webbrowser.open,
    ) -> None:
        """``server``: its address. ``is_open`` False: nothing is opened. ``log_in`` opens the first page."""
        self._server, self._say = server.rstrip("/"), say
        self._is_open, self._log_in, self._open_address = is_open, log_in, open_address
        self._pages = set[str]()

    def open_first(self) -> None:
        """Open the first page. Print its address and how to get in, also where nothing is opened."""
        head = "Opened in the browser" if self._is_open else "Dashboard"
        self._say(f"{head}: {self._server}/. To log in: scanflow dashboard")
        if self._is_open:
            threading.Thread(target=self._open_first, daemon=True).start()

    def _open_first(self) -> None:
        with suppress(ScanflowError):  # the address is printed
            self._log_in()

    def follow(self, event: Event) -> None:
        """Open the page of an application when its agents have something to show there."""
        if event.type in TYPES:
            self._open(f"{self._server}{build_path('reports', event.app)}")

    def open_report(self, report: Path) -> None:
        self._open(report.as_uri())

    def _open(self, address: str) -> None:
        if not self._is_open or address in self._pages:
            return
        self._pages.add(address)
        # A browser that is started may be waited for until it ends.
        threading.Thread(target=self._open_address, args=(address,), daemon=True).start()
