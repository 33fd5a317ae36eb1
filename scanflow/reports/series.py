"""Figures over time: points with their intervals, joined where they are of one thing, and marks for what happened."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scanflow.reports import drawing as svg

LEFT, RIGHT, TOP, HEIGHT, BOTTOM = 56.0, 14.0, 10.0, 150.0, 32.0
ROWS, ROW_PX = 3, 16.0
LINES = ("blue", "green", "violet", "amber")
"""The colours of the first, second … thing; then again."""


class Point(NamedTuple):
    """A figure at a time, and what is said when it is pointed at; ``low`` and ``high``: where it may really be."""

    at: float
    value: float
    words: str
    low: float | None = None
    high: float | None = None


class EventLine(NamedTuple):
    """Something that happened, drawn as a dashed line."""

    at: float
    words: str
    colour: str


def chart(
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
) -> str:
    """Return the plot of things that have a point each at least, in order, as SVG.

    ``span`` are the ends of the axis of time, in seconds since the epoch; or of one along which ``names`` are 0, 1, 2 …
    ``form`` writes a value at the other axis, ``{:.0%}``; where an end of its ``limits`` is None, the figures say it.
    ``legend``: each line's name stands at its end.
    """
    begin, end = span[0], max(span[1], span[0] + 1)
    ends = [end for points in lines.values() for one in points for end in (one.value, one.low, one.high)]
    known = [one for one in ends if one is not None]
    low = min(known) if limits[0] is None else limits[0]
    high = max(known) if limits[1] is None else limits[1]
    if high <= low:  # all figures are one
        low, high = (low - 0.1, high) if limits[0] is None and low > 0.1 else (low, low + 1)
    step = max(svg.nice_step(high - low, 4), 0.01 if "%" in form else 0.0)  # else two ticks would read alike
    low = step * math.floor(low / step + 1e-9) if limits[0] is None else low
    high = max(low + step, step * math.ceil(high / step - 1e-9) if limits[1] is None else high)
    right = width - RIGHT

    def x_of(at: float) -> float:
        return LEFT + (min(max(at, begin), end) - begin) / (end - begin) * (right - LEFT)

    places = svg.place(
        [(x_of(one.at), svg.text_width(one.words)) for one in marks], left=LEFT, right=right, rows=ROWS, gap=4
    )
    head = TOP + ROW_PX * max((1 + label.row for label in places if label), default=0)
    foot = head + HEIGHT

    def y_of(value: float) -> float:
        return foot - (value - low) / (high - low) * HEIGHT

    parts = []
    for tick in svg.ticks(low, high, 4):
        parts.append(svg.line(LEFT, y_of(tick), right, y_of(tick), "line"))
        parts.append(svg.text(form.format(tick), LEFT - 8, y_of(tick) + 4, "soft", anchor="end"))
    for mark, label in zip(marks, places, strict=True):
        x, top = x_of(mark.at), head - 8 - (label.row * ROW_PX if label else 0)
        parts.append(svg.line(x, top + 4, x, foot, mark.colour, stroke_dasharray="4 4"))
        if label:
            parts.append(svg.text(mark.words, label.middle, top, mark.colour))
    for at, (word, points) in enumerate(lines.items()):
        parts.append(_line([(x_of(one.at), y_of(one.value)) for one in points], colours[at % len(colours)]))
        for one in points:
            parts += _point(one, x_of(one.at), y_of, colours[at % len(colours)])
        if legend:
            last, colour = points[-1], colours[at % len(colours)]
            parts.append(svg.text(word, x_of(last.at), y_of(last.value) - 8, colour, anchor="end"))
    if not names:
        parts.append(svg.time_axis(begin, end, left=LEFT, right=right, y=foot))
    spans = svg.place([(x_of(at), svg.text_width(one)) for at, one in enumerate(names)], left=0, right=width, rows=1)
    parts += [svg.text(one, place.middle, foot + 20, "soft") for one, place in zip(names, spans, strict=True) if place]
    return svg.whole(foot + BOTTOM, name, *parts, width=width)


def _line(places: Sequence[tuple[float, float]], colour: str) -> str:
    path = "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in places)
    return svg.element("path", d=f"M{path}", stroke_width=2, stroke_linejoin="round", **svg.paint(stroke=colour))


def _point(one: Point, x: float, y_of: Callable[[float], float], colour: str) -> list[str]:
    span = []
    if one.low is not None and one.high is not None:
        span = [svg.line(x, y_of(one.low), x, y_of(one.high), colour, width=5, opacity=0.4)]
    title = svg.element("title", svg.safe(one.words))
    return [*span, svg.element("circle", title, cx=x, cy=y_of(one.value), r=3.5, **svg.paint(colour))]
