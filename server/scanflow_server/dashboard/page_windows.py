"""Windows of long tables: so many rows at once, from the one that the address says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from scanflow.errors import InvalidError
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
        return cls(request, min(parse_number(request.query.get("start", "")) or 0, _MAX_START))

    def list_neighbours(self, n_rows: int) -> dict[str, str | None]:
        """Return the addresses of the newer and the older window; ``n_rows``: those read, one more than are shown."""
        back, on = max(0, self.start - WINDOW) or None, self.start + WINDOW
        return {
            "newer": self.request.build_address(start=back) if self.start else None,
            "older": self.request.build_address(start=on) if n_rows > WINDOW else None,
        }


def list_numbered_neighbours(
    request: PageRequest, numbers: Sequence[int], length: int = WINDOW
) -> dict[str, str | None]:
    """Return the same of a table whose address says before which number its rows are, so many in a window.

    ``numbers``: those of the rows that were read, the newest first and one more than are shown.
    """
    return {
        "newer": request.build_address(before=None) if request.query.get("before") else None,
        "older": request.build_address(before=numbers[length - 1]) if len(numbers) > length else None,
    }


def read_choice(request: PageRequest, name: str, choices: Sequence[str]) -> str | None:
    """Return which of these the page's address says; None: it says none.

    Raises:
        InvalidError: it says something else.
    """
    if (value := request.filters.get(name)) is not None and value not in choices:
        raise InvalidError(f"There is no {name} {value!r:.40} to filter by. There are: {', '.join(choices)}.")
    return value


def parse_number(text: str, *, max_digits: int = 15) -> int | None:
    """Return the number that an address says; None: it is no number, or has more digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= max_digits else None
