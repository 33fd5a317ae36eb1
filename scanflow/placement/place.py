"""Which CPUs and memory each instance gets on a real machine: the affinity settings of the thesis, generalised.

On a free machine of equal sockets without SMT the result is that of :mod:`scanflow.placement.affinity`, number for
number where an L3 is a socket's. Elsewhere the equations' numbers stand for what is there: cores that are free,
siblings when cores run out, sockets by what they have left, caches in the order of :mod:`scanflow.placement.order`.
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
from scanflow.placement.order import Order
from scanflow.placement.room import FULL, Ask, Room, areas, sockets, to_milli
from scanflow.placement.shortage import check_budget, no_part, no_socket
from scanflow.placement.topology import Topology

__all__ = ["Grant", "place"]


@dataclass(frozen=True, slots=True)
class Grant:
    """Where one instance may run."""

    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    """NUMA nodes to take memory from; all that may be used where memory is not bound."""

    thread_cpus: tuple[int, ...] = ()
    """CPUMEMPIN: the CPU of each of its threads, in their order. Else none."""

    cores: float = 1.0
    """What it may use of these CPUs: less than their number where it shares them."""

    part: int | None = None
    """The CPU of which it has only a part: that of a fraction of a core."""

    def loads(self) -> dict[int, int]:
        """Return how much of each CPU this grant takes, in thousandths."""
        amount = to_milli(self.cores)
        if self.part is not None:
            whole = dict.fromkeys(self.cpus, FULL)
            return whole | {self.part: amount - FULL * (len(self.cpus) - 1)}
        return dict.fromkeys(self.cpus, min(FULL, ceil(amount / len(self.cpus)))) if self.cpus else {}


class _Spot(NamedTuple):
    """An area that was found for an instance: how wide it had to be looked for, which, and how full it may be."""

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
    """Return what each of ``count`` instances is granted, ``cores`` each (a fraction shares a CPU).

    ``any``: all instances share the first CPUs of every socket, as many as they ask for together (equation 3.2).
    ``cpu``: CPUs of its own, evenly from all sockets (3.3). ``cpumem``: CPUs of its own in one socket (or its NUMA
    node, if the instance fits there), and their memory (3.6). ``cpumempin``: the same, and a CPU for each of
    ``n_threads`` (default: one a CPU), several in turn if there are more (3.10).

    ``taken`` are CPUs that others have as a whole, ``beside`` the grants of instances that stay. Free CPUs are used
    first. ``oversubscribe`` lets instances share the least used CPUs when there are no more free ones, as the old and
    the new do for a moment when a service is cut anew. ``cores`` None: not limited; where CPUs are an instance's own,
    it is one. ``memory_bytes`` is what an instance will need of the memory it is bound to.

    Raises:
        InvalidError: there are too few CPUs, or no socket with enough; the message says what there is and what to
            write.
    """
    if count < 0 or count != int(count):
        raise InvalidError(f"There cannot be {count} instances. Write a whole number, 0 or more.")
    if n_threads is not None and n_threads < 1:
        raise InvalidError(f"An instance cannot have {n_threads} threads. Write a whole number above zero.")
    if count == 0:
        return ()
    if cores is None and mode == "any":
        everything = float(topology.effective_count)
        return (Grant(topology.effective_cpus, topology.memory_nodes, cores=everything),) * count
    ask = Ask(count, to_milli(1.0 if cores is None else cores), mode, n_threads, memory_bytes)
    memory = {node.id: node.memory_bytes for node in topology.nodes}
    room = Room(topology, _loads(taken, beside), order, memory)
    check_budget(room, ask, oversubscribe, _most)
    if mode == "any":
        return _place_any(room, ask, oversubscribe)
    if mode == "cpu":
        return _place_cpu(room, ask, oversubscribe)
    return _place_near(room, ask, oversubscribe)


def _most(room: Room, ask: Ask) -> int:
    """Return how many of the instances can be placed in what is free."""
    trial = room.copy()
    for placed in range(ask.instances):
        if ask.mode == "any":
            break
        if ask.mode == "cpu":
            if _over_sockets(trial, ask.whole, ask.part, 1, False) is None:
                return placed
        elif (spot := _find_spot(trial, ask, False)) is None:
            return placed
        else:
            _take_near(trial, ask, spot, ask.whole)
    return ask.instances


def _loads(taken: Iterable[int], beside: Iterable[Grant]) -> Counter[int]:
    loads: Counter[int] = Counter(dict.fromkeys(taken, FULL))
    for grant in beside:
        loads.update(grant.loads())
    return loads


def _place_any(room: Room, ask: Ask, oversubscribe: bool) -> tuple[Grant, ...]:
    pool = min(ceil(ask.instances * ask.milli / FULL), room.topology.effective_count)
    found = _over_sockets(room, pool, 0, 1, oversubscribe)
    if found is None:
        raise InvalidError(no_part(ask))
    grant = Grant(tuple(sorted(found[0])), room.topology.memory_nodes, cores=ask.cores)
    return (grant,) * ask.instances


def _place_cpu(room: Room, ask: Ask, oversubscribe: bool) -> tuple[Grant, ...]:
    grants: list[Grant] = []
    for left in range(ask.instances, 0, -1):
        found = _over_sockets(room, ask.whole, ask.part, left, oversubscribe)
        if found is None:
            raise InvalidError(no_part(ask))
        grants.append(_grant(ask, *found, memory=room.topology.memory_nodes))
    return tuple(sorted(grants, key=lambda grant: grant.cpus))


def _over_sockets(
    room: Room, whole: int, part: int, left: int, oversubscribe: bool
) -> tuple[list[int], int | None] | None:
    """Take CPUs for one of ``left`` instances, as many from each socket as its neighbours; the most open first."""
    parts = [area for area in sockets(room.topology) if area]
    for layer in range(room.layers if oversubscribe else 1):
        if not room.fits(room.topology.effective_cpus, whole, part, layer):
            continue
        spare = [len(room.open(area, layer)) for area in parts]
        cores = [len(room.free_cores(area)) for area in parts]
        lighter = [len(room.open(area, layer - 1)) for area in parts] if layer else spare
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
            took = room.take(area, share, 0, layer, max(1, free // left))
            assert took is not None  # shares were counted against what is open
            chosen += took[0]
        if not part:
            return chosen, None
        took = room.take([cpu for cpu in room.topology.effective_cpus if cpu not in chosen], 0, part, layer, 1)
        return None if took is None else (chosen + took[0], took[1])
    return None


def _place_near(room: Room, ask: Ask, oversubscribe: bool) -> tuple[Grant, ...]:
    """Place with memory affinity. First find how many instances go where, then give each its share of that place."""
    trial = room.copy()
    spots: list[_Spot] = []
    first: list[Grant] = []
    for _ in range(ask.instances):
        spot = _find_spot(trial, ask, oversubscribe)
        if spot is None:
            raise InvalidError(no_socket(room, trial, ask, len(spots), oversubscribe))
        spots.append(spot)
        grant = _take_near(trial, ask, spot, ask.whole)
        assert grant is not None  # the spot was found for it
        first.append(grant)
    order = {area: place for place, (area, _) in enumerate(areas(room.topology))}
    spots.sort(key=lambda spot: (spot.level, order[spot.area]))
    left = Counter(spot.area for spot in spots)
    grants: list[Grant] = []
    for spot in spots:
        share = len(room.free_cores(spot.area)) // left[spot.area]
        left[spot.area] -= 1
        grant = _take_near(room, ask, spot, share)
        if grant is None:
            return tuple(first)
        grants.append(grant)
    # Instances are alike, so they are numbered by where they are.
    return tuple(sorted(grants, key=lambda grant: (room.topology.core_of[grant.cpus[0]].socket, grant.cpus)))


def _find_spot(room: Room, ask: Ask, oversubscribe: bool) -> _Spot | None:
    """Return the narrowest area with enough free CPUs: of those, the one with the most free cores."""
    places = areas(room.topology)
    for layer in range(room.layers if oversubscribe else 1):
        for level in sorted({level for _, level in places}):
            fitting = [
                area
                for area, own in places
                if own == level
                and room.fits(area, ask.whole, ask.part, layer)
                and room.has_memory(room.topology.memory_near(area), ask.memory_bytes)
            ]
            if fitting:
                return _Spot(level, max(fitting, key=lambda area: _openness(room, area, ask)), layer)
    return None


def _openness(room: Room, area: Sequence[int], ask: Ask) -> tuple[int, ...]:
    """Return how good a place an area is: its socket or node, whichever is wider, is to be shared evenly first."""
    topology = room.topology
    cores = len(room.free_cores(area))
    socket, node = topology.core_of[area[0]].socket, topology.node_of[area[0]].id
    around = [
        cpu
        for cpu in topology.effective_cpus
        if topology.core_of[cpu].socket == socket or topology.node_of[cpu].id == node
    ]
    started = not ask.whole and bool(room.shared_for(area, ask.part, 0))
    capacity = sum(FULL - room.loads[cpu] for cpu in area)
    return (cores >= ask.whole, started, len(room.free_cores(around)), cores, capacity)


def _take_near(room: Room, ask: Ask, spot: _Spot, share: int) -> Grant | None:
    found = room.take(spot.area, ask.whole, ask.part, spot.layer, share)
    if found is None:
        return None
    nodes = room.topology.memory_near(found[0])
    room.use_memory(nodes, ask.memory_bytes)
    return _grant(ask, *found, memory=nodes)


def _grant(ask: Ask, chosen: list[int], part: int | None, *, memory: tuple[int, ...]) -> Grant:
    threads: tuple[int, ...] = ()
    if ask.mode == "cpumempin":
        number = len(chosen) if ask.n_threads is None else ask.n_threads
        # Equation 3.12: process j is on core ceil(j / r) of its own, r processes being on a core; never less than one.
        per_core = max(Fraction(1), Fraction(number, len(chosen)))
        threads = tuple(chosen[ceil(j / per_core) - 1] for j in range(1, number + 1))
    return Grant(tuple(sorted(chosen)), memory, threads, ask.cores, part)
