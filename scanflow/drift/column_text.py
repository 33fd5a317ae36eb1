"""Numbers of a column as text: date-times, which are compared in seconds since the epoch, as dates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_DAY_S: Final = 86_400
_YEARS_1_TO_9999: Final = (-62_135_596_800.0, 253_402_300_799.0)
"""In seconds since the epoch: what Python has dates for. NumPy has more."""

_MIN_DAYS: Final = 2
"""Date-times closer together than this get their time of day, unless all are at midnight."""


def format_mean(mean: float, sd: float | None, *, is_time: bool = False) -> str:
    """Format a mean and a standard deviation, if that is known; of date-times a day and days."""
    if not is_time:
        return f"{mean:.3g}" if sd is None else f"{mean:.3g} ± {sd:.3g}"
    day = str(_read_time(mean).date())
    return day if sd is None else f"{day} ± {sd / _DAY_S:.3g} days"


def format_numbers(values: Sequence[float], *, is_time: bool = False, digits: int = 6) -> tuple[str, ...]:
    """Format values or edges of ranges, with that many significant digits; date-times in UTC."""
    if not is_time:
        return tuple(f"{value:.{digits}g}" for value in values)
    times = [_read_time(value) for value in values]
    least = min((later - earlier for earlier, later in pairwise(sorted(times))), default=dt.timedelta())
    by_day = least >= dt.timedelta(days=_MIN_DAYS) or all(time.time() == dt.time() for time in times)
    return tuple(str(time.date()) if by_day else f"{time:%Y-%m-%d %H:%M}" for time in times)


def _read_time(seconds: float) -> dt.datetime:
    first, last = _YEARS_1_TO_9999
    return dt.datetime.fromtimestamp(min(max(seconds, first), last), dt.UTC)
