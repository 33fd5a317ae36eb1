"""The layout of a graph in layers: who depends on others is below them, and few edges cross.

The steps are those of Sugiyama, Tagawa and Toda (1981): layers by the longest path, a place in each layer that an edge
passes, an order of each layer by the barycentre of its neighbours, and coordinates. Lengths are in slots: a node takes
one slot of its layer unless its width is told, and a layer is one slot high.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from scanflow.graphs import compute_levels

SWEEPS, MOVES = 8, 24
"""How often the layers are ordered, and how often they are moved, downwards and upwards in turn."""

PASS_WIDTH = 0.25
"""What an edge takes of a layer that it passes, in slots."""

Place = str | tuple[str, str, int]
"""A node, or an edge where it passes a layer: both its ends, and the number of the layer."""


class Position(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Layout:
    """Where the nodes are, and the points on the way of each edge from its node above to that below."""

    nodes: Mapping[str, Position]
    edges: Mapping[tuple[str, str], tuple[Position, ...]]
    width: float
    height: float
    crossings: int


def lay_out(
    parents: Mapping[str, Sequence[str]], widths: Mapping[str, float] | None = None, *, pass_width: float = PASS_WIDTH
) -> Layout:
    """Lay out a graph, given what each node depends on, and the width of each node where it is not one slot.

    Raises:
        InvalidError: the graph has a cycle.
    """
    layers: list[list[Place]] = [list(level) for level in compute_levels(parents)]
    ways = _pass_layers(parents, layers)
    links = [pair for way in ways.values() for pair in pairwise(way)]
    above, below = _collect_neighbours(links)
    layers, crossings = _order_layers(layers, above, below)
    get_width = partial(_get_width, widths=widths or {}, pass_width=pass_width)
    x = _place_layers(layers, above, below, get_width)
    _straighten(ways.values(), layers, x, get_width)
    leftmost = min((x[place] - get_width(place) / 2 for place in x), default=0.0)
    points = {place: Position(x[place] - leftmost, row + 0.5) for row, layer in enumerate(layers) for place in layer}
    return Layout(
        nodes={place: point for place, point in points.items() if isinstance(place, str)},
        edges={edge: tuple(points[place] for place in way) for edge, way in ways.items()},
        width=max((points[place].x + get_width(place) / 2 for place in points), default=0.0),
        height=float(len(layers)),
        crossings=crossings,
    )


def _pass_layers(parents: Mapping[str, Sequence[str]], layers: list[list[Place]]) -> dict[tuple[str, str], list[Place]]:
    """Return the places of each edge from layer to layer, and put those between its ends into the layers."""
    row = {place: number for number, layer in enumerate(layers) for place in layer}
    ways: dict[tuple[str, str], list[Place]] = {}
    for child, its_parents in parents.items():
        for parent in its_parents:
            between: list[Place] = [(parent, child, number) for number in range(row[parent] + 1, row[child])]
            for number, place in enumerate(between, start=row[parent] + 1):
                layers[number].append(place)
            ways[parent, child] = [parent, *between, child]
    return ways


_Neighbours = Mapping[Place, Sequence[Place]]


def _collect_neighbours(links: Iterable[tuple[Place, Place]]) -> tuple[_Neighbours, _Neighbours]:
    above: dict[Place, list[Place]] = {}
    below: dict[Place, list[Place]] = {}
    for upper, lower in links:
        above.setdefault(lower, []).append(upper)
        below.setdefault(upper, []).append(lower)
    return above, below


def _order_layers(layers: list[list[Place]], above: _Neighbours, below: _Neighbours) -> tuple[list[list[Place]], int]:
    """Return the layers in the best order of all sweeps, and the number of its crossings."""
    best, fewest = layers, _count_crossings(layers, below)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        layers = _sweep(layers if downwards else layers[::-1], above if downwards else below)
        layers = layers if downwards else layers[::-1]
        crossings = _count_crossings(layers, below)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best, fewest


def _sweep(layers: Sequence[Sequence[Place]], neighbours: _Neighbours) -> list[list[Place]]:
    """Order each layer but the first by the mean place of its neighbours in the layer before."""
    ordered = [list(layers[0])] if layers else []
    for layer in layers[1:]:
        rank = {place: number for number, place in enumerate(ordered[-1])}

        def compute_barycentre(item: tuple[int, Place], rank: Mapping[Place, int] = rank) -> float:
            number, place = item
            others = [rank[other] for other in neighbours.get(place, ())]
            return sum(others) / len(others) if others else float(number)

        ordered.append([place for _, place in sorted(enumerate(layer), key=compute_barycentre)])
    return ordered


def _count_crossings(layers: Sequence[Sequence[Place]], below: _Neighbours) -> int:
    return sum(_count_between(upper, lower, below) for upper, lower in pairwise(layers))


def _count_between(upper: Sequence[Place], lower: Sequence[Place], below: _Neighbours) -> int:
    """Count the pairs of edges between two layers that are in one order above and in the other below."""
    rank = {place: number for number, place in enumerate(lower)}
    ends: list[int] = []
    crossings = 0
    for place in upper:
        own = sorted(rank[other] for other in below.get(place, ()))
        crossings += sum(len(ends) - bisect_right(ends, end) for end in own)
        for end in own:
            insort(ends, end)
    return crossings


def _place_layers(
    layers: Sequence[Sequence[Place]], above: _Neighbours, below: _Neighbours, get_width: Callable[[Place], float]
) -> dict[Place, float]:
    """Return the middle of each place: in the layer's order, without overlap, near the mean of its neighbours."""
    x: dict[Place, float] = {}
    for layer in layers:
        x |= _spread(layer, dict.fromkeys(layer, 0.0), get_width)
    for sweep in range(MOVES):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wishes = {place: _compute_middle(place, x, above, below) for place in layer}
            x |= _spread(layer, wishes, get_width)
    return x


