"""The edges of a graph: curves from box to box, as wide as their traffic, with labels where there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from scanflow.drawing import svg

ARROW_PX, LABEL_FONT_PX, LABEL_LINE_PX = 7.0, 11, 13.0
WIDEST_PX, NARROWEST_PX = 6.0, 1.5
STRAIGHT_PX = 4.0
"""Less to the side than this is no curve."""

PLACES = (0.6, 0.5, 0.7, 0.4, 0.78, 0.3)
"""Where a label may be on its piece of an edge, counted from where edges meet, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEdge:
    """What is drawn of an edge: from the node that gives to the node that takes."""

    source: str
    target: str
    label: str = ""
    """Parts between `` · `` are below each other: ``120/s · 4 ms · 1 % errors``."""

    weight: float | None = None
    """Its traffic, in any unit: the width of the line. None: all such edges are alike."""

    has_errors: bool = False
    """Whether it is drawn as one that fails: by its colour and by dashes."""

    tooltip: str = ""


class EdgePoint(NamedTuple):
    """A point in pixels: along the way from layer to layer, and across it."""

    along: float
    across: float


class Rectangle(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Rectangle) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePath:
    """An edge where it is drawn."""

    edge: GraphEdge
    points: Sequence[EdgePoint]
    """From border to border: a curve between the first two, a straight piece where it passes a layer, a curve again."""

    is_backward: bool
    """Whether it leads to a layer above."""

    is_skipped: bool
    is_labelled_at_end: bool
    """Whether the label is at the last curve rather than the first."""


def split_label(label: str) -> list[str]:
    return label.split(" · ") if label else []


def measure_label(label: str) -> tuple[float, float]:
    """Return the width and the height of a label."""
    lines = split_label(label)
    return max((svg.estimate_text_width(line, LABEL_FONT_PX) for line in lines), default=0.0), LABEL_LINE_PX * len(
        lines
    )


def merge_edges(edges: Sequence[GraphEdge], source: str, target: str) -> GraphEdge:
    """Return the edge between two groups for those between their members."""
    weights = [edge.weight for edge in edges if edge.weight is not None]
    labels = {edge.label for edge in edges}
    return GraphEdge(
        source=source,
        target=target,
        label=labels.pop() if len(labels) == 1 else "",
        weight=sum(weights) if weights else None,
        has_errors=any(edge.has_errors for edge in edges),
        tooltip="\n".join(dict.fromkeys(filter(None, (edge.tooltip for edge in edges[:10])))),
    )


def place_labels(
    paths: Iterable[EdgePath], boxes: Iterable[Rectangle], *, sideways: bool
) -> list[tuple[EdgePath, Rectangle | None]]:
    """Return the place of each label, which no box and no other label hides; None: it has no room."""
    occupied = list(boxes)
    placed = list[tuple[EdgePath, Rectangle | None]]()
    for path in paths:
        if path.edge.label:
            place = _place_label(path, occupied, sideways=sideways)
            placed.append((path, place))
            occupied += [] if place is None else [place]
    return placed


def draw_lines(paths: Sequence[EdgePath], *, sideways: bool) -> list[svg.Element]:
    heaviest = max((path.edge.weight or 0.0 for path in paths), default=0.0)
    return [_draw_line(path, heaviest, sideways=sideways) for path in paths]


def _draw_line(path: EdgePath, heaviest: float, *, sideways: bool) -> svg.Element:
    edge = path.edge
    colour = "red" if edge.has_errors else "soft"
    dashes = {"stroke_dasharray": "7 4"} if edge.has_errors else {"stroke_dasharray": "2 4"} if path.is_skipped else {}
    share = (edge.weight or 0.0) / heaviest if heaviest else 0.0
    width = NARROWEST_PX + (WIDEST_PX - NARROWEST_PX) * share
    way = _format_path(path, sideways=sideways)
    words = edge.tooltip or (f"{edge.source} → {edge.target}" + (f": {edge.label}" if edge.label else ""))
    return svg.draw_element(
        "g",
        svg.draw_element("title", svg.escape_text(words)),
        svg.draw_element("path", d=way, stroke_width=width, **dashes, **svg.paint(stroke=colour)),
        _draw_arrow(path, colour, width, sideways=sideways),
    )


def _spell(along: float, across: float, *, sideways: bool) -> str:
    x, y = (along, across) if sideways else (across, along)
    return f"{svg.format_number(x)} {svg.format_number(y)}"


def _format_path(path: EdgePath, *, sideways: bool) -> str:
    """Return the curve, which leaves room for the arrow at its end."""
    points = list(path.points)
    if path.is_backward:
        points[0] = EdgePoint(points[0].along + ARROW_PX, points[0].across)
    else:
        points[-1] = EdgePoint(points[-1].along - ARROW_PX, points[-1].across)
    pieces = [f"M{_spell(*points[0], sideways=sideways)}"]
    for number, (start, end) in enumerate(pairwise(points)):
        half = (start.along + end.along) / 2
        if number % 2 or abs(start.across - end.across) < STRAIGHT_PX:
            pieces.append(f"L{_spell(*end, sideways=sideways)}")
        else:
            controls = [EdgePoint(half, start.across), EdgePoint(half, end.across), end]
            pieces.append("C" + " ".join(_spell(*point, sideways=sideways) for point in controls))
    return "".join(pieces)


def _draw_arrow(path: EdgePath, colour: str, width: float, *, sideways: bool) -> svg.Element:
    tip = path.points[0] if path.is_backward else path.points[-1]
    base = tip.along + (ARROW_PX if path.is_backward else -ARROW_PX)
    half = 3.0 + width / 2
    corners = [(tip.along, tip.across), (base, tip.across - half), (base, tip.across + half)]
    points = " ".join(_spell(*corner, sideways=sideways) for corner in corners)
    return svg.draw_element("polygon", points=points, **svg.paint(colour))


def _place_label(path: EdgePath, occupied: Sequence[Rectangle], *, sideways: bool) -> Rectangle | None:
    width, height = measure_label(path.edge.label)
    start, end = path.points[-2:] if path.is_labelled_at_end else path.points[:2]
    for share in PLACES:
        point = _follow_curve(start, end, share if path.is_labelled_at_end else 1 - share)
        x, y = (point.along, point.across) if sideways else (point.across, point.along)
        place = Rectangle(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        if not any(place.overlaps(other) for other in occupied):
            return place
    return None


def _follow_curve(start: EdgePoint, end: EdgePoint, share: float) -> EdgePoint:
    """Return the point of a cubic curve whose control points are halfway along, each beside its end."""
    left = 1 - share
    middle = 3 * left * share  # of both control points together
    along = left**3 * start.along + middle * (start.along + end.along) / 2 + share**3 * end.along
    across = start.across + (end.across - start.across) * share**2 * (3 - 2 * share)
    return EdgePoint(along, across)


def draw_label(path: EdgePath, place: Rectangle) -> svg.Element:
    middle = (place.left + place.right) / 2
    colour = "red" if path.edge.has_errors else "ink"
    parts = [
        svg.draw_element(
            "rect",
            x=place.left,
            y=place.top,
            width=place.right - place.left,
            height=place.bottom - place.top,
            fill_opacity=0.85,
            **svg.paint("paper"),
        )
    ]
    for number, line in enumerate(split_label(path.edge.label)):
        y = place.top + LABEL_LINE_PX * number + 10
        parts.append(svg.draw_text(line, middle, y, colour, font_size=LABEL_FONT_PX))
    return svg.join_elements(parts)
