"""What runs on which CPU: machines as boxes, with their sockets, cores and CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg

CELL_W, CELL_H, CELL_GAP, CELL_FONT = 30.0, 20.0, 3.0, 10
PAD, NAME_PX, SOCKET_PX, GAP, TOP = 10.0, 20.0, 16.0, 12.0, 30.0
COLUMNS = 16
"""How many cores of a socket stand beside each other."""

MOST_CELLS = 2048
"""With more CPUs than that, each machine is one line: its name, and how many of its CPUs are used."""

SUMMARY_W, SUMMARY_H = 166.0, 44.0


class CpuBox(NamedTuple):
    """A CPU: what is on it, or its number if it is free."""

    text: str
    words: str
    """Its tooltip."""

    colour: str = ""
    """Empty: it is free."""

    outline: bool = False


class SocketBox(NamedTuple):
    name: str
    cores: Sequence[Sequence[CpuBox]]
    """The CPUs of each core: one, or its siblings."""


class NodeBox(NamedTuple):
    """A machine."""

    name: str
    words: str
    sockets: Sequence[SocketBox] = ()
    unbound: Sequence[CpuBox] = ()
    """What runs on any of its CPUs."""


class _Size(NamedTuple):
    width: float
    height: float


def draw_cpu_map(name: str, nodes: Sequence[NodeBox], *, heading: str = "", width: float = svg.WIDTH) -> Markup:
    """Draw machines beside each other, as many as there is room for."""
    cells = sum(len(core) for node in nodes for socket in node.sockets for core in socket.cores)
    brief = cells + sum(len(node.unbound) for node in nodes) > MOST_CELLS
    columns = max(1, min(COLUMNS, int((width - 2 * PAD - 2) / (CELL_W + CELL_GAP))))
    head = [svg.draw_text(svg.shorten(heading, width), 1.0, 18.0, "ink", anchor="start")]
    drawn, x, y, tallest = list[svg.Element](), 1.0, TOP, 0.0
    for node in nodes:
        size = _Size(SUMMARY_W, SUMMARY_H) if brief else _measure_node(node, columns, width)
        if x > 1 and x + size.width > width - 1:
            x, y, tallest = 1.0, y + tallest + GAP, 0.0
        draw = _draw_summary(node, x, y) if brief else _draw_node(node, x, y, size, columns)
        drawn.append(svg.draw_titled(node.words, *draw))
        x, tallest = x + size.width + GAP, max(tallest, size.height)
    return svg.draw_figure(y + tallest + 2, name, *head, *drawn, width=width)


def _measure_group(cores: Sequence[Sequence[CpuBox]], columns: int) -> _Size:
    rows = -(-len(cores) // columns)
    tall = max(map(len, cores), default=1) * CELL_H + CELL_GAP
    return _Size(min(len(cores), columns) * (CELL_W + CELL_GAP) - CELL_GAP, rows * tall)


def _measure_node(node: NodeBox, columns: int, width: float) -> _Size:
    groups = _list_groups(node)
    sizes = [_measure_group(cores, columns) for _, cores in groups]
    least = svg.estimate_text_width(svg.shorten(node.name, width - 2 * PAD - 2))
    wide = max([least, *(size.width for size in sizes), *(svg.estimate_text_width(name) for name, _ in groups)])
    heights = sum(size.height + (SOCKET_PX if name else 0) for (name, _), size in zip(groups, sizes, strict=True))
    return _Size(wide + 2 * PAD, heights + NAME_PX + PAD)


def _list_groups(node: NodeBox) -> list[tuple[str, Sequence[Sequence[CpuBox]]]]:
    groups = [(socket.name, socket.cores) for socket in node.sockets]
    return [*groups, ("on any CPU", [[box] for box in node.unbound])] if node.unbound else groups


def _draw_node(node: NodeBox, x: float, y: float, size: _Size, columns: int) -> list[svg.Element]:
    frame = svg.draw_element("rect", x=x, y=y, width=size.width, height=size.height, rx=4, **svg.paint(stroke="soft"))
    name = svg.shorten(node.name, size.width - 2 * PAD)
    parts = [frame, svg.draw_text(name, x + PAD, y + 15, "ink", anchor="start", font_weight=600)]
    top = y + NAME_PX
    for title, cores in _list_groups(node):
        if title:
            parts.append(svg.draw_text(title, x + PAD, top + 11, "soft", anchor="start"))
            top += SOCKET_PX
        tall = max(map(len, cores), default=1) * CELL_H + CELL_GAP
        for place, core in enumerate(cores):
            core_x = x + PAD + place % columns * (CELL_W + CELL_GAP)
            parts += _draw_core(core, core_x, top + place // columns * tall)
        top += _measure_group(cores, columns).height
    return parts


def _draw_core(core: Sequence[CpuBox], x: float, y: float) -> list[svg.Element]:
    return [_draw_cell(box, x, y + place * CELL_H) for place, box in enumerate(core)]


def _draw_cell(box: CpuBox, x: float, y: float) -> svg.Element:
    """Draw a CPU: siblings touch each other, as they share a core."""
    solid = box.colour and not box.outline
    colours = svg.paint(box.colour, stroke="paper") if solid else svg.paint("paper", stroke=box.colour or "line")
    width = 2 if box.outline else 1
    rect = svg.draw_element("rect", x=x, y=y, width=CELL_W, height=CELL_H, stroke_width=width, **colours)
    ink = "paper" if solid else "ink" if box.colour else "soft"
    text = svg.shorten(box.text, CELL_W, CELL_FONT)
    weight = 600 if box.colour else 400
    label = svg.draw_text(text, x + CELL_W / 2, y + CELL_H / 2 + 4, ink, font_size=CELL_FONT, font_weight=weight)
    return svg.draw_titled(box.words, rect, label)


def _draw_summary(node: NodeBox, x: float, y: float) -> list[svg.Element]:
    boxes = [box for socket in node.sockets for core in socket.cores for box in core]
    used = sum(bool(box.colour) for box in boxes)
    room = SUMMARY_W - 2 * PAD
    frame = svg.draw_element("rect", x=x, y=y, width=SUMMARY_W, height=SUMMARY_H, rx=4, **svg.paint(stroke="soft"))
    bar = svg.draw_element("rect", x=x + PAD, y=y + 20, width=room, height=6.0, **svg.paint("line"))
    share = used / len(boxes) if boxes else 0.0
    full = svg.draw_element("rect", x=x + PAD, y=y + 20, width=room * share, height=6.0, **svg.paint("blue"))
    counts = f"{used:,} of {len(boxes):,} CPUs" if boxes else f"{len(node.unbound):,} on any CPU"
    texts = [
        svg.draw_text(svg.shorten(node.name, room), x + PAD, y + 15, "ink", anchor="start", font_weight=600),
        svg.draw_text(counts, x + PAD, y + 38, "soft", anchor="start"),
    ]
    return [frame, bar, full, *texts]
