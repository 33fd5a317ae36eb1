"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ControlStatus(dict[str, Any]):
    """What a server says of itself: a dictionary, which a notebook shows as ``scanflow status`` prints it."""

    def __init__(self, status: Mapping[str, Any], *, url: str) -> None:
        super().__init__(status)
        self.url = url
        """Of the server."""
