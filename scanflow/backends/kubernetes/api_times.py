"""Parse times of the API server. Pure."""

from __future__ import annotations

from datetime import datetime


def parse_epoch_s(text: str) -> float:
    """Return the seconds since the epoch of a time in RFC 3339."""
    return datetime.fromisoformat(text).timestamp()
