"""The load of each CPU, and the choice of an instance's CPUs in an area."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from scanflow.app.resources import AffinityMode
from scanflow.errors import InvalidError
from scanflow.placement.cpu_order import Order, interleave, pick, sort_cpus
from scanflow.placement.topology import Core, Topology

FULL = 1000
"""A CPU's capacity, in thousandths of a core."""


def to_milli(cores: float) -> int:
    amount = ceil(Fraction(cores).limit_denominator(10**6) * FULL)
    if amount < 1:
        raise InvalidError(f"An instance cannot have {cores} cores. Write a number above zero, such as 2 or 0.5.")
    return amount


class Demand(NamedTuple):
    instances: int
    milli: int
    mode: AffinityMode
    n_threads: int | None
    memory_bytes: int | None

    @property
    def whole(self) -> int:
        return self.milli // FULL

    @property
    def part(self) -> int:
        return self.milli % FULL

    @property
    def cores(self) -> float:
        return self.milli / FULL


class Occupancy:
    """The load of each CPU and node of a machine.

    A *layer* says how full a CPU may be: 0 takes what nobody has, 1 shares CPUs with one other instance, and so on.
    """

    def __init__(
        self, topology: Topology, loads: Mapping[int, int], order: Order, memory: Mapping[int, int | None]
    ) -> None:
        self.topology = topology
        self.loads = {cpu: loads.get(cpu, 0) for cpu in topology.effective_cpus}
        self.memory = dict(memory)
        self._order: Order = order
        effective = set(topology.effective_cpus)
        self._threads = {
            core.cpus: [cpu for cpu in core.cpus if cpu in effective]
            for core in topology.cores
            if effective & set(core.cpus)
        }

    def copy(self) -> Occupancy:
        return Occupancy(self.topology, self.loads, self._order, self.memory)

    @property
    def layers(self) -> int:
        """The number of layers until every CPU can be shared once more than now."""
        return max(self.loads.values(), default=0) // FULL + 2

    def open(self, area: Iterable[int], layer: int = 0) -> list[int]:
        """Return the CPUs of an area that can take a whole core's work."""
        return [cpu for cpu in area if self.loads[cpu] <= layer * FULL]

    def free_cores(self, area: Iterable[int]) -> list[Core]:
        return self._list_whole_cores(self.open(area))

    def fits(self, area: Sequence[int], whole: int, part: int, layer: int) -> bool:
        """Return whether an area has this many open CPUs, and a part of another (thousandths)."""
        spare = len(self.open(area, layer)) - whole
        if spare < 0:
            return False
        return not part or spare > 0 or any(self.list_shareable(area, part, layer))

    def has_memory(self, nodes: Iterable[int], amount: int | None) -> bool:
        """Return whether nodes have this much free memory; true if a size is unknown."""
        remaining = [self.memory.get(node) for node in nodes]
        return amount is None or None in remaining or sum(size or 0 for size in remaining) >= amount

    def use_memory(self, nodes: Sequence[int], amount: int | None) -> None:
        for node in nodes:
            remaining = self.memory.get(node)
            if remaining is not None and amount is not None:
                self.memory[node] = remaining - amount // len(nodes)

    def take(
        self, area: Sequence[int], whole: int, part: int, layer: int, share: int
    ) -> tuple[list[int], int | None] | None:
        """Take whole CPUs and a part of another; return them in thread order, and the shared one. None: too few.

        ``share``: free cores that this instance may use up before siblings, those of its own cores first.
        """
        chosen: list[int] = []
        for level in range(layer + 1):
            if len(chosen) < whole:
                pool = [cpu for cpu in self.open(area, level) if cpu not in chosen]
                chosen += self._choose(pool, min(whole - len(chosen), len(pool)), share)
        if len(chosen) < whole:
            return None
        shared = self._place_part([cpu for cpu in area if cpu not in chosen], part, layer) if part else None
        if part and shared is None:
            return None
        for cpu in chosen:
            self.loads[cpu] += FULL
        if shared is not None:
            self.loads[shared] += part
            chosen.append(shared)
        return chosen, shared

    def list_shareable(self, area: Iterable[int], part: int, layer: int) -> list[int]:
        """Return the CPUs that are partly taken and have capacity for this part."""
        return [cpu for cpu in area if self.loads[cpu] % FULL and self.loads[cpu] + part <= (layer + 1) * FULL]

    def _place_part(self, area: Sequence[int], part: int, layer: int) -> int | None:
        for level in range(layer + 1):
            if shared := self.list_shareable(area, part, level):
                return max(shared, key=lambda cpu: (self.loads[cpu], -cpu))
            if pool := self.open(area, level):
                return self._choose(pool, 1, 1)[0]
        return None

    def _choose(self, pool: Sequence[int], count: int, share: int) -> list[int]:
        """Return ``count`` CPUs of ``pool``: first one of each fully free core, then their siblings."""
        if not count:
            return []
        whole = self._list_whole_cores(pool)
        n_cores = max(ceil(count / self.topology.threads_per_core), min(count, share))
        cores = pick(self.topology, whole, min(n_cores, len(whole)), self._order)
        threads = [self._threads[core.cpus] for core in cores]
        spread = list(interleave(threads))
        rest = [cpu for cpu in sort_cpus(self.topology, self._order, pool) if cpu not in spread]
        return (spread + rest)[:count]

    def _list_whole_cores(self, pool: Iterable[int]) -> list[Core]:
        there = set(pool)
        return [
            core
            for core in self.topology.ordered_cores
            if core.cpus in self._threads and there.issuperset(self._threads[core.cpus])
        ]


def list_sockets(topology: Topology) -> list[tuple[int, ...]]:
    """Return each socket's CPUs that may be used."""
    return [
        tuple(cpu for cpu in topology.effective_cpus if topology.core_of[cpu].socket == socket)
        for socket in topology.sockets
    ]


def list_areas(topology: Topology) -> list[tuple[tuple[int, ...], int]]:
    """Return the areas that an instance with near memory may be in, each with its level, the narrowest first.

    0: a node inside a socket; 1: a socket of several nodes; 2: a node of several sockets, as in most virtual machines.
    """
    effective = topology.effective_cpus
    by_socket = list_sockets(topology)
    by_node = [tuple(cpu for cpu in effective if cpu in node.cpus) for node in topology.nodes]
    inner = [tuple(cpu for cpu in socket if cpu in node) for socket in by_socket for node in by_node]
    levels: dict[tuple[int, ...], int] = {}
    for level, group in enumerate((inner, by_socket, by_node)):
        for area in filter(None, group):
            levels.setdefault(area, level)
    return list(levels.items())
