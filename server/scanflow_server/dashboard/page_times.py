"""Times on a page, in the reader's zone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Final, NamedTuple
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from markupsafe import Markup, escape

from scanflow.text.times import to_datetime

COOKIE: Final = "scanflow_zone"
"""Set by ``dashboard.js`` to the name of the browser's time zone: ``Europe/Madrid``."""

_MAX_LENGTH: Final = 64
_IN_SENTENCE: Final = re.compile(r"(?<=[a-z][ :])(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|\+00:00))")
"""A time in UTC after a word, as in "since 2026-11-28T22:46:13Z"; not one that is a value by itself."""


def read_zone(cookies: Mapping[str, str]) -> tzinfo:
    """Return the time zone of a browser; UTC: it says none, or one that is not known here."""
    name = unquote(cookies.get(COOKIE, ""))
    try:
        return ZoneInfo(name) if 0 < len(name) <= _MAX_LENGTH else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


class TimeFormatter(NamedTuple):
    """Formats times for the templates of a page, which call it: ``{{ time(run.created) }}``."""

    zone: tzinfo

    def __call__(self, at: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> Markup:
        """Return a moment as an element that machines read, too."""
        if at is None:
            return Markup("–")
        text = f"{to_datetime(at).astimezone(self.zone):{form}}" + (" UTC" if self.zone is UTC else "")
        return Markup('<time datetime="{}">{}</time>').format(to_datetime(at).isoformat(), text)

    def mark(self, sentence: str) -> Markup:
        """Return a text with the times within it as such elements."""
        parts = _IN_SENTENCE.split(sentence)
        return Markup().join(self._mark(part) if place % 2 else escape(part) for place, part in enumerate(parts))

    def _mark(self, text: str) -> Markup:
        try:
            return self(datetime.fromisoformat(text).timestamp())
        except ValueError:  # no such day
            return escape(text)
