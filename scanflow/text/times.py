"""Times as seconds since the epoch, also those that no calendar has."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

LAST_TIME: Final = 253_402_300_799.0
"""The last second of the year 9999, the last year that a calendar of ours has."""

_DAY_S: Final = 86400.0


def bound_time(at: float) -> float:
    """Return the nearest time from 1970 to 9999, less a day: one that has a date in every time zone."""
    return min(max(at, 0.0), LAST_TIME - _DAY_S)


def to_datetime(at: float) -> datetime:
    """Return a time in UTC; one before 1970 or after 9999 as the nearest that there is."""
    return datetime.fromtimestamp(bound_time(at), UTC)


def round_up_now(now: float, began: float) -> float:
    """Return a time shortly after ``now`` that stays the same for a 64th of the time since ``began``, and a second at
    least, so that what is drawn until then does not change at every look."""
    step = max(1.0, 2.0 ** math.floor(math.log2(max(now - began, 1.0) / 64)))
    return math.ceil(now / step) * step
