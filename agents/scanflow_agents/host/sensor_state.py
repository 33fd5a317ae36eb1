"""The state of sensors and triggers: every due time is taken, or counted as missed with its reason.

Pure: the time is an argument. ``taken + late + down`` of a leaf is always the number of its due times up to
``accounted``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scanflow.app.agent import Misfire
from scanflow.app.triggers import Cron, Date, Interval, Trigger
from scanflow_agents.clock_errors import AHEAD_S
from scanflow_agents.host import combined_triggers
from scanflow_agents.host.combined_triggers import NOTHING, Path, Seen
from scanflow_agents.host.trigger_times import (
    Scheduled,
    apply_jitter,
    count_between,
    find_first_after,
    find_last_until,
    format_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringRequest:
    cause: str
    """The same for each attempt of a firing: ``interval:2026-01-31T06:00:00Z``."""

    at: float
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    event: Mapping[str, Any] | None = None
    """The event it fires on, as JSON."""

    attempts: int = 1
    """The number of attempts; more than one if the agent was killed meanwhile."""


@dataclass(slots=True, kw_only=True)
class TriggerState:
    trigger: Scheduled
    anchor: float
    accounted: float
    """The time up to which every due time was taken or counted."""

    taken: int = 0
    late: int = 0
    """Missed: checked later than the grace allows, or together with a newer one."""

    down: int = 0
    """Missed: the agent was not running."""

    def find_next_after(self, moment: float) -> float | None:
        return find_first_after(self.trigger, max(moment, self.accounted), anchor=self.anchor)

    def find_newest_moment(self, now: float, seed: str) -> float | None:
        """Return the newest passed due time that is not accounted for, jitter included; None: there is none."""
        due = self._find_newest(now, seed)
        return None if due is None else apply_jitter(self.trigger, due, seed)

    def find_next_moment(self, now: float, seed: str) -> float | None:
        """Return the next due time, jitter included; None: there is none."""
        newest = self._find_newest(now, seed)
        due = find_first_after(self.trigger, self.accounted if newest is None else newest, anchor=self.anchor)
        return None if due is None else apply_jitter(self.trigger, due, seed)

    def take(self, now: float, *, late: bool, seed: str) -> float | None:
        """Return the newest due time at ``now``, to fire for; count those before it as late, and all of them if
        ``late``. None: none is due."""
        due = self._find_newest(now, seed)
        if due is None:
            return None
        count = count_between(self.trigger, self.accounted, due, anchor=self.anchor)
        self.accounted = due
        if late:
            self.late += count
            return None
        self.late += count - 1
        self.taken += 1
        return due

    def catch_up(self, now: float, *, misfire: Misfire) -> float | None:
        """Count the due times while the agent was down; return the one to fire for, if the policy has one."""
        due = find_last_until(self.trigger, now, after=self.accounted, anchor=self.anchor)
        if due is None:
            return None
        count = count_between(self.trigger, self.accounted, due, anchor=self.anchor)
        self.accounted = due
        if misfire == "skip":
            self.down += count
            return None
        self.down += count - 1
        self.taken += 1
        return due

    def rewind(self, now: float) -> tuple[int, int, int]:
        """Continue from ``now``, and drop the counts of later times; return those as (late, down, taken)."""
        self.anchor = min(self.anchor, round(now, 3))
        self.accounted = max(now, self.anchor)
        again = self.late + self.down + self.taken
        again -= count_between(self.trigger, 0.0, self.accounted, anchor=self.anchor)
        down = min(again, self.down)
        late = min(again - down, self.late)
        taken = again - down - late
        self.late, self.down, self.taken = self.late - late, self.down - down, self.taken - taken
        return late, down, taken

    def _find_newest(self, now: float, seed: str) -> float | None:
        jitter = self.trigger.jitter if isinstance(self.trigger, Interval) else 0.0
        newest = find_last_until(self.trigger, now - jitter, after=self.accounted, anchor=self.anchor)
        due = find_first_after(self.trigger, self.accounted if newest is None else newest, anchor=self.anchor)
        while jitter and due is not None and apply_jitter(self.trigger, due, seed) <= now:
            newest, due = due, find_first_after(self.trigger, due, anchor=self.anchor)
        return newest


@dataclass(slots=True, kw_only=True)
class SensorState:
    sensor: str
    trigger: Trigger
    leaves: dict[Path, TriggerState] = field(default_factory=dict)
    seen: Seen = NOTHING
    fired: int = 0
    running: int = 0
    """Missed: the previous firing was still running."""

    full: int = 0
    """Missed: the queue was full."""

    interrupted: int = 0
    """Missed: interrupted by the agent's end in too many attempts."""

    late: int = 0
    """Missed under schedules since removed, or under a clock that was ahead; likewise ``down`` and ``taken``."""

    down: int = 0
    taken: int = 0
    errors: int = 0
    abandoned: int = 0
    """Firings that exceeded their timeout; included in the errors."""

    looped: int = 0
    """Missed: events at the end of a chain of too many samples that trigger each other."""

    failures: int = 0
    """The number of consecutive failures."""

    failing_since: float | None = None
    trouble: str = ""
    last: float | None = None
    looked: float | None = None
    """The time up to which the knowledge base was searched."""

    in_progress: FiringRequest | None = None
    """The firing that is running, or was when the agent ended."""

    @property
    def missed(self) -> dict[str, int]:
        leaves = self.leaves.values()
        return {
            "down": self.down + sum(leaf.down for leaf in leaves),
            "late": self.late + sum(leaf.late for leaf in leaves),
            "running": self.running,
            "full": self.full,
            "interrupted": self.interrupted,
            "looped": self.looped,
        }

    def record_outcome(self, trouble: str | None, now: float) -> None:
        if trouble is None:
            self.failures, self.failing_since, self.trouble = 0, None, ""
        else:
            self.failing_since = now if self.failures == 0 else self.failing_since
            self.failures, self.trouble = self.failures + 1, trouble

    def mark_fired(self, *paths: Path) -> bool:
        """Mark these leaves as fired; return whether the sensor fires."""
        self.seen, fires = combined_triggers.mark_fired(self.trigger, self.seen, paths)
        return fires

    def build_firing(self, path: Path, due: float) -> FiringRequest:
        kind = f"{self.leaves[path].trigger.kind}{f'.{path}' if path else ''}"
        return FiringRequest(cause=f"{kind}:{format_time(due)}", at=due)

    def declare(self, trigger: Trigger, now: float) -> None:
        """Set the sensor's trigger from ``now`` on, as in the application.

        A changed schedule starts again; due times of the old one until now are counted.
        """
        schedules = {
            path: leaf
            for path, leaf in combined_triggers.iterate_leaves(trigger)
            if isinstance(leaf, Interval | Date | Cron)
        }
        leaves: dict[Path, TriggerState] = {}
        for path, state in self.leaves.items():
            if schedules.get(path) == state.trigger:
                leaves[path] = state
                continue
            state.catch_up(now, misfire="skip")
            self._add_missed(state.late, state.down, state.taken)
        for path, leaf in schedules.items():
            if path not in leaves:
                state = TriggerState(trigger=leaf, anchor=round(now, 3), accounted=0.0)
                state.catch_up(now, misfire="skip")  # a date that has passed when first seen was missed
                state.accounted = max(state.accounted, state.anchor)
                leaves[path] = state
        self.leaves, self.trigger = dict(sorted(leaves.items())), trigger
        self.seen = combined_triggers.filter_seen(trigger, self.seen)

    def rewind(self, now: float) -> float:
        """Continue from ``now`` if the clock was ahead and was set back; return by how much, in seconds, else 0.
        Otherwise nothing would fire, or count as missed, until the clock has caught up."""
        ahead = 0.0
        for leaf in self.leaves.values():
            if leaf.accounted > now + AHEAD_S:
                ahead = max(ahead, leaf.accounted - now)
                self._add_missed(*leaf.rewind(now))
        if self.looked is not None and self.looked > now + AHEAD_S:
            ahead, self.looked = max(ahead, self.looked - now), now
        return ahead

    def _add_missed(self, late: int, down: int, taken: int) -> None:
        self.late, self.down, self.taken = self.late + late, self.down + down, self.taken + taken
