"""The server's pages in a browser, opened as the demo goes on. Addresses hold no token: the page asks for it once."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path

from scanflow.agent.agent_records import Event
from scanflow.reports.loop_events import TYPES
from scanflow.transport import build_path

OpenAddress = Callable[[str], object]


def has_browser(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Return whether a browser can be opened beside the terminal: not inside it, as text browsers are."""
    return platform != "linux" or any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


class BrowserPages:
    """Opens each page once. Without a browser, addresses are only printed."""

    def __init__(
        self, server: str, say: Callable[[str], None], *, is_open: bool, open_address: OpenAddress = webbrowser.open
    ) -> None:
        """``server``: its address. ``is_open`` False: nothing is opened."""
        self._server, self._say = server.rstrip("/"), say
        self._is_open, self._open_address = is_open, open_address
        self._pages = set[str]()

    def open_first(self) -> None:
        """Open the first page. Print its address and how to log in, also where nothing is opened."""
        head = "Opened in the browser" if self._is_open else "Web page"
        self._say(f"{head}: {self._server}/, with the token of: scanflow token show")
        self._open(f"{self._server}/")

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
