"""Configurations compared: points of two values with their Pareto frontier, and how each cuts the machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.plot_frame import NUMBER, PlotFrame, compute_left

HEIGHT, RIGHT, TOP, BOTTOM = 360.0, 24.0, 40.0, 56.0
X_TICKS, Y_TICKS, ROOM = 8, 5, 1.15
LABEL_PX, POINT_PX, LINE_PX = 14.0, 5.0, 2.0
ROW_PX, STACKED_PX, BAR_PX, STRIP_PX, NAMES_PX, HEAD_PX = 26.0, 40.0, 16.0, 200.0, 280.0, 34.0
MOST_CELLS, MOST_ROWS = 64, 3


class ScatterPoint(NamedTuple):
    x: float
    y: float
    label: str
    """Stands above it, if there is room."""

    words: str
    """Its tooltip."""

    colour: str = "blue"
    shape: str = "circle"


class Cut(NamedTuple):
    """A way to divide a machine into instances, and what came of it."""

    label: str
    words: str
    """Its tooltip."""

    instances: int
    cores: float
    """Of one instance."""

    value: float | None = None
    """None: it failed."""

    value_words: str = ""
    mark: str = ""
    colour: str = "blue"


def draw_frontier(
    name: str,
    points: Sequence[ScatterPoint],
    *,
    x_name: str,
    y_name: str,
    bound: float | None = None,
    width: float = svg.WIDTH,
) -> Markup:
    """Draw points from 0, 0 on and the line through those that no other beats: less of x, or more of y.

    ``bound``: the greatest x that is allowed.
    """
    if not points:
        words = svg.draw_text(f"{name}: no measurement", 12.0, 24.0, "ink", anchor="start")
        return svg.draw_figure(40.0, name, words, width=width)
    x_most, y_most = (
        ROOM * max(*values, 1e-9) for values in zip(*((point.x, point.y) for point in points), strict=True)
    )
    frame = PlotFrame(
        left=compute_left([(NUMBER, (0.0, y_most))]),
        right=width - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        x=(0.0, x_most),
        y=(0.0, y_most),
    )
    frontier = [(frame.scale_x(x), frame.scale_y(y)) for x, y in compute_frontier((at.x, at.y) for at in points)]
    return svg.draw_figure(
        HEIGHT,
        name,
        *frame.draw_grid(NUMBER, ticks=Y_TICKS),
        *frame.draw_ticks(NUMBER, ticks=X_TICKS if width > 600 else X_TICKS // 2),
        svg.draw_text(y_name, 8.0, 20.0, "soft", anchor="start"),
        svg.draw_text(x_name, frame.right, frame.bottom + 40, "soft", anchor="end"),
        *_draw_bound(bound, frame),
        svg.draw_path(frontier, "soft", stroke_width=2, stroke_dasharray="2 3"),
        *_draw_points(points, frame, frontier),
        width=width,
    )


def compute_frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points for which no other has less of x and as much of y, the least x first."""
    best, frontier = -math.inf, list[tuple[float, float]]()
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if y > best:
            best = y
            frontier.append((x, y))
    return frontier


def draw_cuts(name: str, cuts: Sequence[Cut], *, cores: float, value_name: str, width: float = svg.WIDTH) -> Markup:
    """Draw for each way to divide ``cores`` its instances to scale, and its value as a bar."""
    stacked = width < 600
    strip = min(STRIP_PX, 0.4 * width)
    names = [f"{cut.mark} {cut.label}".strip() for cut in cuts]
    left = 8.0 if stacked else min(max(map(svg.estimate_text_width, names), default=0.0) + 24, NAMES_PX)
    row_px = STACKED_PX if stacked else ROW_PX
    most = max((cut.value for cut in cuts if cut.value is not None), default=0.0) or 1.0
    room = width - left - strip - 20 - max((svg.estimate_text_width(cut.value_words) for cut in cuts), default=0.0)
    parts = [
        svg.draw_text(f"{cores:g} cores", left, 20.0, "soft", anchor="start"),
        svg.draw_text(value_name, left + strip + 12, 20.0, "soft", anchor="start"),
    ]
    for place, cut in enumerate(cuts):
        top = HEAD_PX + place * row_px
        y = top + row_px - BAR_PX - 4
        at = (8.0, top + 10) if stacked else (8.0, y + BAR_PX - 4)
        label = svg.shorten_text(names[place], width - 16 if stacked else left - 16)
        row = [
            svg.draw_text(label, *at, cut.colour if cut.mark else "ink", anchor="start"),
            *_draw_strip(cut, left, y, strip / max(cores, cut.instances * cut.cores)),
            *_draw_value(cut, left + strip + 12, y, max(room, 20.0) / most),
        ]
        parts.append(svg.draw_titled(cut.words, *row))
    return svg.draw_figure(HEAD_PX + len(cuts) * row_px + 8, name, *parts, width=width)


