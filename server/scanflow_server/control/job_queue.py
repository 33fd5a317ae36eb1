"""The FIFO queue of MPI jobs, for backends without a queue of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from scanflow.app.quantities import format_count, format_memory
from scanflow.backends.backend_port import JobBudget
from scanflow.backends.step_schedule import Budget, Share
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import NotFoundError


class JobQueue:
    """Decides which jobs wait. Caches each job's share, which never changes."""

    def __init__(self, deployer: EmbeddedDeployer) -> None:
        self._deployer = deployer
        self._shares: dict[str, Share | None] = {}

    def list_waiting(self, runs: Sequence[tuple[str, bool]]) -> dict[str, str]:
        """Return what each waiting run waits for; an empty text if it is not entered yet.

        Args:
            runs: The active ones, as they were requested, each with whether it was begun.
        """
        batch = self._deployer.batch
        if not isinstance(batch, JobBudget):
            return {}
        jobs = self.list_jobs(runs)
        unknown = {run: "" for run, _ in runs if run not in self._shares}
        return {**unknown, **(list_waiting_jobs(jobs, batch.job_capacity()) if jobs else {})}

    def list_jobs(self, runs: Sequence[tuple[str, bool]]) -> list[tuple[str, bool, Share]]:
        """Return those of the runs that are MPI jobs and entered, with what each takes."""
        batch, shares = self._deployer.batch, dict[str, Share | None]()
        if isinstance(batch, JobBudget):
            for run, _ in runs:
                with suppress(NotFoundError):
                    shares[run] = self._shares[run] if run in self._shares else batch.job_share(run)
        self._shares = shares
        return [(run, begun, share) for run, begun in runs if (share := shares.get(run)) is not None]


def list_waiting_jobs(jobs: Sequence[tuple[str, bool, Share]], capacity: Share) -> dict[str, str]:
    """Return what each waiting job waits for. No job overtakes another: behind a waiting job, all wait. Pure.

    Args:
        jobs: In the order of requests: the run, whether it was begun, and what it takes.
        capacity: What there is for all of them.
    """
    budget = Budget(capacity.cores, capacity.memory_bytes)
    held = [run for run, begun, _ in jobs if begun]
    for _, begun, share in jobs:
        if begun:
            budget.hold(share)
    waits: dict[str, str] = {}
    for run, begun, share in jobs:
        if begun:
            continue
        if not waits and budget.take(share):
            held.append(run)
            continue
        others = f"{', '.join(held)} to end"
        ahead = f"{format_count(len(waits), 'job')} before it, and {others}" if waits else others
        waits[run] = f"{format_share(share)} of {capacity.cores:g}: {ahead}"
    return waits


def format_share(share: Share) -> str:
    cores = "1 core" if share.cores == 1 else f"{share.cores:g} cores"
    return f"{cores} and {format_memory(share.memory_bytes)}" if share.memory_bytes else cores
