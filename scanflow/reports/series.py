"""Line charts over time: points with their intervals, a line for each series, and marks for events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg

LEFT, RIGHT, TOP, HEIGHT, BOTTOM = 56.0, 14.0, 10.0, 150.0, 32.0
ROWS, ROW_PX = 3, 16.0
LINES = ("blue", "green", "violet", "amber")
"""The colours of the first, second … series; then repeated."""


class Point(NamedTuple):
    """A value at a time, and its tooltip; ``low`` and ``high``: its interval."""

    at: float
    value: float
    words: str
    low: float | None = None
    high: float | None = None


class EventLine(NamedTuple):
    """An event, drawn as a dashed line."""

    at: float
    words: str
    colour: str


def draw_chart(
    name: str,
    lines: Mapping[str, Sequence[Point]],
    marks: Sequence[EventLine],
    *,
    span: tuple[float, float],
    form: str,
    limits: tuple[float | None, float | None] = (None, None),
    names: Sequence[str] = (),
    colours: Sequence[str] = LINES,
    legend: bool = False,
    width: float = svg.NARROW,
) -> Markup:
    """Draw series with at least one point each, in order, as SVG.

    ``span`` are the ends of the axis of time, in seconds since the epoch; or of one along which ``names`` are 0, 1, 2 …
    ``form`` writes a value at the other axis, ``{:.0%}``; where an end of its ``limits`` is None, the figures say it.
    ``legend``: each line's name stands at its end.
    """
    begin, end = span[0], max(span[1], span[0] + 1)
    ends = [end for points in lines.values() for point in points for end in (point.value, point.low, point.high)]
    values = [end for end in ends if end is not None]
    low = min(values) if limits[0] is None else limits[0]
    high = max(values) if limits[1] is None else limits[1]
    if high <= low:  # all figures are one
        low, high = (low - 0.1, high) if limits[0] is None and low > 0.1 else (low, low + 1)
    step = max(svg.choose_step(high - low, 4), 0.01 if "%" in form else 0.0)  # else two ticks would read alike
    low = step * math.floor(low / step + 1e-9) if limits[0] is None else low
    high = max(low + step, step * math.ceil(high / step - 1e-9) if limits[1] is None else high)
    right = width - RIGHT

    def scale_x(at: float) -> float:
        return LEFT + (min(max(at, begin), end) - begin) / (end - begin) * (right - LEFT)

    places = svg.place_labels(
        [(scale_x(mark.at), svg.estimate_text_width(mark.words)) for mark in marks],
        left=LEFT,
        right=right,
        rows=ROWS,
        gap=4,
    )
    head = TOP + ROW_PX * max((1 + label.row for label in places if label), default=0)
    foot = head + HEIGHT

    def scale_y(value: float) -> float:
        return foot - (value - low) / (high - low) * HEIGHT

    parts = []
    for tick in svg.compute_ticks(low, high, 4):
        parts.append(svg.draw_line(LEFT, scale_y(tick), right, scale_y(tick), "line"))
        parts.append(svg.draw_text(form.format(tick), LEFT - 8, scale_y(tick) + 4, "soft", anchor="end"))
    for mark, label in zip(marks, places, strict=True):
        x, top = scale_x(mark.at), head - 8 - (label.row * ROW_PX if label else 0)
        parts.append(svg.draw_line(x, top + 4, x, foot, mark.colour, stroke_dasharray="4 4"))
        if label:
            parts.append(svg.draw_text(mark.words, label.middle, top, mark.colour))
    for at, (word, points) in enumerate(lines.items()):
        parts.append(
            _draw_line([(scale_x(point.at), scale_y(point.value)) for point in points], colours[at % len(colours)])
        )
        for point in points:
            parts += _draw_point(point, scale_x(point.at), scale_y, colours[at % len(colours)])
        if legend:
            last, colour = points[-1], colours[at % len(colours)]
            parts.append(svg.draw_text(word, scale_x(last.at), scale_y(last.value) - 8, colour, anchor="end"))
    if not names:
        parts.append(svg.draw_time_axis(begin, end, left=LEFT, right=right, y=foot))
    spans = svg.place_labels(
        [(scale_x(at), svg.estimate_text_width(text)) for at, text in enumerate(names)], left=0, right=width, rows=1
    )
    parts += [
        svg.draw_text(text, place.middle, foot + 20, "soft") for text, place in zip(names, spans, strict=True) if place
    ]
    return svg.draw_figure(foot + BOTTOM, name, *parts, width=width)


def _draw_line(places: Sequence[tuple[float, float]], colour: str) -> svg.Element:
    path = "L".join(f"{svg.format_number(x)} {svg.format_number(y)}" for x, y in places)
    return svg.draw_element("path", d=f"M{path}", stroke_width=2, stroke_linejoin="round", **svg.paint(stroke=colour))


def _draw_point(point: Point, x: float, scale_y: Callable[[float], float], colour: str) -> list[svg.Element]:
    span = []
    if point.low is not None and point.high is not None:
        span = [svg.draw_line(x, scale_y(point.low), x, scale_y(point.high), colour, width=5, opacity=0.4)]
    title = svg.draw_element("title", svg.escape_text(point.words))
    return [*span, svg.draw_element("circle", title, cx=x, cy=scale_y(point.value), r=3.5, **svg.paint(colour))]
