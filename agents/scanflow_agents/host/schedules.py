"""When a scheduled trigger is due: pure functions of the trigger, its anchor and the time.

An interval's due times are a grid of microseconds that begins one interval after its anchor, the moment the sensor was
first seen, and is never moved by firings, delays or restarts. Cron is APScheduler's; its wall-clock times become
moments here, so that each comes once when clocks are changed, and decades of them are counted day by day.
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

from scanflow.app.triggers import Cron, Date, Interval, cron_fields

Scheduled = Interval | Date | Cron
_DAY = timedelta(days=1)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def first_after(trigger: Scheduled, moment: float, *, anchor: float) -> float | None:
    """Return the first due time later than ``moment``; None: there is none any more."""
    match trigger:
        case Interval():
            return _grid(trigger, anchor, _index(trigger, anchor, moment) + 1)
        case Date():
            due = trigger.when.timestamp()
            return due if due > moment else None
        case Cron():
            return _times(trigger.expression, trigger.timezone).after(max(moment, anchor))


def last_until(trigger: Scheduled, moment: float, *, after: float, anchor: float) -> float | None:
    """Return the last due time in ``(after, moment]``; None: there is none."""
    match trigger:
        case Interval():
            index = _index(trigger, anchor, moment)
            due = _grid(trigger, anchor, index)
            return due if index >= 1 and due > after else None
        case Date():
            due = trigger.when.timestamp()
            return due if after < due <= moment else None
        case Cron():
            return _times(trigger.expression, trigger.timezone).until(moment, after=max(after, anchor))


def count_between(trigger: Scheduled, after: float, until: float, *, anchor: float) -> int:
    """Return how many due times there are in ``(after, until]``, in milliseconds for decades of them."""
    match trigger:
        case Interval():
            return max(0, _index(trigger, anchor, until) - _index(trigger, anchor, after))
        case Date():
            return int(after < trigger.when.timestamp() <= until)
        case Cron():
            return _times(trigger.expression, trigger.timezone).count(max(after, anchor), until)


def moved(trigger: Scheduled, due: float, seed: str) -> float:
    """Return when what is due at ``due`` fires: later by up to its jitter, always the same, in whole microseconds."""
    if not isinstance(trigger, Interval) or not trigger.jitter:
        return due
    part = random.Random(f"{seed}/{due!r}").random()  # noqa: S311 - to spread load, not to hide
    return round(due + part * trigger.jitter, 6)


def written(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def _grid(trigger: Interval, anchor: float, index: int) -> float:
    return (_micros(anchor) + index * _micros(trigger.seconds)) / 1e6


def _index(trigger: Interval, anchor: float, moment: float) -> int:
    """Return the number of the last due time that is not later than ``moment``; 0 before the first."""
    index = max(0, (_micros(moment) - _micros(anchor)) // _micros(trigger.seconds))
    return index - 1 if index and _grid(trigger, anchor, index) > moment else index  # the moment was rounded up


def _micros(seconds: Any) -> int:
    return round(float(seconds) * 1e6)


class _CronTimes:
    """The moments of a cron expression in a time zone.

    What falls into the hour that clocks skip comes when they are put forward. Of the hour that is shown twice the first
    one counts, unless the expression has every hour: then it goes by the time that passes.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        self._fields = fields = cron_fields(expression)
        self._zone = ZoneInfo(timezone)
        self._of_day = [time(hour, minute) for hour in sorted(fields.hours) for minute in sorted(fields.minutes)]
        self._hourly = len(fields.hours) == 24
        self._day_of = lru_cache(maxsize=8)(self._moments)
        weekdays = ",".join(_WEEKDAYS[one] for one in fields.weekdays)
        days = [{"day": _listed(fields.days), "day_of_week": weekdays}]
        if fields.either:
            days = [{"day": _listed(fields.days)}, {"day_of_week": weekdays}]
        at: dict[str, Any] = {"hour": _listed(fields.hours), "minute": _listed(fields.minutes), "timezone": UTC}
        self._walls = OrTrigger([CronTrigger(month=_listed(fields.months), **one, **at) for one in days])

    def after(self, moment: float) -> float | None:
        today = self._date(moment)
        moments = self._day_of(today)
        found = bisect_right(moments, moment)
        if found < len(moments):
            return moments[found]
        wall = self._walls.get_next_fire_time(None, datetime.combine(today + _DAY, time(), UTC))
        return None if wall is None else self._day_of(wall.date())[0]

    def until(self, moment: float, *, after: float) -> float | None:
        first, day = self._date(after), self._date(moment)
        while day >= first:
            moments = self._day_of(day) if self._is_day(day) else ()
            found = bisect_right(moments, moment)
            if found:
                return moments[found - 1] if moments[found - 1] > after else None
            day -= _DAY
        return None

    def count(self, after: float, until: float) -> int:
        first, last = self._date(after), self._date(until)
        if until <= after:
            return 0
        if first == last:
            return bisect_right(self._day_of(last), until) - bisect_right(self._day_of(first), after)
        count = len(self._day_of(first)) - bisect_right(self._day_of(first), after)
        count += bisect_right(self._day_of(last), until)
        for start in range(first.toordinal() + 1, last.toordinal(), 7):
            week = [date.fromordinal(day) for day in range(start, min(start + 7, last.toordinal()))]
            days = [day for day in week if self._is_day(day)]
            if self._changes(week[0], week[-1]):
                count += sum(len(self._moments(day)) for day in days)
            else:
                count += len(days) * len(self._of_day)
        return count

    def _is_day(self, day: date) -> bool:
        fields = self._fields
        if day.month not in fields.months:
            return False
        found = day.day in fields.days, day.isoweekday() % 7 in fields.weekdays
        return any(found) if fields.either else all(found)

    def _moments(self, day: date) -> Sequence[float]:
        if not self._is_day(day):
            return ()
        midnight = datetime.combine(day, time())
        if self._changes(day, day):
            hours = (self._moments_in(midnight + timedelta(hours=hour)) for hour in self._fields.hours)
            return sorted({moment for moments in hours for moment in moments})
        begin = midnight.replace(tzinfo=self._zone).timestamp()
        return [begin + at.hour * 3600.0 + at.minute * 60.0 for at in self._of_day]

    def _moments_in(self, hour: datetime) -> Iterator[float]:
        begin, *_ = ends = [moment for wall in (hour, hour + timedelta(hours=1)) for moment in self._shown(wall)]
        if ends == [begin, begin, begin + 3600, begin + 3600]:
            yield from (begin + minute * 60.0 for minute in self._fields.minutes)
        else:
            for minute in self._fields.minutes:
                yield from self._moments_of(hour + timedelta(minutes=minute))

    def _changes(self, first: date, last: date) -> bool:
        ends = datetime.combine(first, time()), datetime.combine(last + _DAY, time(fold=1))
        return self._offset(ends[0]) != self._offset(ends[1])

    def _offset(self, wall: datetime) -> timedelta | None:
        return self._zone.utcoffset(wall.replace(tzinfo=self._zone))

    def _moments_of(self, wall: datetime) -> Iterator[float]:
        """Yield when a clock shows this: on the day that clocks are changed it may do so never, or twice."""
        first, second = self._shown(wall)
        if first <= second:
            yield first
            if self._hourly:
                yield second
        elif not self._hourly:  # skipped: between the two lies the minute in which clocks are put forward
            after = self._offset(datetime.fromtimestamp(first, self._zone))
            minutes = range(int(second // 60), int(first // 60) + 1)
            found = bisect_left(
                minutes, True, key=lambda one: self._offset(datetime.fromtimestamp(one * 60, self._zone)) == after
            )
            yield minutes[found] * 60.0

    def _shown(self, wall: datetime) -> list[float]:
        """Return when a clock shows this, before it is changed and after: the same where it is not changed then."""
        return [wall.replace(tzinfo=self._zone, fold=fold).timestamp() for fold in (0, 1)]

    def _date(self, moment: float) -> date:
        return datetime.fromtimestamp(moment, self._zone).date()


_times = lru_cache(maxsize=1024)(_CronTimes)


def _listed(values: frozenset[int]) -> str:
    return ",".join(map(str, sorted(values)))
