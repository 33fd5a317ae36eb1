"""Places instances on CPUs and memory of a real machine: the affinity settings of the thesis, generalised.

On a free machine of equal sockets without SMT the result is that of the thesis' equations, number for number where an
L3 is a socket's. Elsewhere their numbers stand for what is there: cores that are free, siblings when cores run out,
sockets by what they have left, caches in the order of :mod:`scanflow.placement.cpu_order`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from scanflow.app.resources import AffinityMode
from scanflow.errors import InvalidError
from scanflow.placement.capacity_errors import check_budget, explain_fragmentation, explain_no_socket_fits
from scanflow.placement.cpu_order import Order
from scanflow.placement.occupancy import FULL, Demand, Occupancy, list_areas, list_sockets, to_milli
from scanflow.placement.topology import Topology

__all__ = ["Grant", "place"]


@dataclass(frozen=True, slots=True)
class Grant:
    """The CPUs and NUMA nodes that one instance may use."""

    cpus: tuple[int, ...]
    """The numbers of its CPUs."""

    memory_nodes: tuple[int, ...]
    """The NUMA nodes whose memory it uses."""

    thread_cpus: tuple[int, ...] = ()
    """CPUMEMPIN: the CPU of each thread."""

    cores: float = 1.0
    """Its share of these CPUs in cores: less than their number if it shares them."""

    part: int | None = None
    """The CPU that it uses only in part."""

    def compute_loads(self) -> dict[int, int]:
        """Return the load of this grant on each CPU, in thousandths."""
        amount = to_milli(self.cores)
        if self.part is not None:
            whole = dict.fromkeys(self.cpus, FULL)
            return whole | {self.part: amount - FULL * (len(self.cpus) - 1)}
        return dict.fromkeys(self.cpus, min(FULL, ceil(amount / len(self.cpus)))) if self.cpus else {}


class _FreeArea(NamedTuple):
    """An area for an instance, with the level it was found at and the layer of its CPUs."""

    level: int
    area: tuple[int, ...]
    layer: int


def place(
    topology: Topology,
    count: int,
    cores: float | None,
    mode: AffinityMode,
    *,
    taken: Collection[int] = frozenset(),
    beside: Iterable[Grant] = (),
    oversubscribe: bool = False,
    n_threads: int | None = None,
    order: Order = "apart",
    memory_bytes: int | None = None,
) -> tuple[Grant, ...]:
    """Return the grants of ``count`` instances with ``cores`` each (a fraction shares a CPU).

    ``any``: all share the first CPUs of every socket, as many as they ask for together (equation 3.2). ``cpu``: CPUs
    of its own, evenly from all sockets (3.3). ``cpumem``: CPUs of its own in one socket, or in its NUMA node if they
    fit there, and their memory (3.6). ``cpumempin``: the same, and a CPU for each of ``n_threads`` (default: one a
    CPU; 3.10).

    ``taken`` are CPUs that others have as a whole, ``beside`` the grants of instances that stay. ``oversubscribe`` lets
    instances share the least used CPUs when none are free, as old and new do while a service is resized. ``cores``
    None: not limited; where CPUs are an instance's own, it is one.
    """
    if count < 0 or count != int(count):
        raise InvalidError(f"The number of instances cannot be {count}. Write a whole number, 0 or more.")
    if n_threads is not None and n_threads < 1:
        raise InvalidError(f"An instance cannot have {n_threads} threads. Write a whole number above zero.")
    if count == 0:
        return ()
    if cores is None and mode == "any":
        everything = float(topology.effective_count)
        return (Grant(topology.effective_cpus, topology.memory_nodes, cores=everything),) * count
    demand = Demand(count, to_milli(1.0 if cores is None else cores), mode, n_threads, memory_bytes)
    memory = {node.id: node.memory_bytes for node in topology.nodes}
    occupancy = Occupancy(topology, _sum_loads(taken, beside), order, memory)
    check_budget(occupancy, demand, oversubscribe, _count_placeable)
    if mode == "any":
        return _place_any(occupancy, demand, oversubscribe)
    if mode == "cpu":
        return _place_cpu(occupancy, demand, oversubscribe)
    return _place_near(occupancy, demand, oversubscribe)


def _count_placeable(occupancy: Occupancy, demand: Demand) -> int:
    trial = occupancy.copy()
    for placed in range(demand.instances):
        if demand.mode == "any":
            break
        if demand.mode == "cpu":
            if _take_over_sockets(trial, demand.whole, demand.part, 1, False) is None:
                return placed
        elif (spot := _find_spot(trial, demand, False)) is None:
            return placed
        else:
            _take_near(trial, demand, spot, demand.whole)
    return demand.instances


def _sum_loads(taken: Iterable[int], beside: Iterable[Grant]) -> Counter[int]:
    loads: Counter[int] = Counter(dict.fromkeys(taken, FULL))
    for grant in beside:
        loads.update(grant.compute_loads())
    return loads


def _place_any(occupancy: Occupancy, demand: Demand, oversubscribe: bool) -> tuple[Grant, ...]:
    pool = min(ceil(demand.instances * demand.milli / FULL), occupancy.topology.effective_count)
    allocation = _take_over_sockets(occupancy, pool, 0, 1, oversubscribe)
    if allocation is None:
        raise InvalidError(explain_fragmentation(demand))
    grant = Grant(tuple(sorted(allocation[0])), occupancy.topology.memory_nodes, cores=demand.cores)
    return (grant,) * demand.instances


def _place_cpu(occupancy: Occupancy, demand: Demand, oversubscribe: bool) -> tuple[Grant, ...]:
    grants: list[Grant] = []
    for remaining in range(demand.instances, 0, -1):
        allocation = _take_over_sockets(occupancy, demand.whole, demand.part, remaining, oversubscribe)
        if allocation is None:
            raise InvalidError(explain_fragmentation(demand))
        grants.append(_build_grant(demand, *allocation, memory=occupancy.topology.memory_nodes))
    return tuple(sorted(grants, key=lambda grant: grant.cpus))


def _take_over_sockets(
    occupancy: Occupancy, whole: int, part: int, remaining: int, oversubscribe: bool
) -> tuple[list[int], int | None] | None:
    """Take CPUs for one of ``remaining`` instances, as many from each socket as its neighbours; the most open first."""
    parts = [area for area in list_sockets(occupancy.topology) if area]
    for layer in range(occupancy.layers if oversubscribe else 1):
        if not occupancy.fits(occupancy.topology.effective_cpus, whole, part, layer):
            continue
        spare = [len(occupancy.open(area, layer)) for area in parts]
        cores = [len(occupancy.free_cores(area)) for area in parts]
        lighter = [len(occupancy.open(area, layer - 1)) for area in parts] if layer else spare
        shares = [0] * len(parts)
        for _ in range(whole):
            *_, best = min(  # evenly, but that no CPU is shared once more while another socket has one that is not
                (shares[s] >= lighter[s], shares[s], shares[s] - cores[s], shares[s] - spare[s], s)
                for s in range(len(parts))
                if shares[s] < spare[s]
            )
            shares[best] += 1
        chosen: list[int] = []
        for area, share, free in zip(parts, shares, cores, strict=True):
            took = occupancy.take(area, share, 0, layer, max(1, free // remaining))
            assert took is not None  # shares were counted against what is open
            chosen += took[0]
        if not part:
            return chosen, None
        took = occupancy.take(
            [cpu for cpu in occupancy.topology.effective_cpus if cpu not in chosen], 0, part, layer, 1
        )
        return None if took is None else (chosen + took[0], took[1])
    return None


def _place_near(occupancy: Occupancy, demand: Demand, oversubscribe: bool) -> tuple[Grant, ...]:
    """Place with memory affinity: first choose an area for each instance, then take its share of that area."""
    trial = occupancy.copy()
    spots: list[_FreeArea] = []
    first: list[Grant] = []
    for _ in range(demand.instances):
        spot = _find_spot(trial, demand, oversubscribe)
        if spot is None:
            raise InvalidError(explain_no_socket_fits(occupancy, trial, demand, len(spots), oversubscribe))
        spots.append(spot)
        grant = _take_near(trial, demand, spot, demand.whole)
        assert grant is not None  # the spot was found for it
        first.append(grant)
    order = {area: place for place, (area, _) in enumerate(list_areas(occupancy.topology))}
    spots.sort(key=lambda spot: (spot.level, order[spot.area]))
    remaining = Counter(spot.area for spot in spots)
    grants: list[Grant] = []
    for spot in spots:
        share = len(occupancy.free_cores(spot.area)) // remaining[spot.area]
        remaining[spot.area] -= 1
        grant = _take_near(occupancy, demand, spot, share)
        if grant is None:
            return tuple(first)
        grants.append(grant)
    # Instances are alike, so they are numbered by where they are.
    return tuple(sorted(grants, key=lambda grant: (occupancy.topology.core_of[grant.cpus[0]].socket, grant.cpus)))


def _find_spot(occupancy: Occupancy, demand: Demand, oversubscribe: bool) -> _FreeArea | None:
    """Return the narrowest area with enough free CPUs: of those, the one with the most free cores."""
    places = list_areas(occupancy.topology)
    for layer in range(occupancy.layers if oversubscribe else 1):
        for level in sorted({level for _, level in places}):
            fitting = [
                area
                for area, own in places
                if own == level
                and occupancy.fits(area, demand.whole, demand.part, layer)
                and occupancy.has_memory(occupancy.topology.list_nearest_memory(area), demand.memory_bytes)
            ]
            if fitting:
                return _FreeArea(level, max(fitting, key=lambda area: _rank_area(occupancy, area, demand)), layer)
    return None


def _rank_area(occupancy: Occupancy, area: Sequence[int], demand: Demand) -> tuple[int, ...]:
    """Return a sort key of an area: load is first balanced over sockets or nodes, whichever are wider."""
    topology = occupancy.topology
    cores = len(occupancy.free_cores(area))
    socket, node = topology.core_of[area[0]].socket, topology.node_of[area[0]].id
    around = [
        cpu
        for cpu in topology.effective_cpus
        if topology.core_of[cpu].socket == socket or topology.node_of[cpu].id == node
    ]
    started = not demand.whole and bool(occupancy.list_shareable(area, demand.part, 0))
    capacity = sum(FULL - occupancy.loads[cpu] for cpu in area)
    return (cores >= demand.whole, started, len(occupancy.free_cores(around)), cores, capacity)


def _take_near(occupancy: Occupancy, demand: Demand, spot: _FreeArea, share: int) -> Grant | None:
    allocation = occupancy.take(spot.area, demand.whole, demand.part, spot.layer, share)
    if allocation is None:
        return None
    nodes = occupancy.topology.list_nearest_memory(allocation[0])
    occupancy.use_memory(nodes, demand.memory_bytes)
    return _build_grant(demand, *allocation, memory=nodes)


def _build_grant(demand: Demand, chosen: list[int], part: int | None, *, memory: tuple[int, ...]) -> Grant:
    threads: tuple[int, ...] = ()
    if demand.mode == "cpumempin":
        number = len(chosen) if demand.n_threads is None else demand.n_threads
        # Equation 3.12: process j is on core ceil(j / r) of its own, r processes being on a core; never less than one.
        per_core = max(Fraction(1), Fraction(number, len(chosen)))
        threads = tuple(chosen[ceil(j / per_core) - 1] for j in range(1, number + 1))
    return Grant(tuple(sorted(chosen)), memory, threads, demand.cores, part)
