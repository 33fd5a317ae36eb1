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
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.topology import Core, Topology

FILLS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00")
"""For labelled cells with dark labels, safe for the colour-blind: the scheme 'light' of Tol (2021)."""

SEVERAL_FILL, LABEL_INK = "#DDDDDD", "#111111"
FREE, FORBIDDEN, SEVERAL = "", "×", "+"

WIDEST_CELL_PX, NARROWEST_CELL_PX, CELL_HEIGHT_PX, SWATCH_PX = 30, 17, 17.0, 27.0
CORE_GAP_PX, PADDING_PX, TITLE_PX, BLOCK_GAP_PX = 2.0, 6.0, 20.0, 6.0
SMALL_FONT_PX, NUMBER_FONT_PX = 11, 8.5
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
        return f"{names}: {f'CPUs {format_cpus(self.cpus)}' if self.cpus else 'any CPU'}"


class _Area(NamedTuple):
    x: float
    top: float
    right: float
    bottom: float


class _Block(NamedTuple):
    """Cores that are drawn together, such as those that share a cache, with what is written above them."""

    title: str
    cores: tuple[Core, ...]


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
    sizes = [float(size) for size in range(WIDEST_CELL_PX, NARROWEST_CELL_PX - 1, -1)]
    canvas = min((_Canvas(topology, occupants, width, size) for size in sizes), key=_Canvas.compute_height)
    y = TITLE_PX
    parts = [svg.draw_text(_describe(topology, occupants), 0.0, 13.0, "ink", anchor="start")]
    for socket in topology.sockets:
        parts.append(canvas.draw_socket(socket, y))
        y += canvas.measure_socket(socket) + BLOCK_GAP_PX
    legend, height = _draw_legend(topology, occupants, y, width)
    title = f"CPUs of {topology.title or 'a machine'} and what runs on them"
    return svg.draw_figure(y + height, title, *parts, legend, width=width)


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


