"""Plans an MPI job for every launcher: its granularity, and each rank's worker, node and CPUs. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import format_count, round_memory
from scanflow.app.resources import AffinityMode
from scanflow.errors import InvalidError
from scanflow.placement.cpulist import format_numbered
from scanflow.placement.mpi.groups import ClusterNode, build_groups, place_groups
from scanflow.placement.mpi.job_granularity import Granularity, select_granularity
from scanflow.placement.mpi.task_allocation import MPIWorker, assign_ranks, make_workers
from scanflow.placement.place import Grant, place
from scanflow.placement.topology import Topology

__all__ = ["MPIPlan", "PlacedRank", "plan_job"]

Placing = Callable[[Sequence[MPIWorker], Sequence[Sequence[int]], Sequence[ClusterNode]], tuple[str, ...]]
"""Chooses the node of each worker, given the workers, their groups, and the free resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRank:
    """A rank of an MPI job, with its node and its CPUs."""

    rank: int
    """Its number, from 0."""

    worker: int
    """The number of its worker."""

    group: int
    """The number of its worker's group."""

    node: str
    """The name of its machine."""

    cpus: tuple[int, ...] = ()
    """The CPUs that it may run on; empty: its node's kernel or kubelet decides."""

    memory_nodes: tuple[int, ...] = ()
    """The NUMA nodes whose memory it uses; empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MPIPlan:
    """The workers and ranks of an MPI job, and where each runs."""

    name: str
    """The name of the job."""

    granularity: Granularity
    """The numbers of nodes, workers and groups."""

    affinity: AffinityMode
    """Where ranks may run."""

    workers: tuple[MPIWorker, ...]
    """The workers, in the order of their numbers."""

    ranks: tuple[PlacedRank, ...]
    """In the order of their numbers; the ranks of a worker are consecutive."""

    oversubscribed: bool
    """Whether a core has more than one task."""

    reasons: tuple[str, ...]
    """Explanations of the plan, a line each."""

    @property
    def ranks_by_node(self) -> dict[str, int]:
        """The number of ranks on each node."""
        return dict(Counter(rank.node for rank in self.ranks))

    def lines(self) -> list[str]:
        """Return the map rank -> worker -> node -> CPUs, for people; equal ranks share a line."""
        lines: list[str] = []
        for worker, ranks in groupby(self.ranks, key=lambda rank: rank.worker):
            own = list(ranks)
            where = f"worker {worker} on {own[0].node}"
            if len({rank.cpus for rank in own}) == 1:
                alike = format_numbered("rank", (rank.rank for rank in own))
                lines.append(f"{alike} -> {where} -> {_format_cpus(own[0].cpus)}")
            else:
                lines += [f"rank {rank.rank} -> {where} -> {_format_cpus(rank.cpus)}" for rank in own]
        return lines


def plan_job(
    workload: MPIWorkload,
    nodes: Sequence[ClusterNode],
    *,
    topologies: Mapping[str, Topology] | None = None,
    placing: Placing = place_groups,
) -> MPIPlan:
    """Plan a job on these nodes.

    Args:
        workload: The job.
        nodes: The free resources, in order of preference.
        topologies: Of those nodes whose CPUs are known; elsewhere ranks are not bound to numbered CPUs.
        placing: Chooses nodes: Algorithms 4 and 5, or a model of another scheduler.

    Raises:
        InvalidError: it does not fit, or its profile is still to be measured.
    """
    if workload.profile == "auto":
        raise InvalidError(
            f"{workload.name!r} sets profile='auto', which is measured where the program runs. Measure it on this "
            "machine: scanflow mpi plan --measure; then set the result: profile='cpu', 'memory' or 'network'."
        )
    per_task = workload.resources_per_task
    granularity = _choose_granularity(workload, len(nodes))
    free = sum(node.cores for node in nodes)
    wanted = workload.n_tasks * (1.0 if per_task.cores is None else per_task.cores)
    if wanted > free + 1e-9 and not workload.oversubscribe:
        raise InvalidError(
            f"{workload.name!r} needs {wanted:g} cores for its {workload.n_tasks} tasks, but {free:g} are available. "
            "Start fewer tasks, or let them share cores: oversubscribe=True."
        )
    memory = workload.memory_bytes
    _check_memory(workload, memory, nodes)
    cores = min(wanted, free)
    if workload.oversubscribe and nodes:
        largest_worker = math.ceil(workload.n_tasks / granularity.workers)
        cores = min(cores, max(node.cores for node in nodes) * workload.n_tasks / largest_worker)
    crowded = wanted > cores + 1e-9
    workers = make_workers(workload.n_tasks, granularity.workers, cores=cores, memory_bytes=memory)
    groups = build_groups(workers, min(granularity.groups, len(workers)))
    placed = placing(workers, groups, nodes)
    bound = _bind_workers(workload, workers, placed, topologies or {})
    group_by_worker = {index: number for number, members in enumerate(groups) for index in members}
    ranks: list[PlacedRank] = []
    for worker, own in zip(workers, assign_ranks(workers), strict=True):
        grant = bound.get(worker.index)
        for place_in_worker, rank in enumerate(own):
            ranks.append(
                PlacedRank(
                    rank=rank,
                    worker=worker.index,
                    group=group_by_worker[worker.index],
                    node=placed[worker.index],
                    cpus=()
                    if grant is None
                    else grant.thread_cpus[place_in_worker : place_in_worker + 1] or grant.cpus,
                    memory_nodes=() if grant is None else grant.memory_nodes,
                )
            )
    return MPIPlan(
        name=workload.name,
        granularity=granularity,
        affinity=workload.mode,
        workers=workers,
        ranks=tuple(ranks),
        oversubscribed=crowded,
        reasons=_explain_plan(workload, granularity, wanted, cores),
    )


def _choose_granularity(workload: MPIWorkload, there: int) -> Granularity:
    nodes = max(1, min(there, workload.n_nodes))
    if workload.n_workers is not None or workload.profile is None or workload.profile == "auto":
        return select_granularity(
            workload.n_tasks, nodes=nodes, workers=workload.n_workers or 1, profile=None, policy="none"
        )
    return select_granularity(workload.n_tasks, nodes=nodes, profile=workload.profile, policy=workload.policy)


def _check_memory(workload: MPIWorkload, memory: int | None, nodes: Sequence[ClusterNode]) -> None:
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    if memory is not None and len(sizes) == len(nodes) and memory > sum(sizes):
        raise InvalidError(
            f"{workload.name!r} needs {round_memory(memory)} for its {workload.n_tasks} tasks, but "
            f"{round_memory(sum(sizes))} are available. Start fewer tasks, or request less memory for each."
        )


def _bind_workers(
    workload: MPIWorkload, workers: Sequence[MPIWorker], placed: Sequence[str], topologies: Mapping[str, Topology]
) -> dict[int, Grant]:
    """Return each worker's grant on the nodes whose CPUs are known: equations 3.13 to 3.23."""
    grant_by_worker: dict[int, Grant] = {}
    for node, topology in topologies.items():
        here = [worker for worker in workers if placed[worker.index] == node]
        node_grants: list[Grant] = []
        for size in sorted({(worker.cores, worker.n_tasks) for worker in here}, reverse=True):
            alike = [worker for worker in here if (worker.cores, worker.n_tasks) == size]
            grants = place(
                topology,
                len(alike),
                size[0],
                workload.mode,
                beside=node_grants,
                oversubscribe=workload.oversubscribe,
                n_threads=size[1] if workload.mode == "cpumempin" else None,
                order="numbered",
            )
            node_grants += grants
            grant_by_worker |= {worker.index: grant for worker, grant in zip(alike, grants, strict=True)}
    return grant_by_worker


def _explain_plan(workload: MPIWorkload, granularity: Granularity, wanted: float, cores: float) -> tuple[str, ...]:
    workers, nodes = format_count(granularity.workers, "worker"), format_count(granularity.nodes, "node")
    if workload.n_workers is not None:
        why = "set by n_workers"
    elif workload.profile is None:
        why = "the program's bottleneck is unknown, so the job is not cut"
    elif workload.profile == "network":
        why = "the program is network-bound, so its tasks stay together"
    else:
        why = f"the program is {workload.profile}-bound, and the policy is {workload.policy!r}"
    reasons = [f"{format_count(workload.n_tasks, 'task')} in {workers} on {nodes}: {why} (Algorithm 2)"]
    if wanted > cores + 1e-9:
        reasons.append(
            f"{wanted:g} cores were requested and {cores:g} are available: tasks share cores, and yield while they wait"
        )
    return tuple(reasons)


def _format_cpus(cpus: tuple[int, ...]) -> str:
    return format_numbered("CPU", cpus) if cpus else "any CPU"
