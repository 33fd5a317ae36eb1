"""Parse times of the API server. Pure."""

from __future__ import annotations

from datetime import datetime


def parse_epoch_s(text: str) -> float:
    """Return the seconds since the epoch of a time in RFC 3339."""
    return datetime.fromisoformat(text).timestamp()


def parse_optional_time(text: str | None) -> float | None:
    """Return the same of a field that may be missing or empty; None: it is."""
    return parse_epoch_s(text) if text else None
