"""Drive an MPI job: watch it to its end, report and record events, and copy its log before its pods are deleted.

Its engine runs it by itself. The watching process may be killed at any instant; the next one reads the job's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from scanflow.app.quantities import format_duration
from scanflow.backends.kubernetes.batch.workflow_facts import read_drive
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.mpi_facts import MAX_OUTPUT_BYTES, JobFacts, describe_excess_output
from scanflow.backends.kubernetes.mpi.observed_job import QUEUE_REASONS, STOPPED_ANNOTATION, ObservedJob
from scanflow.backends.kubernetes.object_watcher import ObjectWatcher
from scanflow.backends.run_records import (
    FINAL_STATES,
    EnvironmentReady,
    Observer,
    RunState,
    TaskEnded,
    TaskStarted,
    Waiting,
)
from scanflow.names import RunName

QUIET_S: Final = 10.0
"""How long a starting job is not reported."""

LOST_TIMEOUT_S: Final = 30.0
"""How long ``mpirun`` may take to notice a lost worker."""

END_TIMEOUT_S: Final = 60.0
"""How long an engine may take to end a job whose ``mpirun`` has ended."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    state: RunState
    error: str | None = None


@dataclass(slots=True)
class _PendingSince:
    """Since when a job is pending, and the reason that was reported."""

    began: float
    reported_reason: str = ""


@dataclass(slots=True)
class _Progress:
    started: bool = False
    waiting: _PendingSince | None = None
    workers: dict[str, str] = field(default_factory=dict)
    """The names of workers that have run, by uid."""

    gone_since: dict[str, float | None] = field(default_factory=dict)
    """For each worker that has run: the time since which it is gone; None: it runs."""

    ended_at: float | None = None
    stop_requested: bool = False
    end_reason: str | None = None


class JobDriver:
    """Watches one job."""

    def __init__(
        self,
        facts: JobFacts,
        watcher: ObjectWatcher,
        run: RunName,
        *,
        observe: Observer,
        pending_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts, self._watcher, self._run, self._observe = facts, watcher, run, observe
        self._pending_s, self._clock, self._progress = pending_s, clock, _Progress()

    def watch(self, manifest: Manifest, *, adopted: bool) -> JobEnd:
        """Watch a job until it has ended, and return its end. Ctrl-C stops it.

        Raises:
            UnavailableError: the API server was away for too long.
        """
        while True:
            try:
                return self._watch(manifest, adopted=adopted)
            except KeyboardInterrupt:
                if self._progress.stop_requested:
                    raise  # the second Ctrl-C: it goes on terminating unwatched
                self._progress.stop_requested = True
                self._facts.stop(manifest, self._facts.refresh(manifest))

    def _watch(self, manifest: Manifest, *, adopted: bool) -> JobEnd:
        for current in self._watcher.watch(manifest):
            if current is None:
                error = self._facts.record_deletion(asked=self._progress.stop_requested, why=self._progress.end_reason)
                return JobEnd("stopped" if self._progress.end_reason is None else "failed", error)
            observed = self._facts.refresh(current)
            self._progress.stop_requested |= STOPPED_ANNOTATION in (current["metadata"].get("annotations") or {})
            if self._advance(current, observed, adopted=adopted):
                record = self._facts.build_record(
                    observed, read_drive(current), self._facts.open_output(read_drive(current))
                )
                self._observe(TaskEnded(run=self._run, record=record, width=1))
                return JobEnd(derive_end_state(observed))
        raise AssertionError("the watch of a job ends only with the job")

    def _advance(self, manifest: Manifest, observed: ObservedJob, *, adopted: bool) -> bool:
        now = self._clock()
        self._report_waiting(observed, now)
        if observed.state != "pending" and not self._progress.started:
            self._progress.started = True
            name, drive = self._facts.workload.name, read_drive(manifest)
            self._observe(
                TaskStarted(run=self._run, task=self._facts.task, step=name, width=1, attempt=drive, adopted=adopted)
            )
        if observed.is_final:
            return True
        if observed.state in FINAL_STATES:
            self._progress.ended_at = self._progress.ended_at or now
            return now - self._progress.ended_at > END_TIMEOUT_S
        if (
            self._progress.end_reason is None
            and (end_reason := self._find_end_reason(manifest, observed, now)) is not None
        ):
            self._progress.end_reason = end_reason
            self._facts.stop(manifest, observed, why=end_reason)
        return False

    def _find_end_reason(self, manifest: Manifest, observed: ObservedJob, now: float) -> str | None:
        """Return why a job has to be ended; None: it goes on."""
        name, waiting = self._facts.workload.name, self._progress.waiting
        size = self._facts.open_output(read_drive(manifest)).size
        if size > MAX_OUTPUT_BYTES:
            return describe_excess_output(size, name)
        if observed.waiting is not None and waiting is not None and observed.waiting.reason not in QUEUE_REASONS:
            if now - waiting.began > self._pending_s:
                bound = format_duration(self._pending_s)
                return f"The pods of {name!r} did not start in {bound}: {str(observed.waiting).rstrip('.')}."
            return None
        if lost := self._list_lost_workers(observed, now):
            return (
                f"Workers of {name!r} were lost {format_duration(LOST_TIMEOUT_S)} ago, and mpirun has not noticed: "
                f"{', '.join(lost)}. A node failed, or pods were deleted. Start the job again."
            )
        return None

    def _list_lost_workers(self, observed: ObservedJob, now: float) -> list[str]:
        """Return the names of the workers that have been gone for too long."""
        gone_since = self._progress.gone_since
        self._progress.workers.update(observed.workers)
        for worker in observed.workers:
            gone_since[worker] = None
        for worker in gone_since.keys() - observed.workers.keys():
            gone_since[worker] = gone_since[worker] or now
        lost = [worker for worker, since in gone_since.items() if since is not None and now - since > LOST_TIMEOUT_S]
        return sorted(self._progress.workers[worker] for worker in lost)

    def _report_waiting(self, observed: ObservedJob, now: float) -> None:
        what = f"the pods of {self._facts.workload.name}"
        waiting = self._progress.waiting
        if observed.waiting is None:
            if waiting is not None and waiting.reported_reason and observed.state == "running":
                self._observe(EnvironmentReady(run=self._run, what=what, seconds=now - waiting.began))
            self._progress.waiting = None
            return
        if waiting is None:
            waiting = self._progress.waiting = _PendingSince(now)
        if waiting.reported_reason != observed.waiting.reason and now - waiting.began >= QUIET_S:
            waiting.reported_reason = observed.waiting.reason
            self._observe(Waiting(run=self._run, what=what, why=str(observed.waiting)))


def derive_end_state(observed: ObservedJob) -> RunState:
    """Return the state of a run whose job has ended."""
    if observed.state == "succeeded":
        return "succeeded"
    return "stopped" if observed.state == "stopped" else "failed"
