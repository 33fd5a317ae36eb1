"""The order in which cores are used, so that instances share caches where that is useful.

Two busy siblings get far less than two cores' worth done (3.5 Gbit/s beside 5.5 for one core and 7.1 for two). So work
is spread over distinct cores first, and over distinct L2 and L3 caches, as far as it does not share data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from scanflow.placement.topology import Core, Topology

_T = TypeVar("_T")

Order = Literal["apart", "together", "numbered"]
"""``apart``: instances share as few caches as possible; ``together``: as many as possible, for work on the same
data; ``numbered``: by number, as the thesis counts. The cores of one instance share an L3 if they fit."""


def sort_cpus(topology: Topology, order: Order = "apart", cpus: Iterable[int] | None = None) -> tuple[int, ...]:
    """Return CPUs (default: all that may be used) in the order in which single threads of work should take them."""
    allowed = set(topology.effective_cpus if cpus is None else cpus)
    threads = [[cpu for cpu in core.cpus if cpu in allowed] for core in _order_cores(topology, order)]
    if order != "together":
        return interleave(threads)
    groups = _group(filter(None, threads), lambda own: _get_cache(topology, own[0], 3))
    return tuple(cpu for group in groups for cpu in interleave(group))


def pick(topology: Topology, cores: Sequence[Core], count: int, order: Order) -> list[Core]:
    """Return ``count`` of these cores for one instance: of one kind and in one L3 if possible."""
    if count > len(cores):
        raise ValueError(count)
    same = next((tier for tier in _group_by_tier(cores) if len(tier) >= count), None)
    pool = sorted(same or cores, key=lambda core: (core.tier, core.socket, core.cpus[0]))
    if order == "numbered":
        return pool[:count]
    groups = _group_by_l3(topology, pool)
    chosen: list[Core] = []
    while len(chosen) < count:
        group = _choose_group(groups, count - len(chosen), order if not chosen else "together")
        groups.remove(group)
        chosen += _spread_l2(topology, group)[: count - len(chosen)]
    return chosen


def _choose_group(groups: Sequence[list[Core]], count: int, order: Order) -> list[Core]:
    enough = [group for group in groups if len(group) >= count]
    if not enough:
        return max(groups, key=len)
    return max(enough, key=len) if order == "apart" else min(enough, key=len)


def _group(items: Iterable[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    groups: defaultdict[object, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _group_by_l3(topology: Topology, cores: Iterable[Core]) -> list[list[Core]]:
    return _group(cores, lambda core: _get_cache(topology, core.cpus[0], 3))


def _get_cache(topology: Topology, cpu: int, level: int) -> object:
    """Return a key of a CPU's cache; without an L3, its socket and node, and without an L2, the CPU."""
    shared = topology.cache_group(cpu, level)
    if shared is None and level == 3:
        return topology.core_of[cpu].socket, topology.node_of[cpu].id
    return cpu if shared is None else shared


def _spread_l2(topology: Topology, cores: Sequence[Core]) -> list[Core]:
    """Return cores of one L3 with a core of each L2 in turn, the L2 with most cores left first."""
    shared = _group(cores, lambda core: _get_cache(topology, core.cpus[0], 2))
    return list(interleave(sorted(shared, key=len, reverse=True)))


def _group_by_tier(cores: Iterable[Core]) -> list[list[Core]]:
    return _group(sorted(cores, key=lambda core: core.tier), lambda core: core.tier)


def _order_cores(topology: Topology, order: Order) -> list[Core]:
    ordered: list[Core] = []
    for tier in _group_by_tier(topology.ordered_cores):
        if order == "numbered":
            ordered += tier
            continue
        groups = [_spread_l2(topology, group) for group in _group_by_l3(topology, tier)]
        ordered += interleave(groups) if order == "apart" else [core for group in groups for core in group]
    return ordered


def interleave(groups: Sequence[Sequence[_T]]) -> tuple[_T, ...]:
    """Return the first element of each group, then the second ones, and so on."""
    longest = max(map(len, groups), default=0)
    return tuple(group[place] for place in range(longest) for group in groups if place < len(group))