def _straighten(
    ways: Iterable[Sequence[Place]],
    layers: Sequence[Sequence[Place]],
    x: dict[Place, float],
    get_width: Callable[[Place], float],
) -> None:
    """Move each edge to one place of all layers that it passes, where its neighbours leave it one."""
    beside = {place: (before, after) for layer in layers for before, place, after in _list_triples(layer)}
    for way in ways:
        inner = way[1:-1]
        if len(inner) < 2:
            continue
        half = get_width(inner[0]) / 2
        least = max(_get_edge(before, x, 1, get_width) for before, _ in map(beside.__getitem__, inner)) + half
        most = min(_get_edge(after, x, -1, get_width) for _, after in map(beside.__getitem__, inner)) - half
        if least <= most:
            mean = sum(x[place] for place in inner) / len(inner)
            x |= dict.fromkeys(inner, max(least, min(most, mean)))


def _list_triples(layer: Sequence[Place]) -> Iterable[tuple[Place | None, Place, Place | None]]:
    return zip([None, *layer[:-1]], layer, [*layer[1:], None], strict=True)


def _get_edge(place: Place | None, x: Mapping[Place, float], side: int, get_width: Callable[[Place], float]) -> float:
    """Return where a place ends at one side; without one, that there is no limit."""
    return -side * math.inf if place is None else x[place] + side * get_width(place) / 2


def _compute_middle(place: Place, x: Mapping[Place, float], above: _Neighbours, below: _Neighbours) -> float:
    others = [x[other] for other in (*above.get(place, ()), *below.get(place, ()))]
    return sum(others) / len(others) if others else x[place]


def _get_width(place: Place, widths: Mapping[str, float], pass_width: float) -> float:
    return widths.get(place, 1.0) if isinstance(place, str) else pass_width


def _spread(
    layer: Sequence[Place], wishes: Mapping[Place, float], get_width: Callable[[Place], float]
) -> dict[Place, float]:
    """Return the middles nearest to those that are wished for, by least squares, that leave each place its width.

    Less the widths before it, a middle may not be smaller than that of the place before: isotonic regression, solved by
    pooling adjacent violators (Barlow et al., 1972).
    """
    offsets, offset = dict[Place, float](), 0.0
    for place in layer:
        offsets[place] = offset + get_width(place) / 2
        offset += get_width(place)
    pools: list[tuple[float, list[Place]]] = []  # the sum of what is wished for, and the places
    for place in layer:
        pools.append((wishes[place] - offsets[place], [place]))
        while len(pools) > 1 and pools[-2][0] / len(pools[-2][1]) > pools[-1][0] / len(pools[-1][1]):
            total, members = pools.pop()
            pools[-1] = (pools[-1][0] + total, pools[-1][1] + members)
    return {place: total / len(members) + offsets[place] for total, members in pools for place in members}
