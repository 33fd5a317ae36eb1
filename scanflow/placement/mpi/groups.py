"""Task groups: which workers belong together, and the node that each worker goes to (thesis 6.3.2, Algorithms 4 and 5).

Printed, the score is computed for each pair of worker and node. Here only those nodes are looked at that can be the
best: those where the worker's group is already, and the first with the fewest other groups. The choice is the same; the
tests compare both.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scanflow.errors import InvalidError
from scanflow.placement.mpi.task_allocation import MPIWorker

__all__ = ["ClusterNode", "build_groups", "compute_node_score", "place_groups"]

_EPSILON = 1e-9  # cores are sums of fractions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A machine of a cluster, with its free resources."""

    name: str
    """Its name."""

    cores: float
    """Its free cores."""

    memory_bytes: int | None = None
    """None: unknown, so memory is not considered."""

    sockets: int = 1
    """The number of its sockets."""


def build_groups(workers: Sequence[MPIWorker], n_groups: int) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the workers of each group (Algorithm 4, step 1).

    Each worker joins the group with the smallest requests so far, the first of equals, so that groups are alike.
    """
    if not 1 <= n_groups <= len(workers):
        raise InvalidError(
            f"{len(workers)} workers cannot be divided into {n_groups} groups. Write 1 to {len(workers)}."
        )
    heap = [(0.0, 0, group) for group in range(n_groups)]
    members: list[list[int]] = [[] for _ in range(n_groups)]
    for worker in workers:
        cores, memory, group = heapq.heappop(heap)
        members[group].append(worker.index)
        heapq.heappush(heap, (cores + worker.cores, memory + (worker.memory_bytes or 0), group))
    return tuple(map(tuple, members))


def compute_node_score(
    group: int, node: str, *, bound: Sequence[str], group_size: int, groups_on_node: Sequence[int]
) -> int:
    """Return Algorithm 5's score of a node for a worker.

    Args:
        group: The worker's.
        node: Its name.
        bound: The node of each worker of the group that has one.
        group_size: Workers in the group, which adds the same to each node.
        groups_on_node: The groups that are on the node.
    """
    return sum(name == node for name in bound) + group_size - sum(other != group for other in groups_on_node)


def place_groups(
    workers: Sequence[MPIWorker], groups: Sequence[Sequence[int]], nodes: Sequence[ClusterNode]
) -> tuple[str, ...]:
    """Return the node of each worker (Algorithm 4, step 2, with the scores of Algorithm 5; the first of equal nodes).

    Raises:
        InvalidError: a worker fits no node.
    """
    placing = _GroupPlacement(nodes)
    placed: dict[int, int] = {}
    for group, members in enumerate(groups):  # WorkerOrderFn: the workers of one group after another
        bound: Counter[int] = Counter()
        for index in members:
            worker = workers[index]
            chosen = placing.find_best(worker, bound)
            if chosen is None:
                raise InvalidError(_explain_no_fit(worker, nodes, placing))
            placing.take(chosen, worker, group)
            bound[chosen] += 1
            placed[index] = chosen
    return tuple(nodes[placed[worker.index]].name for worker in workers)


class _GroupPlacement:
    """The free resources of each node, and the groups on it."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self.cores = [node.cores for node in nodes]
        self.memory = [node.memory_bytes for node in nodes]
        self._groups: list[set[int]] = [set() for _ in nodes]
        self._fewest = [(0, place) for place in range(len(nodes))]  # in order, so it is a heap

    def fits(self, place: int, worker: MPIWorker) -> bool:
        memory, needed = self.memory[place], worker.memory_bytes
        enough = memory is None or needed is None or needed <= memory
        return enough and worker.cores <= self.cores[place] + _EPSILON

    def find_best(self, worker: MPIWorker, bound: Counter[int]) -> int | None:
        """Return the node with the highest score. On nodes that hold its own group, that group is not counted."""
        candidates = [place for place in bound if self.fits(place, worker)]
        if (other := self._find_fewest_groups(worker, bound)) is not None:
            candidates.append(other)
        if not candidates:
            return None
        return min(candidates, key=lambda place: (len(self._groups[place]) - (place in bound) - bound[place], place))

    def _find_fewest_groups(self, worker: MPIWorker, bound: Counter[int]) -> int | None:
        """Return the first node outside ``bound`` that has room and the fewest groups."""
        aside: list[tuple[int, int]] = []
        first = None
        while self._fewest and first is None:
            entry = heapq.heappop(self._fewest)
            count, place = entry
            if count != len(self._groups[place]):
                continue  # it was noted before a group came
            aside.append(entry)
            if place not in bound and self.fits(place, worker):
                first = place
        for entry in aside:
            heapq.heappush(self._fewest, entry)
        return first

    def take(self, place: int, worker: MPIWorker, group: int) -> None:
        self.cores[place] -= worker.cores
        memory = self.memory[place]
        if memory is not None:
            self.memory[place] = memory - (worker.memory_bytes or 0)
        if group not in self._groups[place]:
            self._groups[place].add(group)
            heapq.heappush(self._fewest, (len(self._groups[place]), place))


def _explain_no_fit(worker: MPIWorker, nodes: Sequence[ClusterNode], placing: _GroupPlacement) -> str:
    if not nodes:
        return "There is no node for an MPI job."
    largest = max(nodes, key=lambda node: node.cores)
    needed = f"{worker.cores:g} cores" + ("" if worker.memory_bytes is None else f" and {worker.memory_bytes:,} bytes")
    return (
        f"Worker {worker.index} needs {needed}, and no node has room for it: the largest, {largest.name!r}, has "
        f"{largest.cores:g} cores for jobs, and beside the job's other workers at most {max(placing.cores):g} are "
        "left on one node. Request fewer tasks or cores, or cut the job into more workers: n_workers."
    )