class _Canvas:
    """Draws the cells of one machine at one width."""

    def __init__(self, topology: Topology, occupants: Sequence[_Occupant], width: float, cell_px: float) -> None:
        self._topology, self._width, self._cell_px = topology, width, cell_px
        self._cores = {
            socket: [core for core in topology.ordered_cores if core.socket == socket] for socket in topology.sockets
        }
        self._blocks = {socket: _list_blocks(topology, cores) for socket, cores in self._cores.items()}
        self._occupied: defaultdict[int, list[_Occupant]] = defaultdict(list)
        for occupant in occupants:
            for cpu in occupant.cpus:
                self._occupied[cpu].append(occupant)

    def compute_height(self) -> float:
        return sum(map(self.measure_socket, self._topology.sockets))

    def measure_socket(self, socket: int) -> float:
        """Return the height of a socket."""
        return max(area.bottom for area in self._place_blocks(socket)) + PADDING_PX

    def draw_socket(self, socket: int, y: float) -> svg.Element:
        """Draw a socket that begins at ``y``."""
        height, title = self.measure_socket(socket), _list_features(self._topology, socket, self._cores[socket])
        while len(title) > 1 and svg.estimate_text_width(" · ".join(title)) > self._width - 2 * PADDING_PX:
            title.pop()
        frame = {"x": 0.5, "y": y, "width": self._width - 1, "height": height, "rx": 6, **svg.paint(stroke="soft")}
        parts = [
            svg.draw_element("rect", **frame),
            svg.draw_text(" · ".join(title), PADDING_PX, y + 15, "ink", anchor="start"),
        ]
        for block, area in zip(self._blocks[socket], self._place_blocks(socket), strict=True):
            parts.append(self._draw_block(block, area, y))
        return svg.join_elements(parts)

    def _place_blocks(self, socket: int) -> list[_Area]:
        """Return the places of a socket's blocks, beside each other as long as they fit, below the socket's title."""
        areas, x, top, bottom = list[_Area](), PADDING_PX, TITLE_PX, 0.0
        for block in self._blocks[socket]:
            wide, high = self._measure(block)
            if areas and x + wide > self._width - PADDING_PX:
                x, top = PADDING_PX, bottom + BLOCK_GAP_PX
            areas.append(_Area(x, top, x + wide, top + high))
            x, bottom = x + wide + BLOCK_GAP_PX, max(bottom, top + high)
        return areas

    def _count_columns(self, block: _Block) -> int:
        """Return the cores beside each other: as many as fit, but the same number in each row."""
        room = self._width - 4 * PADDING_PX
        most = max(1, int((room + CORE_GAP_PX) // (self._cell_px + CORE_GAP_PX)))
        rows = -(-len(block.cores) // most)
        return -(-len(block.cores) // rows)

    def _measure(self, block: _Block) -> tuple[float, float]:
        columns = self._count_columns(block)
        rows = -(-len(block.cores) // columns)
        wide = columns * (self._cell_px + CORE_GAP_PX) - CORE_GAP_PX + 2 * PADDING_PX
        title = TITLE_PX if block.title else PADDING_PX
        return wide, title + rows * (self._get_core_height() + CORE_GAP_PX) - CORE_GAP_PX + PADDING_PX

    def _get_core_height(self) -> float:
        return self._topology.threads_per_core * CELL_HEIGHT_PX

    def _draw_block(self, block: _Block, area: _Area, above: float) -> svg.Element:
        x, y, width, height = area.x, area.top + above, area.right - area.x, area.bottom - area.top
        parts = [svg.draw_element("rect", x=x, y=y, width=width, height=height, rx=4, **svg.paint(stroke="line"))]
        if block.title:
            title = svg.shorten_text(block.title, width - 2 * PADDING_PX, SMALL_FONT_PX)
            at = x + PADDING_PX
            parts.append(svg.draw_text(title, at, y + 14, "soft", anchor="start", font_size=SMALL_FONT_PX))
        columns = self._count_columns(block)
        top = y + (TITLE_PX if block.title else PADDING_PX)
        for number, core in enumerate(block.cores):
            row, column = divmod(number, columns)
            left = x + PADDING_PX + column * (self._cell_px + CORE_GAP_PX)
            parts.append(self._draw_core(core, left, top + row * (self._get_core_height() + CORE_GAP_PX)))
        return svg.join_elements(parts)

    def _draw_core(self, core: Core, x: float, y: float) -> svg.Element:
        cells = [self._draw_cell(cpu, x, y + turn * CELL_HEIGHT_PX) for turn, cpu in enumerate(core.cpus)]
        high = len(core.cpus) * CELL_HEIGHT_PX
        dashes = {"stroke_dasharray": "3 2"} if core.tier else {}
        outline = svg.draw_element(
            "rect", x=x, y=y, width=self._cell_px, height=high, rx=2, **dashes, **svg.paint(stroke="soft")
        )
        return svg.join_elements([*cells, outline])

    def _draw_cell(self, cpu: int, x: float, y: float) -> svg.Element:
        here, middle = self._occupied.get(cpu, []), x + self._cell_px / 2
        slow = " (a slower core)" if self._topology.core_of[cpu].tier else ""
        if not here:
            is_usable = cpu in self._topology.effective_cpus
            title = svg.escape_text(f"CPU {cpu}{slow}: {'free' if is_usable else 'not allowed for this process'}")
            text = str(cpu) if is_usable else FORBIDDEN
            size = NUMBER_FONT_PX if is_usable else SMALL_FONT_PX
            shown = svg.draw_text(text, middle, y + 12, "soft", font_size=size)
            back = svg.draw_element(
                "rect", x=x, y=y, width=self._cell_px, height=CELL_HEIGHT_PX, fill_opacity="0", **svg.paint("paper")
            )
            return svg.draw_element("g", svg.draw_element("title", title), back, shown)
        names = "; ".join(occupant.title for occupant in here)
        label, fill = (SEVERAL, SEVERAL_FILL) if len(here) > 1 else (here[0].label, here[0].fill)
        parts = [
            svg.draw_element("title", svg.escape_text(f"CPU {cpu}{slow}: {label if len(here) == 1 else ''} {names}")),
            svg.draw_element("rect", x=x, y=y, width=self._cell_px, height=CELL_HEIGHT_PX, fill=fill),
            _draw_label(label, middle, y + 13),
        ]
        return svg.draw_element("g", *parts)


def _draw_label(label: str, x: float, y: float) -> svg.Element:
    return svg.draw_element(
        "text",
        svg.escape_text(label),
        x=x,
        y=y,
        text_anchor="middle",
        font_size=SMALL_FONT_PX,
        font_weight="bold",
        fill=LABEL_INK,
    )


def _list_blocks(topology: Topology, cores: Sequence[Core]) -> list[_Block]:
    """Return the cores of a socket by what they share: the NUMA node and the L3 cache, each with its size."""
    groups: defaultdict[tuple[int, int | None], list[Core]] = defaultdict(list)
    for core in cores:
        groups[topology.node_of[core.cpus[0]].id, topology.cache_group(core.cpus[0], 3)].append(core)
    nodes = {node for node, _ in groups}
    blocks = []
    for (node, cache), own in groups.items():
        parts = [f"node {node}"] if len(nodes) > 1 else []
        parts += [_format_cache(topology, 3, cache)] if len(groups) > len(nodes) and cache is not None else []
        blocks.append(_Block(" · ".join(parts), tuple(own)))
    return blocks


def _format_cache(topology: Topology, level: int, first: int) -> str:
    sizes = [cache.size_bytes for cache in topology.caches if cache.level == level and cache.cpus[0] == first]
    return f"L{level}" if not sizes or sizes[0] is None else f"L{level} {round_memory(sizes[0])}"


def _list_features(topology: Topology, socket: int, cores: Sequence[Core]) -> list[str]:
    """Return what a socket has, the most important first: cores, NUMA nodes, memory, caches."""
    own = {cpu for core in cores for cpu in core.cpus}
    nodes = [node for node in topology.nodes if own & set(node.cpus)]
    memory = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    parts = [f"socket {socket}", format_count(len(cores), "core")]
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
    is_short = svg.estimate_text_width(" ".join(meanings), SMALL_FONT_PX) <= width
    for line in [" ".join(meanings)] if is_short else meanings:
        shown = svg.shorten_text(line, width, SMALL_FONT_PX)
        at = y + rows * LEGEND_ROW_PX + 13
        parts.append(svg.draw_text(shown, 0.0, at, "soft", anchor="start", font_size=SMALL_FONT_PX))
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
        parts.append(_draw_label(occupant.label, x + SWATCH_PX / 2, y + 13))
    attributes: Mapping[str, str] = {} if occupant.address is None else {"href": occupant.address}
    return svg.draw_element("a" if attributes else "g", *parts, **attributes)


def _list_mark_meanings(topology: Topology, occupants: Sequence[_Occupant]) -> list[str]:
    loads: defaultdict[int, int] = defaultdict(int)
    for occupant in occupants:
        for cpu in occupant.cpus:
            loads[cpu] += 1
    lines = ["Numbers are free CPUs."]
    if topology.threads_per_core > 1:
        lines.append("A column is a core, its siblings below each other.")
    if any(core.tier for core in topology.cores):
        lines.append("Dashed cores are slower.")
    if any(number > 1 for number in loads.values()):
        lines.append(f"{SEVERAL} several on one CPU.")
    if topology.effective_cpus != topology.cpus:
        lines.append(f"{FORBIDDEN} not allowed for this process.")
    if topology.offline:
        lines.append(f"Offline: CPUs {format_cpus(topology.offline)}.")
    return lines
