"""When a cron expression's times come: pure, in UTC quarters of an hour, so that a year is counted in milliseconds.

An expression's time has come when the wall clock of its zone shows it. A clock that is put forward skips the hour it
skips, and one that is put back shows an hour twice: what is due then is due twice. As UNIX cron has it, an expression
that restricts both the day and the weekday wants either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from scanflow.app.triggers import Cron

__all__ = ["CronTimes", "cron_times"]

_QUARTER_S = 900  # every zone's offset is a whole number of these
_FIELDS = ((0, 59, ""), (0, 23, ""), (1, 31, ""), (1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"))
_WEEKDAYS = "sun mon tue wed thu fri sat"
_HORIZON_S = 12 * 366 * 86_400.0  # longer than the eight years between two 29ths of February around 2100


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTimes:
    """An expression, taken apart."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""

    either: bool
    """Whether the day or the weekday is enough."""

    zone: ZoneInfo

    def after(self, moment: float) -> float | None:
        """Return the first time later than ``moment``, in seconds since the epoch; None: it never comes."""
        return next(self._between(moment, moment + _HORIZON_S), None)

    def until(self, moment: float, *, after: float) -> float | None:
        """Return the last time in ``(after, moment]``; None: there is none."""
        span = _QUARTER_S * 4.0
        while True:
            found = max(self._between(max(after, moment - span), moment), default=None)
            if found is not None or moment - span <= after:
                return found
            span *= 8

    def count(self, after: float, until: float) -> int:
        """Return how many times there are in ``(after, until]``."""
        return sum(1 for _ in self._between(after, until))

    def _between(self, after: float, until: float) -> Iterator[float]:
        quarter = int(after // _QUARTER_S) * _QUARTER_S
        while quarter <= until:
            local = datetime.fromtimestamp(quarter, self.zone)
            if not self._is_day(local):
                quarter += self._to_skip(local)
                continue
            if local.hour in self.hours:
                for minute in range(local.minute, local.minute + 15):
                    at = quarter + (minute - local.minute) * 60.0
                    if minute in self.minutes and after < at <= until:
                        yield at
            quarter += _QUARTER_S

    def _is_day(self, local: datetime) -> bool:
        if local.month not in self.months:
            return False
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return day or weekday if self.either else day and weekday

    @staticmethod
    def _to_skip(local: datetime) -> int:
        """Return how far to go on from a day that is none of ours: nearly to midnight, as clocks may be changed."""
        midnight = datetime.combine(local.date() + timedelta(days=1), datetime.min.time())
        left = int((midnight - local.replace(tzinfo=None)).total_seconds()) - 3 * 3600
        return max(left // _QUARTER_S * _QUARTER_S, _QUARTER_S)


def cron_times(trigger: Cron) -> CronTimes:
    """Return the times of a trigger, whose expression was checked when it was made."""
    return _parsed(trigger.expression, trigger.timezone)


@lru_cache(maxsize=1024)
def _parsed(expression: str, timezone: str) -> CronTimes:
    texts = expression.lower().split()
    minutes, hours, days, months = (
        _values(text, low, high, words) for text, (low, high, words) in zip(texts, _FIELDS, strict=False)
    )
    weekdays = _values(texts[4], 0, 7, _WEEKDAYS)
    return CronTimes(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either=not texts[2].startswith("*") and not texts[4].startswith("*"),
        zone=ZoneInfo(timezone),
    )


def _values(text: str, low: int, high: int, words: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if first == "*":
            bounds = (low, high)
        else:
            begin = _value(first, low, words)
            bounds = (begin, _value(last, low, words) if last else high if step else begin)
        found.update(range(bounds[0], bounds[1] + 1, int(step or 1)))
    return frozenset(found)


def _value(text: str, low: int, words: str) -> int:
    return int(text) if text.isdigit() else words.split().index(text) + low
