"""Drawing of a machine as text: sockets, nodes, caches, cores with their siblings, and the instances on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scanflow.app.quantities import format_count
from scanflow.placement.cpulist import format_numbered
from scanflow.placement.place import Grant
from scanflow.placement.topology import Core, Topology
from scanflow_client.formatting.text import format_bytes

_Key = TypeVar("_Key")

FREE, FORBIDDEN, SEVERAL = "·", "×", "+"


class Occupant(NamedTuple):
    """An instance, or several on the same CPUs, and its letter."""

    label: str
    name: str
    cpus: tuple[int, ...]


class Panel(NamedTuple):
    """The drawing of a socket."""

    title: str
    lines: tuple[str, ...]
    """A CPU is its number and the letter of its occupant, or another mark."""


def describe_topology(topology: Topology) -> list[str]:
    """Return the machine's hardware, and the part of it that this process may use."""
    memory = [node.memory_bytes for node in topology.nodes if node.memory_bytes]
    sizes = {"socket": topology.sockets, "NUMA node": topology.nodes, "core": topology.cores}
    parts = [format_count(len(some), noun) for noun, some in sizes.items()]
    if topology.threads_per_core > 1:
        parts.append(f"{format_count(len(topology.cpus), 'CPU')} (up to {topology.threads_per_core} siblings a core)")
    if memory:
        parts.append(format_bytes(sum(memory)))
    lines = [f"{topology.title or 'A machine'}: {', '.join(parts)}"]
    usable, count = topology.effective_cpus, topology.effective_count
    if usable == topology.cpus and count == len(usable):
        lines.append(f"This process may use all of it: {format_count(count, 'CPU')}.")
    else:
        reasons = []
        if usable != topology.cpus:
            reasons.append(f"affinity mask or cpuset: {format_numbered('CPU', usable)}")
        if topology.quota is not None:
            reasons.append(f"CPU quota: {topology.quota:g}")
        lines.append(f"This process may use {format_count(count, 'CPU')} ({'; '.join(reasons)}).")
    if topology.memory_limit_bytes is not None:
        lines.append(f"Memory limit: {format_bytes(topology.memory_limit_bytes)}.")
    if topology.offline:
        lines.append(f"Offline: {format_numbered('CPU', topology.offline)}.")
    if slow := [cpu for core in topology.cores if core.tier for cpu in core.cpus]:
        lines.append(f"Slower cores: {format_numbered('CPU', slow)}.")
    return lines


def format_legend(topology: Topology, occupants: Sequence[Occupant]) -> str:
    """Return the meaning of the marks in the drawing."""
    occupied = _group_labels(occupants)
    meanings = [f"{FREE} free"] if set(topology.effective_cpus) - set(occupied) else []
    if topology.effective_cpus != topology.cpus:
        meanings.append(f"{FORBIDDEN} not allowed for this process")
    if any(len(labels) > 1 for labels in occupied.values()):
        meanings.append(f"{SEVERAL} several")
    stacked = " A column is a core, its siblings one below the other." if topology.threads_per_core > 1 else ""
    bars = " Cores between bars share an L3." if _has_several_l3(topology) else ""
    marks = f"{'  '.join(meanings)}." if meanings else ""
    return f"{marks}{stacked}{bars}".strip()


def format_placement(occupants: Sequence[Occupant], grants: Sequence[Grant], reasons: Sequence[str]) -> list[str]:
    """Return the occupants of the letters, and the reasons for the placement of planned instances."""
    letters = {occupant.cpus: occupant.label for occupant in occupants}
    planned = {grant.cpus for grant in grants}
    lines = [
        f"{occupant.label}  {occupant.name}: {format_numbered('CPU', occupant.cpus)}"
        for occupant in occupants
        if occupant.cpus not in planned
    ]
    return lines + [f"{letters[grants[n - 1].cpus]}  {reason}" if n else reason for n, reason in enumerate(reasons)]


