"""Waiting and running times of MPI jobs, from the records of their runs (thesis 6.4.1). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scanflow.backends.rank_files import RANKS
from scanflow.backends.run_records import FINAL_STATES, RunRecord, RunState

__all__ = ["JobTimes", "JobTotals", "compute_job_times", "compute_job_totals"]

MPI = "mpi"
"""The detail ``type`` of the record of an MPI job's run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimes:
    """One job. Times are seconds since the epoch."""

    run: str
    """The name of the run."""

    job: str
    """The name of the MPI workload."""

    state: RunState
    """The state of the run."""

    ranks: int
    """The number of its ranks."""

    nodes: tuple[str, ...]
    """The names of its machines."""

    submitted: float
    """When the run was created."""

    began: float | None
    """When ``mpirun`` started, in the last attempt. None: it is queued, or never started."""

    ended: float | None
    """None: it has not ended."""

    now: float
    """The time of this record."""

    @property
    def waiting_s(self) -> float:
        """From submission to start: T_w. Never negative, though another machine's clock may be behind."""
        return max((self.began or self.ended or self.now) - self.submitted, 0.0)

    @property
    def running_s(self) -> float | None:
        """From start to end, or until now: T_r."""
        return None if self.began is None else max((self.ended or self.now) - self.began, 0.0)

    @property
    def response_s(self) -> float | None:
        """From submission to end: T_w + T_r. None: it has not ended."""
        return None if self.ended is None else self.ended - self.submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTotals:
    """Totals over several jobs."""

    jobs: int
    """The number of jobs."""

    makespan_s: float
    """From first submission to last end."""

    response_s: float
    """The sum of the response times, as the thesis' overall response time."""

    waiting_s: float
    """The mean waiting time."""


def is_job(record: RunRecord) -> bool:
    """Return whether a run is an MPI job's."""
    return (record.model_extra or {}).get("type") == MPI


def compute_job_times(record: RunRecord, now: float) -> JobTimes:
    """Return the times of a job from the record of its run, with its tasks."""
    ranks = [task for task in record.tasks if task.step == RANKS]
    job = next(task for task in record.tasks if task.step != RANKS)
    over = record.state in FINAL_STATES
    ended = None
    if over and job.began is not None and job.seconds is not None:
        ended = job.began + job.seconds
    elif over:
        ended = record.created + (record.seconds or 0.0)
    nodes = dict.fromkeys(rank.place.partition(",")[0] for rank in ranks if rank.place)
    return JobTimes(
        run=record.name,
        job=job.step,
        state=record.state,
        ranks=len(ranks),
        nodes=tuple(nodes),
        submitted=record.created,
        began=job.began,
        ended=ended,
        now=now,
    )


def compute_job_totals(jobs: Iterable[JobTimes]) -> JobTotals | None:
    """Return the totals of the jobs that have ended; None: none has ended."""
    ended: Sequence[JobTimes] = [job for job in jobs if job.response_s is not None]
    if not ended:
        return None
    return JobTotals(
        jobs=len(ended),
        makespan_s=max(job.ended or 0.0 for job in ended) - min(job.submitted for job in ended),
        response_s=sum(job.response_s or 0.0 for job in ended),
        waiting_s=sum(job.waiting_s for job in ended) / len(ended),
    )
