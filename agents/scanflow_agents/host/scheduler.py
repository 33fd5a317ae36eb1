"""APScheduler's asyncio scheduler, which fires sensors: it wakes at due times, coalesces those that passed while the
loop was busy, and decides by the grace which are too late. Missed ones are counted in the sensors' states."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from apscheduler.events import EVENT_JOB_MISSED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from scanflow_agents.host.sensor_state import TriggerState

TriggerCallback = Callable[[bool], None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


class DueTimes(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """The due times of a leaf as an APScheduler trigger, which skips past ones except the newest.

    ``seed`` determines the jitter of each.
    """

    def __init__(self, leaf: TriggerState, seed: str) -> None:
        self._leaf, self._seed = leaf, seed

    def get_next_fire_time(  # pyright: ignore[reportIncompatibleMethodOverride]  # APScheduler has no types
        self, previous_fire_time: datetime | None, now: datetime
    ) -> datetime | None:
        """Return the newest passed moment after the previous one, else the next one."""
        at = now.timestamp()
        newest = None if previous_fire_time is None else self._leaf.find_newest_moment(at, self._seed)
        if newest is not None and previous_fire_time is not None and _to_datetime(newest) > previous_fire_time:
            return _to_datetime(newest)
        following = self._leaf.find_next_moment(at, self._seed)
        return None if following is None else max(_to_datetime(following), now + timedelta(microseconds=1))


class Scheduler(Protocol):
    def add(self, name: str, times: DueTimes, ring: TriggerCallback, *, grace_s: float) -> None:
        """Call ``ring`` at each due time, not earlier, and once for several passed ones; ``grace_s``, in whole seconds,
        is how late it may be."""
        ...

    def start(self) -> None: ...

    def check_clock(self) -> None:
        """Check the clock: it may have been set, or the machine may have slept."""
        ...

    def stop(self) -> None: ...


class ApsScheduler:
    """Runs alarms on APScheduler's asyncio scheduler, as plain calls on the loop: without threads or tasks."""

    def __init__(self) -> None:
        self._scheduler: Any = AsyncIOScheduler(
            timezone=UTC,
            executors={"default": DebugExecutor()},
            job_defaults={"coalesce": True, "max_instances": 1},
            logger=_log,
        )
        _log.setLevel(logging.ERROR)  # misses are in the journal
        self._rings: dict[str, TriggerCallback] = {}
        self._scheduler.add_listener(lambda event: self._rings[event.job_id](True), EVENT_JOB_MISSED)

    def add(self, name: str, times: DueTimes, ring: TriggerCallback, *, grace_s: float) -> None:
        self._rings[name] = ring
        self._scheduler.add_job(
            ring, times, args=[False], id=name, name=name, misfire_grace_time=math.ceil(grace_s), replace_existing=True
        )

    def start(self) -> None:
        self._scheduler.start()

    def check_clock(self) -> None:
        self._scheduler.wakeup()

    def stop(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


def _to_datetime(moment: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(moment * 1e6))
