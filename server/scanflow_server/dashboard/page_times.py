"""Times on a page, in the reader's zone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from markupsafe import Markup

from scanflow.text.times import to_datetime

COOKIE: Final = "scanflow_zone"
"""Set by ``dashboard.js`` to the name of the browser's time zone: ``Europe/Madrid``."""

_MAX_LENGTH: Final = 64


def read_zone(cookies: Mapping[str, str]) -> tzinfo:
    """Return the time zone of a browser; UTC: it says none, or one that is not known here."""
    name = unquote(cookies.get(COOKIE, ""))
    try:
        return ZoneInfo(name) if 0 < len(name) <= _MAX_LENGTH else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


class TimeFormatter:
    """Formats times for the templates of a page, which call it: ``{{ time(run.created) }}``."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone

    def __call__(self, at: float | None) -> Markup:
        """Return a moment as an element that machines read, too."""
        if at is None:
            return Markup("–")
        moment = to_datetime(at).astimezone(self.zone)
        return Markup('<time datetime="{}">{}</time>').format(to_datetime(at).isoformat(), self._format(moment))

    def _format(self, moment: datetime) -> str:
        return f"{moment:%Y-%m-%d %H:%M:%S}" + (" UTC" if self.zone is UTC else "")
