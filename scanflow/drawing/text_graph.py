"""Graphs in characters, for a terminal: labels in layers, with lines from each to those below that depend on it.

A graph that is too wide is folded; if that does not do, it becomes an indented tree. No line is ever longer than the
terminal is wide, unless a single name is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from scanflow.drawing.channel_routing import APART, DOWN, UP, Group, RoutedChannel, draw_net, group_sources, route
from scanflow.drawing.graph_folding import MOST, FoldedGraph, fold
from scanflow.drawing.layered_layout import Layout, Place, lay_out
from scanflow.graphs import compute_levels

GAP, PASS_COLUMNS = 3, 4
"""Columns between labels; columns that a line takes of a layer that it passes."""

FOLDS = (MOST, 24, 16, 12, 8)
"""How many nodes a graph is folded to, as long as it is too wide."""

LINE, SOFT = "ink", "soft"
_UNICODE = " ╴╶─╵┘└┴╷┐┌┬│┤├┼"
_ASCII = " ---|+++|+++|+++"
"""The character of a cell by the sides that its lines lead to: see :mod:`scanflow.drawing.channel_routing`."""

_ALONE = 1_000_000
"""Columns between nets on one track in ASCII: each has its own, as a corner does not say to which side it leads."""

_ASCII_MARKS = str.maketrans("✓✗●·–■≡↻×…", "+x*.-#=~x.")


class StyledText(NamedTuple):
    """A text on one line, and its colour: a key of :data:`scanflow.drawing.svg.COLOURS`."""

    text: str
    colour: str = LINE


StyledLine: TypeAlias = tuple[StyledText, ...]
LabelMaker: TypeAlias = Callable[[Sequence[str]], StyledText]
"""Returns the label of a node, or of the nodes that are folded into one."""


class TextGraph(NamedTuple):
    """A graph to be drawn when it is known how wide its lines may be."""

    parents: Mapping[str, Sequence[str]]
    label: LabelMaker
    kinds: Mapping[str, str] | None = None
    """See :func:`scanflow.drawing.graph_folding.fold`."""

    legend: StyledLine = ()
    """Texts that are put below the graph, two spaces apart."""

    def draw(self, width: int | None, *, ascii_only: bool) -> list[StyledLine]:
        """Return the lines of the graph and of its legend: see :func:`draw_text_graph`."""
        graph = draw_text_graph(self.parents, self.label, kinds=self.kinds, width=width, ascii_only=ascii_only)
        legend = [StyledText(make_ascii(text) if ascii_only else text, colour) for text, colour in self.legend]
        return [*graph, (), *_wrap_parts(legend, width)] if legend else graph


def make_ascii(text: str) -> str:
    """Return a text with the marks of states in ASCII."""
    return text.translate(_ASCII_MARKS)


def draw_text_graph(
    parents: Mapping[str, Sequence[str]],
    label: LabelMaker,
    *,
    kinds: Mapping[str, str] | None = None,
    width: int | None = None,
    ascii_only: bool = False,
) -> list[StyledLine]:
    """Return a graph as lines of at most ``width`` characters (None: any), given what each node depends on.

    ``kinds``: see :func:`scanflow.drawing.graph_folding.fold`.

    Raises:
        InvalidError: the graph has a cycle.
    """

    def write(members: Sequence[str]) -> StyledText:
        text, colour = label(members)
        return StyledText(make_ascii(text) if ascii_only else text, colour)

    sizes = FOLDS if width is not None else FOLDS[:1]
    for graph in (fold(parents, kinds, most=most) for most in sizes):
        labels = {name: write(members) for name, members in graph.members.items()}
        lines = _draw_layers(graph, labels, ascii_only=ascii_only)
        if width is None or max(map(_measure, lines), default=0) <= width:
            return lines
    graph = fold(parents, kinds)
    labels = {name: write(members) for name, members in graph.members.items()}
    return list(_draw_tree(graph, labels, width or 0))


def _measure(line: StyledLine) -> int:
    return sum(len(part.text) for part in line)


def _draw_layers(graph: FoldedGraph, labels: Mapping[str, StyledText], *, ascii_only: bool) -> list[StyledLine]:
    least = {name: 2 * count + 1 for name, count in _count_entries(graph.parents).items()}
    boxes = {name: _pad(text, least[name]) for name, text in labels.items()}
    layout = lay_out(graph.parents, {name: len(box.text) + GAP for name, box in boxes.items()}, pass_width=PASS_COLUMNS)
    links, canvas, exits = _list_links(layout), _Canvas(_ASCII if ascii_only else _UNICODE), dict[Place, int]()
    for extents in _list_rows(layout, boxes):
        groups = group_sources({place: links[place] for place in exits if place in links})
        channel = route(groups, exits, extents, apart=_ALONE if ascii_only else APART)
        canvas.draw_channel(channel, [_get_line_colour(group, labels) for group in groups])
        exits = {}
        for place, extent in extents.items():
            if isinstance(place, str):
                canvas.write(boxes[place], extent.start)
                exits[place] = extent[len(extent) // 2]
            else:
                exits[place] = channel.entries[place][0]
                canvas.write_line(exits[place], labels[place[1]].colour)
        canvas.end_row()
    return canvas.lines


def _get_line_colour(group: Group[Place], labels: Mapping[str, StyledText]) -> str:
    """Return the colour of a line: soft if all that it leads to is."""
    ends = {place if isinstance(place, str) else place[1] for place in group.targets}
    return SOFT if all(labels[name].colour == SOFT for name in ends) else LINE


def _count_entries(parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the number of lines that enter each node: those of its parents that lead to the same nodes are one."""
    level = {name: number for number, names in enumerate(compute_levels(parents)) for name in names}
    below: dict[str, list[object]] = {name: [] for name in parents}
    for name, its_parents in parents.items():
        for parent in its_parents:
            below[parent].append(name if level[name] == level[parent] + 1 else (parent, name))
    counts = dict.fromkeys(parents, 0)
    for name, its_parents in parents.items():
        near = [parent for parent in its_parents if level[parent] == level[name] - 1]
        far = [(name,)] if len(near) < len(its_parents) else []
        counts[name] = len({frozenset(below[parent]) for parent in near} | {frozenset(only) for only in far})
    return counts


