"""Allocates tasks and resources to workers, and writes the hostfile (thesis 6.3.2, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scanflow.errors import InvalidError


@dataclass(frozen=True, slots=True, kw_only=True)
class MPIWorker:
    """One worker of a job: a process group, a container or a pod, which holds some of its tasks."""

    index: int
    n_tasks: int
    """Its number of tasks (``nTasks`` of Algorithm 3)."""

    cores: float
    memory_bytes: int | None = None
    """None: unlimited."""


def allocate_tasks(n_tasks: int, n_workers: int) -> tuple[int, ...]:
    """Return the tasks of each worker, assigned in turn (``AllocateTasks`` of Algorithm 3): the numbers differ by at
    most one."""
    if not 1 <= n_workers <= n_tasks:
        raise InvalidError(f"{n_tasks} tasks cannot be split among {n_workers} workers. Write 1 to {n_tasks} workers.")
    each, more = divmod(n_tasks, n_workers)
    return tuple(each + (index < more) for index in range(n_workers))


def make_workers(
    n_tasks: int, n_workers: int, *, cores: float, memory_bytes: int | None = None
) -> tuple[MPIWorker, ...]:
    """Return the workers with resources in proportion to their tasks (Algorithm 3, line 5).

    Args:
        n_tasks: N_t.
        n_workers: N_w.
        cores: Of all tasks together.
        memory_bytes: Of all tasks together. None: not limited.
    """
    share = Fraction(cores).limit_denominator(10**6) / n_tasks
    return tuple(
        MPIWorker(
            index=index,
            n_tasks=tasks,
            cores=float(share * tasks),
            memory_bytes=None if memory_bytes is None else memory_bytes * tasks // n_tasks,
        )
        for index, tasks in enumerate(allocate_tasks(n_tasks, n_workers))
    )


def format_hostfile(hosts: Iterable[tuple[str, int]]) -> str:
    """Return Open MPI's hostfile: a line ``host slots=n`` for each worker (Algorithm 3, line 6)."""
    return "".join(f"{host} slots={slots}\n" for host, slots in hosts)


def assign_ranks(workers: Sequence[MPIWorker]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each worker, numbered consecutively, worker after worker, as ``mpirun`` fills slots."""
    numbered: list[tuple[int, ...]] = []
    first = 0
    for worker in workers:
        numbered.append(tuple(range(first, first + worker.n_tasks)))
        first += worker.n_tasks
    return tuple(numbered)