def draw_topology(topology: Topology, occupants: Sequence[Occupant], *, width: int) -> list[Panel]:
    """Return a panel for each socket, with lines of at most ``width`` where a cache's cores can be broken."""
    occupied = {cpu: labels[0] if len(labels) == 1 else SEVERAL for cpu, labels in _group_labels(occupants).items()}
    digits = len(str(max(topology.cpus)))
    wide = max([1, *(len(occupant.label) for occupant in occupants)])

    def cell(cpu: int | None) -> str:
        if cpu is None:
            return " " * (digits + wide)
        free = FREE if cpu in topology.effective_cpus else FORBIDDEN
        return f"{cpu:>{digits}}{occupied.get(cpu, free):<{wide}}"

    panels = []
    for socket in topology.sockets:
        cores = [core for core in topology.ordered_cores if core.socket == socket]
        lines: list[str] = []
        nodes = _group_cores(cores, lambda core: topology.node_of[core.cpus[0]].id)
        for node, own in nodes.items():
            if len(nodes) > 1:
                lines.append(_format_node_title(topology, node))
            lines += _draw_rows(topology, own, cell, width=width, cell_width=digits + wide)
        title = _format_socket_title(topology, socket, cores, list(nodes))
        panels.append(Panel(title, tuple(lines)))
    if empty := [node for node in topology.nodes if not node.cpus]:
        panels.append(Panel("memory without CPUs", tuple(_format_node_title(topology, node.id) for node in empty)))
    return panels


def _draw_rows(
    topology: Topology, cores: Sequence[Core], cell: Callable[[int | None], str], *, width: int, cell_width: int
) -> Iterator[str]:
    """Draw cores as columns: caches side by side while they fit, and large ones broken into several rows."""
    most = max(1, (width + 1) // (cell_width + 1))
    groups = [
        group[first : first + most]
        for group in _group_cores(cores, lambda core: topology.cache_group(core.cpus[0], 3)).values()
        for first in range(0, len(group), most)
    ]
    rows: list[list[list[Core]]] = [[]]
    used = 0
    for group in groups:
        size = len(group) * (cell_width + 1) + 2
        if rows[-1] and used + size - 3 > width:
            rows.append([])
            used = 0
        rows[-1].append(group)
        used += size
    for row in rows:
        for turn in range(max(len(core.cpus) for group in row for core in group)):
            groups_of_cells = (
                [cell(core.cpus[turn] if turn < len(core.cpus) else None) for core in group] for group in row
            )
            yield " │ ".join(" ".join(cells) for cells in groups_of_cells).rstrip()


def _format_socket_title(topology: Topology, socket: int, cores: Sequence[Core], nodes: Sequence[int]) -> str:
    parts = [f"socket {socket}", format_count(len(cores), "core")]
    if len(nodes) == 1:
        parts.insert(1, _format_node_title(topology, nodes[0]))
    own = {cpu for core in cores for cpu in core.cpus}
    caches = [cache for cache in topology.caches if cache.level == 3 and own & set(cache.cpus)]
    if caches:
        sizes = {cache.size_bytes for cache in caches}
        size = next(iter(sizes)) if len(sizes) == 1 else None
        number = "L3" if len(caches) == 1 else f"{len(caches)} L3"
        parts.append(number if size is None else f"{number} of {format_bytes(size)}")
    return " · ".join(parts)


def _format_node_title(topology: Topology, number: int) -> str:
    node = next(candidate for candidate in topology.nodes if candidate.id == number)
    spread = len({topology.core_of[cpu].socket for cpu in node.cpus}) > 1
    memory = format_bytes(node.memory_bytes) if node.memory_bytes else "no memory"
    amount = "" if node.memory_bytes is None else f" ({memory})"
    return f"{'part of ' if spread else ''}node {number}{amount}"


def _has_several_l3(topology: Topology) -> bool:
    homes = [topology.core_of[cache.cpus[0]].socket for cache in topology.caches if cache.level == 3]
    return len(homes) > len(set(homes))


def _group_labels(occupants: Iterable[Occupant]) -> Mapping[int, list[str]]:
    occupied: defaultdict[int, list[str]] = defaultdict(list)
    for occupant in occupants:
        for cpu in occupant.cpus:
            occupied[cpu].append(occupant.label)
    return dict(occupied)


def _group_cores(cores: Iterable[Core], key: Callable[[Core], _Key]) -> dict[_Key, list[Core]]:
    groups: defaultdict[_Key, list[Core]] = defaultdict(list)
    for core in cores:
        groups[key(core)].append(core)
    return groups