def _pad(label: StyledText, least: int) -> StyledText:
    """Return a label of at least ``least`` characters, so that each line has its own place to enter it."""
    if len(label.text) >= least:
        return label
    return StyledText(f"[{label.text.center(least - 2)}]", label.colour)


def _list_rows(layout: Layout, boxes: Mapping[str, StyledText]) -> list[dict[Place, range]]:
    """Return the places of each layer from left to right, and the columns that each takes."""
    rows: list[list[tuple[float, Place, int]]] = [[] for _ in range(round(layout.height))]
    for name, (x, y) in layout.nodes.items():
        size = len(boxes[name].text)
        rows[int(y)].append((x - (size + GAP) / 2, name, size))
    for (parent, child), way in layout.edges.items():
        for x, y in way[1:-1]:
            rows[int(y)].append((x - PASS_COLUMNS / 2, (parent, child, int(y)), PASS_COLUMNS - 1))
    for row in rows:
        row.sort(key=itemgetter(0))
    # Rounded all the same way, two that are apart stay so, as widths are whole; the rest is for what is not exact.
    starts = [[(int(start + 0.5 + 1e-6), place, size) for start, place, size in row] for row in rows]
    return [{place: range(start, start + size) for start, place, size in row} for row in starts]


def _list_links(layout: Layout) -> dict[Place, list[Place]]:
    links: dict[Place, list[Place]] = {}
    for (parent, child), way in layout.edges.items():
        between: list[Place] = [(parent, child, int(point.y)) for point in way[1:-1]]
        for upper, lower in zip([parent, *between], [*between, child], strict=True):
            links.setdefault(upper, []).append(lower)
    return links


class _Canvas:
    """Lines that are written from the top to the bottom, a row of characters at a time."""

    def __init__(self, glyphs: str) -> None:
        self.glyphs = glyphs
        self.lines: list[StyledLine] = []
        self._row: dict[int, tuple[str, str]] = {}

    def write(self, text: StyledText, column: int) -> None:
        self._row |= {column + number: (character, text.colour) for number, character in enumerate(text.text)}

    def write_line(self, column: int, colour: str) -> None:
        self._row[column] = (self.glyphs[UP | DOWN], colour)

    def end_row(self) -> None:
        cells = [self._row.get(column, (" ", "")) for column in range(max(self._row, default=-1) + 1)]
        parts = groupby(cells, key=itemgetter(1))
        self.lines.append(tuple(StyledText("".join(cell[0] for cell in part), colour) for colour, part in parts))
        self._row = {}

    def draw_channel(self, channel: RoutedChannel[Place], colours: Sequence[str]) -> None:
        # A corner in ASCII does not say which sides it has, so none may be next to a label that it does not lead to.
        margin = 1 if self.glyphs == _ASCII and channel.height else 0
        height = max(channel.height, 1) + 2 * margin if channel.nets else 0
        rows = [dict[int, tuple[str, str]]() for _ in range(height)]

        def mark(row: int, column: int, sides: int, colour: str) -> None:
            if column not in rows[row] or sides == UP | DOWN:  # where lines cross, the one down a column is drawn
                rows[row][column] = (self.glyphs[sides], colour)

        for net, track, colour in zip(channel.nets, channel.tracks, colours, strict=True):
            draw_net(net, None if track is None else track + margin, height, partial(mark, colour=colour))
        for row in rows:
            self._row = row
            self.end_row()


def _draw_tree(graph: FoldedGraph, labels: Mapping[str, StyledText], width: int) -> Iterator[StyledLine]:
    """Yield each node below the first that it depends on. Where there are more, all of them are named below it."""
    children: dict[str, list[str]] = {name: [] for name in graph.parents}
    for name, its_parents in graph.parents.items():
        for parent in its_parents[:1]:
            children[parent].append(name)
    pending = [(name, 0) for name in reversed([name for name, own in graph.parents.items() if not own])]
    while pending:
        name, depth = pending.pop()
        pending += [(child, depth + 1) for child in reversed(children[name])]
        yield from _write_branch(labels[name], graph.parents[name], depth, width)


def _write_branch(label: StyledText, parents: Sequence[str], depth: int, width: int) -> Iterator[StyledLine]:
    """Yield the line of a node, indented as deep as there is room, and lines that name what it depends on, unless
    that is the one above it."""
    indent = min(2 * depth, max(0, width - len(label.text)))
    yield (StyledText(" " * indent), label) if indent else (label,)
    if len(parents) > 1 or indent < 2 * depth:
        words = f"after {', '.join(parents)}"
        room = max(0, width - max(map(len, words.split())))
        wrapper = textwrap.TextWrapper(max(width, 1), break_long_words=False, break_on_hyphens=False)
        wrapper.initial_indent = wrapper.subsequent_indent = " " * min(indent + 4, room)
        yield from ((StyledText(line, SOFT),) for line in wrapper.wrap(words))


def _wrap_parts(parts: Sequence[StyledText], width: int | None) -> list[StyledLine]:
    lines: list[StyledLine] = [()]
    for part in parts:
        if lines[-1] and width is not None and _measure(lines[-1]) + 2 + len(part.text) > width:
            lines.append(())
        lines[-1] += (StyledText("  "), part) if lines[-1] else (part,)
    return lines
