"""Draws a machine as SVG: sockets, NUMA nodes, caches, cores with their siblings, and what runs on which CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_letters
from typing import NamedTuple

from markupsafe import Markup

from scanflow.app.quantities import format_count, round_memory
from scanflow.drawing import svg
from scanflow.drawing.cpu_map import (
    CELL_HEIGHT_PX,
    GAP_PX,
    LABEL_FONT_PX,
    CoreBox,
    CoreGroup,
    CpuBox,
    CpuPanel,
    draw_cpu_map,
    draw_label,
)
from scanflow.placement.cpulist import format_numbered
from scanflow.placement.topology import Core, Topology

FILLS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00")
"""For labelled cells with dark labels, safe for the colour-blind: the scheme 'light' of Tol (2021)."""

SEVERAL_FILL = "#DDDDDD"
FREE, FORBIDDEN, SEVERAL = "", "×", "+"

SWATCH_PX = 27.0
LEGEND_ROW_PX, LEGEND_COLUMN_PX = 20.0, 300.0
MAX_LISTED = 40
"""How many instances the legend has."""


class PlacedProcess(NamedTuple):
    """An instance, a step or a rank, and the CPUs that it is bound to; none: it may use any."""

    name: str
    cpus: tuple[int, ...] = ()
    address: str | None = None


@dataclass(frozen=True, slots=True)
class _Occupant:
    """What is on the same CPUs, and its letter and colour."""

    label: str
    fill: str
    names: tuple[str, ...]
    cpus: tuple[int, ...]
    address: str | None

    @property
    def title(self) -> str:
        names = f"{self.names[0]} to {self.names[-1]}" if len(self.names) > 3 else ", ".join(self.names)
        return f"{names}: {format_numbered('CPU', self.cpus) if self.cpus else 'any CPU'}"


def generate_labels() -> Iterator[str]:
    """Yield ``a`` to ``z``, ``A`` to ``Z``, ``aa``, ``ab`` and so on."""
    yield from ascii_letters
    for first, second in product(ascii_letters, repeat=2):
        yield first + second


def draw_topology(topology: Topology, processes: Iterable[PlacedProcess] = (), *, width: float = svg.WIDTH) -> Markup:
    """Draw a machine and what runs on it: each process that is bound to CPUs has a colour and a letter there.

    A column is a core, its siblings below each other. ``processes`` on the same CPUs share a letter.
    """
    occupants = _list_occupants(processes)
    heading = svg.draw_text(_describe(topology, occupants), 0.0, 13.0, "ink", anchor="start")
    drawn, end = draw_cpu_map(list(_build_panels(topology, occupants)), 20.0, width=width)
    legend, height = _draw_legend(topology, occupants, end + GAP_PX, width)
    title = f"CPUs of {topology.title or 'a machine'} and what runs on them"
    return svg.draw_figure(end + GAP_PX + height, title, heading, drawn, legend, width=width)


def _list_occupants(processes: Iterable[PlacedProcess]) -> list[_Occupant]:
    groups: defaultdict[tuple[int, ...], list[PlacedProcess]] = defaultdict(list)
    for process in processes:
        groups[process.cpus].append(process)
    labels = generate_labels()
    occupants = []
    for place, (cpus, own) in enumerate(sorted(groups.items(), key=lambda item: not item[0])):  # the unbound last
        addresses = {process.address for process in own}
        occupants.append(
            _Occupant(
                label=next(labels) if cpus else "",
                fill=FILLS[place % len(FILLS)],
                names=tuple(process.name for process in own),
                cpus=cpus,
                address=addresses.pop() if len(addresses) == 1 else None,
            )
        )
    return occupants


def _describe(topology: Topology, occupants: Sequence[_Occupant]) -> str:
    usable = set(topology.effective_cpus)
    free = usable.difference(*(occupant.cpus for occupant in occupants))
    sizes = {"socket": topology.sockets, "core": topology.cores, "CPU": topology.cpus}
    counts = ", ".join(format_count(len(some), noun) for noun, some in sizes.items())
    return f"{counts}: {len(usable) - len(free)} bound, {len(free)} free"


def _build_panels(topology: Topology, occupants: Sequence[_Occupant]) -> Iterator[CpuPanel]:
    """Yield the sockets, with what is on their CPUs."""
    occupied: defaultdict[int, list[_Occupant]] = defaultdict(list)
    for occupant in occupants:
        for cpu in occupant.cpus:
            occupied[cpu].append(occupant)
    for socket in topology.sockets:
        cores = [core for core in topology.ordered_cores if core.socket == socket]
        facts = _list_features(topology, cores)
        groups = [
            CoreGroup(name, [_build_core(topology, core, occupied) for core in own])
            for name, own in _iterate_groups(topology, cores)
        ]
        yield CpuPanel(f"socket {socket}", " · ".join([f"socket {socket}", *facts]), groups, facts)


def _build_core(topology: Topology, core: Core, occupied: Mapping[int, Sequence[_Occupant]]) -> CoreBox:
    return CoreBox([_build_cpu(topology, cpu, occupied.get(cpu, ())) for cpu in core.cpus], is_slow=core.tier > 0)


def _build_cpu(topology: Topology, cpu: int, here: Sequence[_Occupant]) -> CpuBox:
    name = f"CPU {cpu}{' (a slower core)' if topology.core_of[cpu].tier else ''}"
    if not here:
        is_usable = cpu in topology.effective_cpus
        text, state = (str(cpu), "free") if is_usable else (FORBIDDEN, "not allowed for this process")
        return CpuBox(text, f"{name}: {state}")
    label, fill = (SEVERAL, SEVERAL_FILL) if len(here) > 1 else (here[0].label, here[0].fill)
    names = "; ".join(occupant.title for occupant in here)
    return CpuBox(label, f"{name}: {label if len(here) == 1 else ''} {names}", fill)


def _iterate_groups(topology: Topology, cores: Sequence[Core]) -> Iterator[tuple[str, list[Core]]]:
    """Yield the cores of a socket by what they share: the NUMA node and the L3 cache, each with its size."""
    groups: defaultdict[tuple[int, int | None], list[Core]] = defaultdict(list)
    for core in cores:
        groups[topology.node_of[core.cpus[0]].id, topology.cache_group(core.cpus[0], 3)].append(core)
    nodes = {node for node, _ in groups}
    for (node, cache), own in groups.items():
        parts = [f"node {node}"] if len(nodes) > 1 else []
        parts += [_format_cache(topology, 3, cache)] if len(groups) > len(nodes) and cache is not None else []
        yield " · ".join(parts), own


def _format_cache(topology: Topology, level: int, first: int) -> str:
    sizes = [cache.size_bytes for cache in topology.caches if cache.level == level and cache.cpus[0] == first]
    return f"L{level}" if not sizes or sizes[0] is None else f"L{level} {round_memory(sizes[0])}"


def _list_features(topology: Topology, cores: Sequence[Core]) -> list[str]:
    """Return what a socket has, the most important first: cores, NUMA nodes, memory, caches."""
    own = {cpu for core in cores for cpu in core.cpus}
    nodes = [node for node in topology.nodes if own & set(node.cpus)]
    memory = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    parts = [format_count(len(cores), "core")]
    parts.append(f"node {nodes[0].id}" if len(nodes) == 1 else format_count(len(nodes), "NUMA node"))
    parts += [round_memory(sum(memory))] if memory else []
    for level in (3, 2):
        caches = [cache for cache in topology.caches if cache.level == level and own & set(cache.cpus)]
        sizes = {cache.size_bytes for cache in caches}
        if caches:
            size = round_memory(size) if len(sizes) == 1 and (size := sizes.pop()) else ""
            number = f"{len(caches)} × " if len(caches) > 1 else ""
            parts.append(f"{number}L{level} {size}".rstrip())
    return parts


def _draw_legend(
    topology: Topology, occupants: Sequence[_Occupant], y: float, width: float
) -> tuple[svg.Element, float]:
    """Return the meaning of letters and marks below the sockets, and its height."""
    columns = max(1, int(width // LEGEND_COLUMN_PX))
    column_px = width / columns
    parts, rows = list[svg.Element](), 0
    for place, occupant in enumerate(occupants[:MAX_LISTED]):
        row, column = divmod(place, columns)
        parts.append(_draw_legend_entry(occupant, column * column_px, y + row * LEGEND_ROW_PX, column_px))
        rows = row + 1
    if len(occupants) > MAX_LISTED:
        more = f"and {len(occupants) - MAX_LISTED} more"
        parts.append(svg.draw_text(more, 0.0, y + rows * LEGEND_ROW_PX + 13, "soft", anchor="start"))
        rows += 1
    meanings = _list_mark_meanings(topology, occupants)
    is_short = svg.estimate_text_width(" ".join(meanings), LABEL_FONT_PX) <= width
    for line in [" ".join(meanings)] if is_short and meanings else meanings:
        shown = svg.shorten_text(line, width, LABEL_FONT_PX)
        at = y + rows * LEGEND_ROW_PX + 13
        parts.append(svg.draw_text(shown, 0.0, at, "soft", anchor="start", font_size=LABEL_FONT_PX))
        rows += 1
    return svg.join_elements(parts), rows * LEGEND_ROW_PX + 2


def _draw_legend_entry(occupant: _Occupant, x: float, y: float, width: float) -> svg.Element:
    shown = svg.shorten_text(occupant.title, width - SWATCH_PX - 12)
    parts = [
        svg.draw_element("title", svg.escape_text("\n".join([occupant.title, *occupant.names]))),
        svg.draw_text(shown, x + SWATCH_PX + 6, y + 13, "ink", anchor="start"),
    ]
    if occupant.cpus:
        swatch = {"width": SWATCH_PX, "height": CELL_HEIGHT_PX, "rx": 2, "fill": occupant.fill}
        parts.append(svg.draw_element("rect", x=x, y=y, **swatch))
        parts.append(draw_label(occupant.label, x + SWATCH_PX / 2, y + 13))
    attributes: Mapping[str, str] = {} if occupant.address is None else {"href": occupant.address}
    return svg.draw_element("a" if attributes else "g", *parts, **attributes)


def _list_mark_meanings(topology: Topology, occupants: Sequence[_Occupant]) -> list[str]:
    loads: defaultdict[int, int] = defaultdict(int)
    for occupant in occupants:
        for cpu in occupant.cpus:
            loads[cpu] += 1
    lines = ["Numbers are free CPUs."] if set(topology.effective_cpus) - set(loads) else []
    if topology.threads_per_core > 1:
        lines.append("A column is a core, its siblings below each other.")
    if any(core.tier for core in topology.cores):
        lines.append("Dashed cores are slower.")
    if any(number > 1 for number in loads.values()):
        lines.append(f"{SEVERAL} several on one CPU.")
    if topology.effective_cpus != topology.cpus:
        lines.append(f"{FORBIDDEN} not allowed for this process.")
    if topology.offline:
        lines.append(f"Offline: {format_numbered('CPU', topology.offline)}.")
    return lines
