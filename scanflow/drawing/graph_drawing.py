"""Draws a graph as SVG: boxes in layers, edges between them, and what is too much folded into groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.graph_boxes import (
    GraphBox,
    GraphNode,
    build_box,
    draw_box,
    is_cut,
    list_looks,
    measure_box,
    measure_height,
)
from scanflow.drawing.graph_edges import (
    EdgePath,
    EdgePoint,
    GraphEdge,
    Rectangle,
    draw_label,
    draw_lines,
    measure_label,
    merge_edges,
    place_labels,
)
from scanflow.drawing.graph_folding import MOST, FoldedGraph, fold
from scanflow.drawing.layered_layout import Layout, lay_out
from scanflow.errors import InvalidError
from scanflow.graphs import collect_parents, compute_levels, list_ancestors

LEAST_BOX_PX = 92.0
"""A narrower box would say too little: rather more is folded."""

MOST_HEIGHT_PX = 1600.0
"""Of a drawing that is folded anyway."""

LABEL_SPREAD = 1.6
"""How far the ends of two edges are from each other that have labels beside each other, in heights of a label."""

ACTIVE_MARKS, MOST_ACTIVE = "!?↻■●", 8
"""Nodes with one of these marks are folded with others only if there are more of them."""

MARGIN_PX, BOX_GAP_PX, LAYER_GAP_PX, SIDE_GAP_PX = 4.0, 12.0, 30.0, 44.0


class _Grid(NamedTuple):
    """Sizes in pixels, and how slots of the layout become points."""

    sideways: bool
    """Whether layers follow each other from left to right rather than downwards."""

    box_width: float
    box_height: float
    wished_width: float
    """Of a box of which nothing is cut."""

    box_gap: float
    layer_gap: float
    margin: float
    height: float

    def compute_center(self, x: float, y: float) -> tuple[float, float]:
        """Return the middle of a box in pixels, for a position in slots."""
        wide, high = self.box_width, self.box_height
        if self.sideways:
            return (
                self.margin + (y - 0.5) * (wide + self.layer_gap) + wide / 2,
                MARGIN_PX + (x - 0.5) * (high + self.box_gap) + high / 2,
            )
        return (
            self.margin + (x - 0.5) * (wide + self.box_gap) + wide / 2,
            MARGIN_PX + (y - 0.5) * (high + self.layer_gap) + high / 2,
        )


@dataclass(frozen=True, slots=True)
class _Folded:
    """The folded graph with its layout, its boxes and its edges."""

    layout: Layout
    boxes: Mapping[str, GraphBox]
    edges: Sequence[GraphEdge]


def draw_graph(
    nodes: Sequence[GraphNode],
    edges: Iterable[GraphEdge] = (),
    *,
    title: str,
    width: float = svg.WIDTH,
    sideways: bool | None = None,
    most: int = MOST,
) -> Markup:
    """Draw a graph in layers: each node is below, or right of, those that it has edges from.

    More nodes than ``most``, or than fit beside each other, are folded into groups. Edges that close a cycle lead back.

    Args:
        nodes: In the order in which equals are drawn.
        edges: Between them.
        title: What is drawn, for a reader who does not see it.
        width: Of the drawing, in pixels: ``svg.WIDTH``, or ``svg.NARROW`` for a phone.
        sideways: Whether layers follow each other from left to right. None: as fewer labels are cut, and less height
            is taken.
        most: How many boxes are drawn at most.

    Raises:
        InvalidError: two nodes have one name, or an edge has an end that is no node.
    """
    edges = list(edges)
    by_name = {node.name: node for node in nodes}
    _check(nodes, by_name, edges)
    if not nodes:
        return svg.draw_figure(40.0, title, svg.draw_text("No nodes.", width / 2, 24.0, "soft"), width=width)
    parents = _break_cycles(by_name, edges)
    choices = [False, True] if sideways is None else [sideways]
    folded, grids = _fold_until_it_fits(by_name, edges, parents, choices, width, most)
    grid = min(grids, key=lambda candidate: (_count_cut(folded, candidate), candidate.height))
    return _draw(folded, grid, title, width)


def _check(nodes: Sequence[GraphNode], by_name: Mapping[str, GraphNode], edges: Sequence[GraphEdge]) -> None:
    if len(by_name) < len(nodes):
        raise InvalidError("Two nodes of a graph have one name. Give each its own; their labels may be alike.")
    for edge in edges:
        if unknown := [end for end in (edge.source, edge.target) if end not in by_name]:
            raise InvalidError(f"An edge leads to {unknown[0]!r}, which is no node of the graph. Add the node.")


def _break_cycles(names: Iterable[str], edges: Sequence[GraphEdge]) -> Mapping[str, tuple[str, ...]]:
    """Return what each node is below: an edge that would close a cycle with those before it is turned round."""
    pairs = [(edge.source, edge.target) for edge in edges if edge.source != edge.target]
    parents = collect_parents(names, pairs)
    try:
        compute_levels(parents)
    except InvalidError:
        turned: list[tuple[str, str]] = []
        for source, target in dict.fromkeys(pairs):
            is_closing = target in list_ancestors(collect_parents(parents, turned), source)
            turned.append((target, source) if is_closing else (source, target))
        parents = collect_parents(parents, turned)
    return parents


def _fold_until_it_fits(
    nodes: Mapping[str, GraphNode],
    edges: Sequence[GraphEdge],
    parents: Mapping[str, tuple[str, ...]],
    choices: Sequence[bool],
    width: float,
    most: int,
) -> tuple[_Folded, list[_Grid]]:
    kinds = _choose_kinds(nodes.values())
    limit = max(1, min(most, len(nodes)))
    while True:
        folded = _fold(nodes, edges, *_arrange(tuple(parents.items()), tuple(kinds.items()), limit))
        grids = [_compute_grid(folded, width, sideways=sideways) for sideways in choices]
        if fitting := [grid for grid in grids if grid.box_width >= min(LEAST_BOX_PX, grid.wished_width)]:
            shortest = min(grid.height for grid in fitting)
            if len(nodes) <= most or shortest <= MOST_HEIGHT_PX or limit == 1:
                return folded, fitting
        elif limit == 1:
            return folded, grids
        limit = max(1, min(limit, len(folded.boxes)) * 3 // 4)


def _choose_kinds(nodes: Collection[GraphNode]) -> Mapping[str, str]:
    """Return what may be folded together: not what failed with the rest, nor the few nodes that run with it."""
    looks = {node.name: list_looks(node) for node in nodes}
    active = [name for name, own in looks.items() if any(look.mark in ACTIVE_MARKS for look in own)]
    apart = active if len(active) <= MOST_ACTIVE else []
    kinds = {node.name: f"{node.kind} {any(look.colour == 'red' for look in looks[node.name])}" for node in nodes}
    return kinds | {name: f"{kinds[name]} active" for name in apart}


@lru_cache(maxsize=16)
def _arrange(
    parents: tuple[tuple[str, tuple[str, ...]], ...], kinds: tuple[tuple[str, str], ...], most: int
) -> tuple[FoldedGraph, Layout]:
    """Fold a graph and lay it out; kept, as it is drawn for a page and for a phone, and again when a state changes."""
    graph = fold(dict(parents), dict(kinds), most=most)
    return graph, lay_out(graph.parents)


def _fold(nodes: Mapping[str, GraphNode], edges: Sequence[GraphEdge], graph: FoldedGraph, layout: Layout) -> _Folded:
    group_of = {name: group for group, members in graph.members.items() for name in members}
    merged: defaultdict[tuple[str, str], list[GraphEdge]] = defaultdict(list)
    for edge in edges:
        merged[group_of[edge.source], group_of[edge.target]].append(edge)
    return _Folded(
        layout=layout,
        boxes={
            group: build_box([nodes[name] for name in members], is_chain=(group, group) in merged)
            for group, members in graph.members.items()
        },
        edges=[merge_edges(own, *ends) for ends, own in merged.items() if ends[0] != ends[1]],
    )


def _compute_grid(folded: _Folded, width: float, *, sideways: bool) -> _Grid:
    """Return the sizes at which all labels fit, or narrower boxes where the drawing has no room for that."""
    layout, boxes = folded.layout, folded.boxes.values()
    labels = [measure_label(edge.label) for edge in folded.edges]
    label_width, label_height = (max((size[side] for size in labels), default=0.0) for side in (0, 1))
    if sideways:
        layer_gap = max(label_width and label_width + 48, SIDE_GAP_PX if width > 2 * svg.NARROW else LAYER_GAP_PX)
    else:
        layer_gap = max(LAYER_GAP_PX, label_height and label_height + 38)
    slots, gap = (layout.height, layer_gap) if sideways else (layout.width, BOX_GAP_PX)
    room = width - 2 * MARGIN_PX
    box_height = measure_height(boxes)
    box_gap = max(BOX_GAP_PX, LABEL_SPREAD * label_height - box_height) if sideways else BOX_GAP_PX
    wished = max(*map(measure_box, boxes), 0.0 if sideways else label_width)
    box_width = min(wished, (room + gap) / slots - gap)
    rows, row_gap = (layout.width, box_gap) if sideways else (layout.height, layer_gap)
    return _Grid(
        sideways=sideways,
        box_width=box_width,
        box_height=box_height,
        wished_width=wished,
        box_gap=box_gap,
        layer_gap=layer_gap,
        margin=(width - slots * (box_width + gap) + gap) / 2,
        height=rows * (box_height + row_gap) - row_gap + 2 * MARGIN_PX,
    )


def _count_cut(folded: _Folded, grid: _Grid) -> tuple[int, int]:
    """Return how many labels would be cut or left out, and how many second lines."""
    cut_labels = sum(is_cut(box, grid.box_width) for box in folded.boxes.values())
    cut_lines = sum(measure_box(box) > grid.box_width + 0.01 for box in folded.boxes.values())
    paths = [_route(edge, folded, grid) for edge in folded.edges]
    placed = place_labels(paths, _list_areas(folded, grid).values(), sideways=grid.sideways)
    return cut_labels + sum(place is None for _, place in placed), cut_lines


def _list_areas(folded: _Folded, grid: _Grid) -> Mapping[str, Rectangle]:
    areas = {}
    for name, position in folded.layout.nodes.items():
        x, y = grid.compute_center(*position)
        wide, high = grid.box_width / 2, grid.box_height / 2
        areas[name] = Rectangle(x - wide, y - high, x + wide, y + high)
    return areas


def _draw(folded: _Folded, grid: _Grid, title: str, width: float) -> Markup:
    areas = _list_areas(folded, grid)
    paths = [_route(edge, folded, grid) for edge in folded.edges]
    placed = place_labels(paths, areas.values(), sideways=grid.sideways)
    lines = draw_lines(paths, sideways=grid.sideways)
    boxes = [
        draw_box(folded.boxes[name], area.left, area.top, grid.box_width, grid.box_height)
        for name, area in areas.items()
    ]
    labels = [draw_label(path, place) for path, place in placed if place is not None]
    return svg.draw_figure(grid.height, title, *lines, *boxes, *labels, width=width)


def _route(edge: GraphEdge, folded: _Folded, grid: _Grid) -> EdgePath:
    """Return the points of an edge: at the borders of its boxes, and at both sides of each layer that it passes."""
    way = folded.layout.edges.get((edge.source, edge.target))
    is_backward = way is None
    if way is None:
        way = folded.layout.edges[edge.target, edge.source]
    half = (grid.box_width if grid.sideways else grid.box_height) / 2
    points = list[EdgePoint]()
    for x, y in (grid.compute_center(*position) for position in way):
        along, across = (x, y) if grid.sideways else (y, x)
        points += [EdgePoint(along - half, across), EdgePoint(along + half, across)]
    lower = edge.source if is_backward else edge.target
    return EdgePath(
        edge=edge,
        points=points[1:-1],
        is_backward=is_backward,
        is_skipped=any(folded.boxes[end].is_skipped for end in (edge.source, edge.target)),
        is_labelled_at_end=sum(child == lower for _, child in folded.layout.edges) == 1,
    )
