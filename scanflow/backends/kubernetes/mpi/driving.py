"""Watches an MPI job to its end: what happens is told, written down, and kept before its pods are gone.

Its engine drives by itself. Who watches may be killed at any instant; the next one reads where the job stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from scanflow.app.quantities import format_duration
from scanflow.backends.kubernetes.batch.facts import read_drive
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.facts import MAX_OUTPUT_BYTES, JobFacts, flooded
from scanflow.backends.kubernetes.mpi.seen import STOPPED, JobSeen
from scanflow.backends.kubernetes.object_looks import ObjectLooks
from scanflow.backends.records import EnvironmentReady, Observer, RunState, TaskEnded, TaskStarted, Waiting
from scanflow.names import RunName

QUIET_S: Final = 10.0
"""How long a job that is on its way is not told of."""

LOST_S: Final = 30.0
"""How long ``mpirun`` may take to notice that a worker is gone."""

OVER_S: Final = 60.0
"""How long an engine may take to end what is left of a job whose ``mpirun`` has ended."""

_IN_A_QUEUE: Final = ("Queued", "Unschedulable", "FailedScheduling", "Pending")
"""What a job may wait for as long as it takes: room."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    state: RunState
    error: str | None = None


@dataclass(slots=True)
class _Since:
    """Since when, and whether it was told."""

    began: float
    told: str = ""


@dataclass(slots=True)
class _Progress:
    started: bool = False
    waiting: _Since | None = None
    workers: dict[str, float | None] = field(default_factory=dict)
    """Of workers that ran: since when they do not any more."""

    after_end: float | None = None
    asked: bool = False
    why: str | None = None


class JobDrive:
    """Watches one job."""

    def __init__(
        self,
        facts: JobFacts,
        looks: ObjectLooks,
        run: RunName,
        *,
        observe: Observer,
        pending_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts, self._looks, self._run, self._observe = facts, looks, run, observe
        self._pending_s, self._clock, self._now = pending_s, clock, _Progress()

    def watch(self, manifest: Manifest, *, adopted: bool) -> JobEnd:
        """Return how a job ended. Ctrl-C stops it.

        Raises:
            UnavailableError: the API server was away for too long.
        """
        while True:
            try:
                return self._watch(manifest, adopted=adopted)
            except KeyboardInterrupt:
                if self._now.asked:
                    raise  # the second Ctrl-C: it goes on ending with nobody watching
                self._now.asked = True
                self._facts.stop(manifest, self._facts.look(manifest))

    def _watch(self, manifest: Manifest, *, adopted: bool) -> JobEnd:
        for found in self._looks.watch(manifest):
            if found is None:
                error = self._facts.deleted(asked=self._now.asked, why=self._now.why)
                return JobEnd("stopped" if self._now.why is None else "failed", error)
            seen = self._facts.look(found)
            self._now.asked |= STOPPED in (found["metadata"].get("annotations") or {})
            if self._is_over(found, seen, adopted=adopted):
                record = self._facts.record(seen, read_drive(found), self._facts.output(read_drive(found)))
                self._observe(TaskEnded(run=self._run, record=record, width=1))
                return JobEnd(end_state(seen))
        raise AssertionError("looks have no end of their own")

    def _is_over(self, manifest: Manifest, seen: JobSeen, *, adopted: bool) -> bool:
        now = self._clock()
        self._tell_waiting(seen, now)
        if seen.state != "pending" and not self._now.started:
            self._now.started = True
            name, drive = self._facts.workload.name, read_drive(manifest)
            self._observe(
                TaskStarted(run=self._run, task=self._facts.task, step=name, width=1, attempt=drive, adopted=adopted)
            )
        if seen.over:
            return True
        if seen.state in {"succeeded", "failed", "stopped"}:
            self._now.after_end = self._now.after_end or now
            return now - self._now.after_end > OVER_S
        if self._now.why is None and (why := self._why_to_end(manifest, seen, now)) is not None:
            self._now.why = why
            self._facts.stop(manifest, seen, why=why)
        return False

    def _why_to_end(self, manifest: Manifest, seen: JobSeen, now: float) -> str | None:
        """Return why a job cannot go on; None: nothing is known against it."""
        name, waiting = self._facts.workload.name, self._now.waiting
        size = self._facts.output(read_drive(manifest)).size
        if size > MAX_OUTPUT_BYTES:
            return flooded(size, name)
        if seen.waiting is not None and waiting is not None and seen.waiting.reason not in _IN_A_QUEUE:
            if now - waiting.began > self._pending_s:
                bound = format_duration(self._pending_s)
                return f"The pods of {name!r} did not start in {bound}: {str(seen.waiting).rstrip('.')}."
            return None
        gone = self._workers_gone(seen, now)
        if gone:
            return (
                f"{gone} of the workers of {name!r} went away {format_duration(LOST_S)} ago, and mpirun has not "
                "noticed: a node was lost, or somebody deleted pods. Start it again."
            )
        return None

    def _workers_gone(self, seen: JobSeen, now: float) -> int:
        """Return how many workers have been gone for too long."""
        known = self._now.workers
        for worker in seen.workers:
            known[worker] = None
        for worker in known.keys() - seen.workers:
            known[worker] = known[worker] or now
        return sum(since is not None and now - since > LOST_S for since in known.values())

    def _tell_waiting(self, seen: JobSeen, now: float) -> None:
        what = f"the pods of {self._facts.workload.name}"
        waiting = self._now.waiting
        if seen.waiting is None:
            if waiting is not None and waiting.told and seen.state == "running":
                self._observe(EnvironmentReady(run=self._run, what=what, seconds=now - waiting.began))
            self._now.waiting = None
            return
        if waiting is None:
            waiting = self._now.waiting = _Since(now)
        if waiting.told != seen.waiting.reason and now - waiting.began >= QUIET_S:
            waiting.told = seen.waiting.reason
            self._observe(Waiting(run=self._run, what=f"{what}: {seen.waiting}"))


def end_state(seen: JobSeen) -> RunState:
    """Return the state of a run whose job has ended."""
    if seen.state == "succeeded":
        return "succeeded"
    return "stopped" if seen.state == "stopped" else "failed"
