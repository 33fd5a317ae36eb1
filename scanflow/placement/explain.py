"""Explains a placement: describes each instance's grant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scanflow.app.quantities import format_memory
from scanflow.app.resources import AffinityMode
from scanflow.placement.cpulist import format_cpus, format_numbered
from scanflow.placement.place import Grant
from scanflow.placement.topology import Topology

__all__ = ["explain"]

_MODES = {
    "any": "all instances share the same CPUs, and the kernel schedules them",
    "cpu": "each instance has exclusive CPUs, evenly from all sockets; memory from any node",
    "cpumem": "each instance has exclusive CPUs in one socket, and that socket's memory",
    "cpumempin": "each instance has exclusive CPUs in one socket, that socket's memory, and a CPU for each thread",
}


def explain(
    topology: Topology, grants: Sequence[Grant], mode: AffinityMode, *, taken: Collection[int] = frozenset()
) -> list[str]:
    """Describe the affinity in a line, then each instance. ``taken``: CPUs that others have."""
    lines = [f"{mode}: {_MODES[mode]}."]
    if mode == "any":
        if grants:
            lines.append(
                f"{format_numbered('instance', range(1, len(grants) + 1))}: {_describe_cpus(topology, grants[0])}"
            )
        return lines
    for place, grant in enumerate(grants):
        others = {other + 1: neighbour for other, neighbour in enumerate(grants) if other != place}
        facts = [
            _describe_cpus(topology, grant),
            *_describe_siblings(topology, grant, others),
            *_describe_sharing(grant, others, taken),
        ]
        if grant.thread_cpus:
            facts.append(f"threads on {', '.join(map(str, grant.thread_cpus))}")
        lines.append(f"instance {place + 1}: {'; '.join(facts)}")
    return lines


def _describe_cpus(topology: Topology, grant: Grant) -> str:
    sockets = sorted({topology.core_of[cpu].socket for cpu in grant.cpus})
    text = f"{format_numbered('CPU', grant.cpus)} of {format_numbered('socket', sockets)}"
    caches = {group for cpu in grant.cpus if (group := topology.cache_group(cpu, 3)) is not None}
    if caches:
        sizes = {cache.size_bytes for cache in topology.caches if cache.level == 3 and set(cache.cpus) & caches}
        size = f" of {format_memory(next(iter(sizes)) or 0)}" if len(sizes) == 1 and None not in sizes else ""
        text += f", {'one L3' if len(caches) == 1 else f'{len(caches)} L3 caches'}{size}"
    near = topology.list_nearest_memory(grant.cpus)
    if len(topology.nodes) > 1:
        text += f", memory of {format_numbered('node', grant.memory_nodes)}"
        homes = {topology.node_of[cpu].id for cpu in grant.cpus}
        if near == grant.memory_nodes and not homes >= set(near):
            text += " (the nearest with memory)"
    if any(topology.core_of[cpu].tier for cpu in grant.cpus):
        slow = [cpu for cpu in grant.cpus if topology.core_of[cpu].tier]
        text += (
            f"; {'slower cores' if len(slow) == len(grant.cpus) else f'slower cores among them ({format_cpus(slow)})'}"
        )
    return text


def _describe_siblings(topology: Topology, grant: Grant, others: dict[int, Grant]) -> Iterable[str]:
    own = set(grant.cpus)
    siblings = {cpu for own_cpu in own for cpu in topology.core_of[own_cpu].cpus} & set(topology.effective_cpus) - own
    if doubled := len(own) - len({topology.core_of[cpu].cpus for cpu in own}):
        yield f"{doubled} of them siblings of its other CPUs"
    sharing = [number for number, other in others.items() if siblings & set(other.cpus)]
    if sharing:
        yield f"shares cores with {format_numbered('instance', sharing)}"
    elif siblings:
        yield f"{format_numbered('sibling', siblings)} left idle"


def _describe_sharing(grant: Grant, others: dict[int, Grant], taken: Collection[int]) -> Iterable[str]:
    sharing = [number for number, other in others.items() if set(other.cpus) & set(grant.cpus)]
    if sharing:
        yield f"shares CPUs with {format_numbered('instance', sharing)}"
    if overlap := set(grant.cpus) & set(taken):
        yield f"{format_numbered('CPU', overlap)} also used by others"
