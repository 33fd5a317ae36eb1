"""The due times of scheduled triggers: pure functions of the trigger, its anchor and the time.

An interval's due times are a grid in microseconds that begins one interval after its anchor, when the sensor was first
seen; firings, delays and restarts do not move it. Cron is APScheduler's; its wall-clock times are converted to moments
here, so that each occurs once at clock changes, and decades of them are counted day by day.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from scanflow.app.triggers import Cron, Date, Interval, parse_cron

Scheduled = Interval | Date | Cron
_DAY = timedelta(days=1)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def find_first_after(trigger: Scheduled, moment: float, *, anchor: float) -> float | None:
    """Return the first due time after ``moment``; None: there is none."""
    match trigger:
        case Interval():
            return _compute_due(trigger, anchor, _compute_index(trigger, anchor, moment) + 1)
        case Date():
            due = trigger.when.timestamp()
            return due if due > moment else None
        case Cron():
            return _times(trigger.expression, trigger.timezone).find_next(max(moment, anchor))


def find_last_until(trigger: Scheduled, moment: float, *, after: float, anchor: float) -> float | None:
    """Return the last due time in ``(after, moment]``; None: there is none."""
    match trigger:
        case Interval():
            index = _compute_index(trigger, anchor, moment)
            due = _compute_due(trigger, anchor, index)
            return due if index >= 1 and due > after else None
        case Date():
            due = trigger.when.timestamp()
            return due if after < due <= moment else None
        case Cron():
            return _times(trigger.expression, trigger.timezone).find_last(moment, after=max(after, anchor))


def count_between(trigger: Scheduled, after: float, until: float, *, anchor: float) -> int:
    """Count the due times in ``(after, until]``; takes milliseconds for decades of them."""
    match trigger:
        case Interval():
            return max(0, _compute_index(trigger, anchor, until) - _compute_index(trigger, anchor, after))
        case Date():
            return int(after < trigger.when.timestamp() <= until)
        case Cron():
            return _times(trigger.expression, trigger.timezone).count(max(after, anchor), until)


def apply_jitter(trigger: Scheduled, due: float, seed: str) -> float:
    """Return when a due time fires: later by up to its jitter, deterministically, in whole microseconds."""
    if not isinstance(trigger, Interval) or not trigger.jitter:
        return due
    part = random.Random(f"{seed}/{due!r}").random()  # noqa: S311 - to spread load, not to hide
    return round(due + part * trigger.jitter, 6)


def format_time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def _compute_due(trigger: Interval, anchor: float, index: int) -> float:
    return (_to_micros(anchor) + index * _to_micros(trigger.seconds)) / 1e6


def _compute_index(trigger: Interval, anchor: float, moment: float) -> int:
    """Return the number of the last due time that is not later than ``moment``; 0 before the first."""
    index = max(0, (_to_micros(moment) - _to_micros(anchor)) // _to_micros(trigger.seconds))
    return index - 1 if index and _compute_due(trigger, anchor, index) > moment else index  # the moment was rounded up


def _to_micros(seconds: Any) -> int:
    return round(float(seconds) * 1e6)


class _CronTimes:
    """The moments of a cron expression in a time zone.

    Times in a skipped hour occur at the clock change. Of a repeated hour the first occurrence counts, unless the
    expression matches every hour: then both do.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        self._fields = fields = parse_cron(expression)
        self._zone = ZoneInfo(timezone)
        self._times_of_day = [time(hour, minute) for hour in sorted(fields.hours) for minute in sorted(fields.minutes)]
        self._hourly = len(fields.hours) == 24
        self._get_moments = lru_cache(maxsize=8)(self._list_moments)
        weekdays = ",".join(_WEEKDAYS[weekday] for weekday in fields.weekdays)
        days = [{"day": _join(fields.days), "day_of_week": weekdays}]
        if fields.either:
            days = [{"day": _join(fields.days)}, {"day_of_week": weekdays}]
        time_fields: dict[str, Any] = {"hour": _join(fields.hours), "minute": _join(fields.minutes), "timezone": UTC}
        months = _join(fields.months)
        self._walls = OrTrigger([CronTrigger(month=months, **day_fields, **time_fields) for day_fields in days])

    def find_next(self, moment: float) -> float | None:
        today = self._get_date(moment)
        moments = self._get_moments(today)
        index = bisect_right(moments, moment)
        if index < len(moments):
            return moments[index]
        wall = self._walls.get_next_fire_time(None, datetime.combine(today + _DAY, time(), UTC))
        return None if wall is None else self._get_moments(wall.date())[0]

    def find_last(self, moment: float, *, after: float) -> float | None:
        first, day = self._get_date(after), self._get_date(moment)
        while day >= first:
            moments = self._get_moments(day) if self._is_day(day) else ()
            index = bisect_right(moments, moment)
            if index:
                return moments[index - 1] if moments[index - 1] > after else None
            day -= _DAY
        return None

    def count(self, after: float, until: float) -> int:
        first, last = self._get_date(after), self._get_date(until)
        if until <= after:
            return 0
        if first == last:
            return bisect_right(self._get_moments(last), until) - bisect_right(self._get_moments(first), after)
        count = len(self._get_moments(first)) - bisect_right(self._get_moments(first), after)
        count += bisect_right(self._get_moments(last), until)
        for start in range(first.toordinal() + 1, last.toordinal(), 7):
            week = [date.fromordinal(day) for day in range(start, min(start + 7, last.toordinal()))]
            days = [day for day in week if self._is_day(day)]
            if self._has_clock_change(week[0], week[-1]):
                count += sum(len(self._list_moments(day)) for day in days)
            else:
                count += len(days) * len(self._times_of_day)
        return count

    def _is_day(self, day: date) -> bool:
        fields = self._fields
        if day.month not in fields.months:
            return False
        matches = day.day in fields.days, day.isoweekday() % 7 in fields.weekdays
        return any(matches) if fields.either else all(matches)

    def _list_moments(self, day: date) -> Sequence[float]:
        if not self._is_day(day):
            return ()
        midnight = datetime.combine(day, time())
        if self._has_clock_change(day, day):
            hours = (self._list_moments_in(midnight + timedelta(hours=hour)) for hour in self._fields.hours)
            return sorted({moment for moments in hours for moment in moments})
        begin = midnight.replace(tzinfo=self._zone).timestamp()
        return [begin + at.hour * 3600.0 + at.minute * 60.0 for at in self._times_of_day]

    def _list_moments_in(self, hour: datetime) -> Iterator[float]:
        walls = (hour, hour + timedelta(hours=1))
        begin, *_ = ends = [moment for wall in walls for moment in self._list_timestamps(wall)]
        if ends == [begin, begin, begin + 3600, begin + 3600]:
            yield from (begin + minute * 60.0 for minute in self._fields.minutes)
        else:
            for minute in self._fields.minutes:
                yield from self._generate_moments(hour + timedelta(minutes=minute))

    def _has_clock_change(self, first: date, last: date) -> bool:
        ends = datetime.combine(first, time()), datetime.combine(last + _DAY, time(fold=1))
        return self._find_utc_offset(ends[0]) != self._find_utc_offset(ends[1])

    def _find_utc_offset(self, wall: datetime) -> timedelta | None:
        return self._zone.utcoffset(wall.replace(tzinfo=self._zone))

    def _generate_moments(self, wall: datetime) -> Iterator[float]:
        """Yield the moments of a wall-clock time: at a clock change there may be none, or two."""
        first, second = self._list_timestamps(wall)
        if first <= second:
            yield first
            if self._hourly:
                yield second
        elif not self._hourly:  # skipped: between the two lies the minute in which clocks are put forward
            after = self._find_utc_offset(datetime.fromtimestamp(first, self._zone))
            minutes = range(int(second // 60), int(first // 60) + 1)
            index = bisect_left(
                minutes,
                True,
                key=lambda minute: self._find_utc_offset(datetime.fromtimestamp(minute * 60, self._zone)) == after,
            )
            yield minutes[index] * 60.0

    def _list_timestamps(self, wall: datetime) -> list[float]:
        """Return the timestamps of a wall-clock time with the offsets before and after a clock change, if any."""
        return [wall.replace(tzinfo=self._zone, fold=fold).timestamp() for fold in (0, 1)]

    def _get_date(self, moment: float) -> date:
        return datetime.fromtimestamp(moment, self._zone).date()


_times = lru_cache(maxsize=1024)(_CronTimes)


def _join(values: frozenset[int]) -> str:
    return ",".join(map(str, sorted(values)))
