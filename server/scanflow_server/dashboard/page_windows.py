"""Windows of long tables: so many rows at once, from the one that the address says."""

from __future__ import annotations

from typing import Final, NamedTuple

from scanflow_server.dashboard.dashboard_page import PageRequest

WINDOW: Final = 50
"""How many rows of a table are shown at once."""

_MAX_START: Final = 1_000_000


class TableWindow(NamedTuple):
    """The rows of a table that a page shows."""

    request: PageRequest
    start: int

    @classmethod
    def read(cls, request: PageRequest) -> TableWindow:
        """Return the window that the page's address says; the first, where it says nothing of use."""
        text = request.query.get("start", "")
        return cls(request, min(int(text), _MAX_START) if text.isascii() and text.isdecimal() else 0)

    def list_neighbours(self, n_rows: int) -> dict[str, str | None]:
        """Return the addresses of the newer and the older window; ``n_rows``: those read, one more than are shown."""
        back, on = max(0, self.start - WINDOW) or None, self.start + WINDOW
        return {
            "newer": self.request.build_address(start=back) if self.start else None,
            "older": self.request.build_address(start=on) if n_rows > WINDOW else None,
        }
