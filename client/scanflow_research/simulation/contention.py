"""The contention of concurrent jobs: CPUs, memory of a socket, network of a node.

A job is as slow as its slowest rank, and a rank's time is that of its program's three shares, each multiplied::

    compute   1 + migration * (1 - 1 / ranks that share a container) [+ floating_compute, without CPUs of its own]
    memory    what all ranks of the socket ask for / what the socket gives, if more than 1
    MPI       [1 + floating_mpi, without CPUs of its own], or, between nodes and if more than that,
              rate on one node * ranks of the node that send to others / what its network gives
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scanflow_research.simulation.programs import ProgramModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The parameters of the machine, and the cost to ranks of sharing it."""

    socket_gb_per_s: float
    """Memory bandwidth of a socket."""

    network_gb_per_s: float
    """Network bandwidth of a node to other nodes."""

    migration: float
    """Slowdown of a rank's computation if very many ranks share the CPUs of a container: the kernel migrates them."""

    floating_compute: float
    """Additional slowdown of computation in containers without exclusive CPUs."""

    floating_mpi: float
    """Slowdown of MPI in such containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRanks:
    """The placement of one worker's ranks."""

    node: int
    sockets: tuple[tuple[int, float], ...]
    """The number of ranks on each socket; fractions if they float over all sockets."""

    pinned: bool
    """Whether the worker has exclusive CPUs."""

    @property
    def n_ranks(self) -> float:
        return sum(ranks for _, ranks in self.sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Workers of one job that are alike."""

    count: int
    ranks: WorkerRanks
    remote_share: float
    """The share of a rank's peers that are on other nodes."""


def group_alike(workers: Sequence[WorkerRanks]) -> tuple[Workers, ...]:
    """Return the workers of a job, equal workers together."""
    on_node: dict[int, float] = {}
    for worker in workers:
        on_node[worker.node] = on_node.get(worker.node, 0) + worker.n_ranks
    total = sum(on_node.values())
    remote = {node: (total - ranks) / max(1, total - 1) for node, ranks in on_node.items()}
    return tuple(
        Workers(count=count, ranks=ranks, remote_share=remote[ranks.node]) for ranks, count in Counter(workers).items()
    )


def compute_slowdowns(running: Sequence[tuple[ProgramModel, Sequence[Workers]]], contention: Contention) -> list[float]:
    """Return the factor by which each job's running time grows while these jobs run together, in their order."""
    memory: dict[tuple[int, int], float] = defaultdict(float)  # asked for, by node and socket
    senders: dict[int, float] = defaultdict(float)  # ranks that send to other nodes, by node
    for program, workers in running:
        for alike in workers:
            node = alike.ranks.node
            for socket, ranks in alike.ranks.sockets:
                memory[node, socket] += alike.count * ranks * program.memory_gb_per_s
            if program.mpi_gb_per_s:
                senders[node] += alike.count * alike.ranks.n_ranks * alike.remote_share
    return [
        max(_compute_slowdown(program, alike.ranks, memory, senders[alike.ranks.node], contention) for alike in workers)
        for program, workers in running
    ]


def _compute_slowdown(
    program: ProgramModel,
    worker: WorkerRanks,
    memory: Mapping[tuple[int, int], float],
    senders: float,
    contention: Contention,
) -> float:
    compute = 1 + contention.migration * (1 - 1 / worker.n_ranks)
    asked = [memory[worker.node, socket] for socket, _ in worker.sockets]
    waiting = [max(1.0, gb_per_s / contention.socket_gb_per_s) for gb_per_s in asked]
    mpi = max(1.0, program.mpi_gb_per_s * senders / contention.network_gb_per_s)
    if worker.pinned:
        memory_wait = max(waiting)
    else:
        compute += contention.floating_compute
        mpi = max(mpi, 1 + contention.floating_mpi)
        memory_wait = sum(waiting) / len(waiting)
    return program.compute_share * compute + program.memory_share * memory_wait + program.mpi_share * mpi
