"""When a scheduled trigger is due: pure functions of the trigger, its anchor and the time.

An interval's due times are a grid that begins one interval after its anchor, the moment the sensor was first seen, and
is never moved by firings, delays or restarts; so what fell due while nobody looked can be counted afterwards.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from typing import Any

from scanflow.app.triggers import Cron, Date, Interval
from scanflow_agents.cron_times import cron_times

__all__ = ["Scheduled", "count_between", "first_after", "last_until", "moved", "written"]

Scheduled = Interval | Date | Cron


def first_after(trigger: Scheduled, moment: float, *, anchor: float) -> float | None:
    """Return the first due time later than ``moment``; None: there is none any more."""
    match trigger:
        case Interval():
            return _grid(trigger, anchor, _index(trigger, anchor, moment) + 1)
        case Date():
            due = trigger.when.timestamp()
            return due if due > moment else None
        case Cron():
            return cron_times(trigger).after(max(moment, anchor))


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
            return cron_times(trigger).until(moment, after=max(after, anchor))


def count_between(trigger: Scheduled, after: float, until: float, *, anchor: float) -> int:
    """Return how many due times there are in ``(after, until]``."""
    match trigger:
        case Interval():
            return max(0, _index(trigger, anchor, until) - _index(trigger, anchor, after))
        case Date():
            return int(after < trigger.when.timestamp() <= until)
        case Cron():
            return cron_times(trigger).count(max(after, anchor), until)


def moved(trigger: Scheduled, due: float, seed: str) -> float:
    """Return when what is due at ``due`` fires: later by up to its jitter, the same however often it is asked."""
    if not isinstance(trigger, Interval) or not trigger.jitter:
        return due
    return due + random.Random(f"{seed}/{due!r}").random() * trigger.jitter  # noqa: S311 - to spread load, not to hide


def written(moment: float) -> str:
    """Return a moment as text: ``2026-01-31T06:00:00Z``."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def _grid(trigger: Interval, anchor: float, index: int) -> float:
    return anchor + index * _seconds(trigger)


def _index(trigger: Interval, anchor: float, moment: float) -> int:
    """Return the number of the last due time that is not later than ``moment``; 0 before the first."""
    index = max(0, math.floor((moment - anchor) / _seconds(trigger)))
    while index > 0 and _grid(trigger, anchor, index) > moment:  # a division rounds, the grid is what counts
        index -= 1
    while _grid(trigger, anchor, index + 1) <= moment:
        index += 1
    return index


def _seconds(trigger: Interval) -> float:
    seconds: Any = trigger.seconds  # written as text or a timedelta too, and kept as a number
    return float(seconds)
