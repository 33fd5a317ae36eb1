"""The one door to APScheduler: alarms that ring on the event loop.

What is due, missed or late is told by :mod:`scanflow_agents.ledger` and kept by us; of the scheduler we want that it
wakes us at the right moment, once for all that share a schedule, and goes on when something raises.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

__all__ = ["Alarms", "ApsAlarms"]

NextAfter = Callable[[float], float | None]
"""Returns the first moment after the given one, both in seconds since the epoch; None: there is none."""

_log = logging.getLogger(__name__)


class Alarms(Protocol):
    """Rings at moments."""

    def add(self, name: str, next_after: NextAfter, ring: Callable[[], None]) -> None:
        """Call ``ring`` at each moment of ``next_after``, never before it, and once when several have passed."""
        ...

    def start(self) -> None:
        """Begin. To be called on the loop's thread."""
        ...

    def look(self) -> None:
        """Look at the clock anew: it may have been set, or the machine may have slept."""
        ...

    def stop(self) -> None:
        """Ring no more."""
        ...


class _Moments(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    def __init__(self, next_after: NextAfter) -> None:
        self._next_after = next_after

    def get_next_fire_time(self, previous_fire_time: Any, now: datetime) -> Any:  # noqa: ARG002
        moment = self._next_after(now.timestamp())
        if moment is None:
            return None
        # Rounded up, as a datetime has microseconds only: an alarm that rings too early would find nothing due.
        exact = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=math.ceil(moment * 1e6))
        return max(exact, now.astimezone(UTC) + timedelta(microseconds=1))


class ApsAlarms:
    """Alarms on APScheduler's asyncio scheduler, its jobs called on the loop itself: no thread, no task each."""

    def __init__(self) -> None:
        """Make the scheduler; nothing runs yet."""
        self._scheduler: Any = AsyncIOScheduler(
            timezone=UTC,
            executors={"default": DebugExecutor()},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            logger=_log,
        )
        _log.setLevel(logging.WARNING)

    def add(self, name: str, next_after: NextAfter, ring: Callable[[], None]) -> None:
        """See :class:`Alarms`."""
        self._scheduler.add_job(ring, _Moments(next_after), id=name, name=name, replace_existing=True)

    def start(self) -> None:
        """See :class:`Alarms`."""
        self._scheduler.start()

    def look(self) -> None:
        """See :class:`Alarms`."""
        self._scheduler.wakeup()

    def stop(self) -> None:
        """See :class:`Alarms`."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