def _draw_strip(cut: Cut, left: float, y: float, scale: float) -> list[svg.Element]:
    """Draw the instances beside each other; very many are one block that says how many."""
    count = cut.instances if cut.instances <= MOST_CELLS else 1
    wide = cut.instances * cut.cores * scale / count
    gap = 2.0 if wide > 6 else 0.5
    return [
        svg.draw_element(
            "rect",
            x=left + at * wide,
            y=y,
            width=max(wide - gap, 0.5),
            height=BAR_PX,
            rx=1,
            **svg.paint(stroke=cut.colour),
        )
        for at in range(count)
    ]


def _draw_value(cut: Cut, left: float, y: float, scale: float) -> list[svg.Element]:
    wide = 0.0 if cut.value is None else cut.value * scale
    bar = svg.draw_element("rect", x=left, y=y, width=max(wide, 1.0), height=BAR_PX, rx=2, **svg.paint(cut.colour))
    words = svg.draw_text(cut.value_words, left + wide + 5, y + BAR_PX - 4, "ink", anchor="start")
    return [words] if cut.value is None else [bar, words]


def _draw_bound(bound: float | None, frame: PlotFrame) -> list[svg.Element]:
    if bound is None or bound > frame.x[1]:
        return []
    x = frame.scale_x(bound)
    line = svg.draw_line(x, frame.top, x, frame.bottom, "red", stroke_dasharray="4 4")
    return [line, svg.draw_text("bound", x, frame.top - 6, "red")]


def _draw_points(
    points: Sequence[ScatterPoint], frame: PlotFrame, line: Sequence[tuple[float, float]]
) -> list[svg.Element]:
    """Draw the points, and the labels for which there is room beside them and a line; the first points choose first."""
    centres = [(frame.scale_x(point.x), frame.scale_y(point.y)) for point in points]
    boxes = [_Box(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX) for x, y in centres]
    boxes += [_Box(x - LINE_PX, y - LINE_PX, x + LINE_PX, y + LINE_PX) for x, y in _list_places_on(line)]
    marks, labels = list[svg.Element](), list[svg.Element]()
    for point, (x, y) in zip(points, centres, strict=True):
        marks.append(svg.draw_marker(point.shape, x, y, point.colour, words=point.words, size=POINT_PX))
        box = next((box for box in _list_places(x, y, point.label, frame) if not any(map(box.overlaps, boxes))), None)
        if box is not None:
            boxes.append(box)
            labels.append(svg.draw_label(point.label, (box.left + box.right) / 2, box.bottom - 3, point.colour))
    return [*marks, *labels]


def _list_places_on(line: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield places on a line that are no farther apart than it is wide."""
    for (x, y), (next_x, next_y) in pairwise(line):
        steps = math.ceil(math.hypot(next_x - x, next_y - y) / LINE_PX)
        yield from ((x + (next_x - x) * at / steps, y + (next_y - y) * at / steps) for at in range(steps))


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Box) -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def _list_places(x: float, y: float, label: str, frame: PlotFrame) -> Iterator[_Box]:
    """Yield where a label may stand: above its point, below, right of it, left of it, at its corners; then farther."""
    wide, gap = svg.estimate_text_width(label), POINT_PX + 1
    middle = max(min(x - wide / 2, frame.right - wide), frame.left)
    for left, bottom in (
        (middle, y - gap),
        (middle, y + gap + LABEL_PX),
        (x + gap + 2, y + LABEL_PX / 2),
        (x - gap - 2 - wide, y + LABEL_PX / 2),
        (x + gap, y + gap + LABEL_PX),
        (x - gap - wide, y - gap),
        (x + gap, y - gap),
        (x - gap - wide, y + gap + LABEL_PX),
        *((middle, y - gap - rows * LABEL_PX) for rows in range(1, MOST_ROWS)),
        *((middle, y + gap + (1 + rows) * LABEL_PX) for rows in range(1, MOST_ROWS)),
    ):
        box = _Box(left, bottom - LABEL_PX, left + wide, bottom)
        if (
            box.left >= frame.left
            and box.right <= frame.right
            and frame.top - LABEL_PX <= box.top
            and bottom <= frame.bottom
        ):
            yield box
