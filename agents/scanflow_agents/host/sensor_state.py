"""What was due of each sensor and what became of it: every due time is taken or counted as missed, with its reason.

Pure: the time comes in, and what changed is read from the fields. ``taken + late + down`` of a leaf is the number of
its due times up to ``accounted``, always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scanflow.app.agents import Misfire
from scanflow.app.triggers import Cron, Date, Interval, Trigger
from scanflow_agents.host import combined_triggers
from scanflow_agents.host.combined_triggers import NOTHING, Path, Seen
from scanflow_agents.host.schedules import Scheduled, count_between, first_after, last_until, moved, written

AHEAD_S = 60.0
"""What is noted of a time further ahead of the clock than this was noted by one that was wrong, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringRequest:
    cause: str
    """The same for one firing however often it is tried: ``interval:2026-01-31T06:00:00Z``."""

    at: float
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    event: Mapping[str, Any] | None = None
    """The event it fires on, as JSON holds it."""

    attempts: int = 1
    """How many times it was begun; more than once when the agent was killed in between."""


@dataclass(slots=True, kw_only=True)
class TriggerState:
    trigger: Scheduled
    anchor: float
    accounted: float
    """Up to here every due time was taken or counted."""

    taken: int = 0
    late: int = 0
    """Missed: looked at later than the grace allows, or together with a newer one."""

    down: int = 0
    """Missed: nobody was there."""

    def next_after(self, moment: float) -> float | None:
        return first_after(self.trigger, max(moment, self.accounted), anchor=self.anchor)

    def newest_moment(self, now: float, seed: str) -> float | None:
        """Return when the newest due time that is not accounted for came, its jitter included; None: none has come."""
        due = self._newest(now, seed)
        return None if due is None else moved(self.trigger, due, seed)

    def next_moment(self, now: float, seed: str) -> float | None:
        """Return when the next due time comes, its jitter included; None: none will."""
        newest = self._newest(now, seed)
        due = first_after(self.trigger, self.accounted if newest is None else newest, anchor=self.anchor)
        return None if due is None else moved(self.trigger, due, seed)

    def take(self, now: float, *, late: bool, seed: str) -> float | None:
        """Return the due time to fire for at ``now``, the newest; count those before it, and all of them if they came
        too ``late``. None: nothing is to fire."""
        due = self._newest(now, seed)
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
        """Count what came while the agent was down; return the due time to fire for, if the policy wants one."""
        due = last_until(self.trigger, now, after=self.accounted, anchor=self.anchor)
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

    def set_back(self, now: float) -> tuple[int, int, int]:
        """Go on from ``now``, with what came later accounted for no more; return what was counted of that: missed as
        late, missed while down, taken."""
        self.anchor = min(self.anchor, round(now, 3))
        self.accounted = max(now, self.anchor)
        again = self.late + self.down + self.taken
        again -= count_between(self.trigger, 0.0, self.accounted, anchor=self.anchor)
        down = min(again, self.down)
        late = min(again - down, self.late)
        taken = again - down - late
        self.late, self.down, self.taken = self.late - late, self.down - down, self.taken - taken
        return late, down, taken

    def _newest(self, now: float, seed: str) -> float | None:
        jitter = self.trigger.jitter if isinstance(self.trigger, Interval) else 0.0
        found = last_until(self.trigger, now - jitter, after=self.accounted, anchor=self.anchor)
        due = first_after(self.trigger, self.accounted if found is None else found, anchor=self.anchor)
        while jitter and due is not None and moved(self.trigger, due, seed) <= now:
            found, due = due, first_after(self.trigger, due, anchor=self.anchor)
        return found


@dataclass(slots=True, kw_only=True)
class SensorState:
    sensor: str
    trigger: Trigger
    leaves: dict[Path, TriggerState] = field(default_factory=dict)
    seen: Seen = NOTHING
    fired: int = 0
    running: int = 0
    """Missed: the firing before it was still running."""

    full: int = 0
    """Missed: too many were waiting."""

    interrupted: int = 0
    """Missed: begun and cut short by the agent's end, too often to be tried again."""

    late: int = 0
    """Missed of schedules that it no longer has, or by a clock that was ahead; and so with ``down`` and ``taken``."""

    down: int = 0
    taken: int = 0
    errors: int = 0
    abandoned: int = 0
    """Firings that took longer than their limit; errors too."""

    looped: int = 0
    """Missed: events that sensors led to which fired on events, and so on, too many times."""

    failures: int = 0
    """How many firings have failed since the last one that did not."""

    failing_since: float | None = None
    trouble: str = ""
    last: float | None = None
    looked: float | None = None
    """Up to here the knowledge base was looked through."""

    in_progress: FiringRequest | None = None
    """What is running, or was when the agent ended."""

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

    def ended(self, trouble: str | None, now: float) -> None:
        if trouble is None:
            self.failures, self.failing_since, self.trouble = 0, None, ""
        else:
            self.failing_since = now if self.failures == 0 else self.failing_since
            self.failures, self.trouble = self.failures + 1, trouble

    def mark_fired(self, *paths: Path) -> bool:
        """Take a pulse of these leaves; return whether the sensor is to fire."""
        self.seen, fires = combined_triggers.mark_fired(self.trigger, self.seen, paths)
        return fires

    def scheduled(self, path: Path, due: float) -> FiringRequest:
        kind = f"{self.leaves[path].trigger.kind}{f'.{path}' if path else ''}"
        return FiringRequest(cause=f"{kind}:{written(due)}", at=due)

    def declare(self, trigger: Trigger, now: float) -> None:
        """Let the sensor have this trigger from ``now`` on, as it is written in the application.

        A schedule that was rewritten starts again; what fell due of the old one until now is counted.
        """
        wanted = {
            path: leaf for path, leaf in combined_triggers.leaves(trigger) if isinstance(leaf, Interval | Date | Cron)
        }
        found: dict[Path, TriggerState] = {}
        for path, known in self.leaves.items():
            if wanted.get(path) == known.trigger:
                found[path] = known
                continue
            known.catch_up(now, misfire="skip")
            self._keep(known.late, known.down, known.taken)
        for path, leaf in wanted.items():
            if path not in found:
                fresh = TriggerState(trigger=leaf, anchor=round(now, 3), accounted=0.0)
                fresh.catch_up(now, misfire="skip")  # a date that has passed when it is first seen was missed
                fresh.accounted = max(fresh.accounted, fresh.anchor)
                found[path] = fresh
        self.leaves, self.trigger = dict(sorted(found.items())), trigger
        self.seen = combined_triggers.still_known(trigger, self.seen)

    def set_back(self, now: float) -> float:
        """Go on from ``now`` where the clock was ahead and is not any more; return by how much, in seconds, 0 if it was
        not. Else nothing would fire, or be missed, until the clock is there again."""
        ahead = 0.0
        for leaf in self.leaves.values():
            if leaf.accounted > now + AHEAD_S:
                ahead = max(ahead, leaf.accounted - now)
                self._keep(*leaf.set_back(now))
        if self.looked is not None and self.looked > now + AHEAD_S:
            ahead, self.looked = max(ahead, self.looked - now), now
        return ahead

    def _keep(self, late: int, down: int, taken: int) -> None:
        self.late, self.down, self.taken = self.late + late, self.down + down, self.taken + taken
