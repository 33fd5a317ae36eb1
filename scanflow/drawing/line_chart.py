"""Lines of values over time: points with their intervals, thresholds, periods, and marks of events.

Several panels stand below each other over one axis of time, as values of different units do not share an axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from itertools import groupby, pairwise
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.downsampling import downsample
from scanflow.drawing.plot_frame import (
    LEGEND_ROW_PX,
    NUMBER,
    PlotFrame,
    choose_limits,
    compute_left,
    draw_legend,
    place_legend,
)

RIGHT, TOP, HEIGHT, BOTTOM = 14.0, 10.0, 150.0, 32.0
ROWS, ROW_PX = 3, 16.0
HEAD_PX, GAP_PX = 28.0, 18.0
NEAR_PX = 5.0
"""The lines of events that are nearer to each other are one."""

POINT_PX = 6.0
"""Points that are nearer than this to each other, on average, are a line without dots."""


class Point(NamedTuple):
    """A value at a time, and its tooltip; ``low`` and ``high``: its interval. NaN: not known, which breaks the line."""

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
    mark: str = ""
    """One character, which is drawn even where there is no room for the words."""

    detail: str = ""
    """Its tooltip; empty: its words."""

    address: str = ""


class Period(NamedTuple):
    """A time that is marked: a fail-over, a cool-down."""

    begin: float
    end: float | None
    """None: it goes on."""

    words: str
    colour: str
    address: str = ""


class Threshold(NamedTuple):
    """A value that matters, drawn across. One that changes over time is a line with steps."""

    value: float
    words: str
    colour: str = "red"


class LineStyle(NamedTuple):
    colour: str
    dashes: str = ""
    shape: str = "circle"
    """Of its points: one of :data:`scanflow.drawing.svg.SHAPES`."""

    stepped: bool = False
    """Whether a value holds until the next."""


STYLES = (
    LineStyle("blue"),
    LineStyle("green", "7 4", "square"),
    LineStyle("violet", "2 3", "triangle"),
    LineStyle("amber", "9 3 2 3", "diamond"),
    LineStyle("red", "14 4", "ring"),
    LineStyle("ink", "1 5", "cross"),
)
"""The styles of the first, second … series; then repeated. They differ without colours, too."""

STEPS = LineStyle("ink", "4 2", "square", stepped=True)
"""What was set: a number of instances, a threshold that was changed."""


@dataclass(frozen=True, kw_only=True)
class LinePanel:
    """Lines of one unit."""

    name: str
    """What the values are: ``requests/s``."""

    lines: Mapping[str, Sequence[Point]]
    form: str = NUMBER
    """Writes a value at the axis."""

    limits: tuple[float | None, float | None] = (0.0, None)
    """The ends of the axis. None: the values say it."""

    styles: Mapping[str, LineStyle] = field(default_factory=dict)
    """Of lines by name; the others have those of :data:`STYLES` in turn."""

    thresholds: Sequence[Threshold] = ()
    height: float = HEIGHT
    dotted: bool = True
    """Whether points are drawn where there is room for them."""


def draw_chart(
    name: str,
    lines: Mapping[str, Sequence[Point]],
    marks: Sequence[EventLine] = (),
    *,
    span: tuple[float, float],
    form: str,
    limits: tuple[float | None, float | None] = (None, None),
    names: Sequence[str] = (),
    styles: Mapping[str, LineStyle] | None = None,
    width: float = svg.NARROW,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw series with at least one point each, in order, as SVG.

    ``span`` are the ends of the axis of time, in seconds since the epoch; or of one along which ``names`` are 0, 1, 2 …
    ``form`` writes a value at the other axis, ``{:.0%}``; where an end of its ``limits`` is None, the figures say it.
    """
    panel = LinePanel(name="", lines=lines, form=form, limits=limits, styles=styles or {})
    return draw_panels(name, [panel], marks, span=span, names=names, width=width, zone=zone)


def draw_panels(
    name: str,
    panels: Sequence[LinePanel],
    marks: Sequence[EventLine] = (),
    periods: Sequence[Period] = (),
    *,
    span: tuple[float, float] | None = None,
    names: Sequence[str] = (),
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw panels below each other over one axis of time. Marks and periods run through all of them.

    ``span`` are the ends of that axis; None: those of all points.
    """
    parts, frames = build_panels(panels, marks, periods, span=span, width=width)
    last = frames[-1]
    if names:
        parts += _draw_names(names, last, width)
    else:
        parts.append(svg.draw_time_axis(*last.x, left=last.left, right=last.right, y=last.bottom, zone=zone))
    return svg.draw_figure(last.bottom + BOTTOM, name, *parts, width=width)


def build_panels(
    panels: Sequence[LinePanel],
    marks: Sequence[EventLine] = (),
    periods: Sequence[Period] = (),
    *,
    span: tuple[float, float] | None = None,
    width: float = svg.WIDTH,
    left: float = 0.0,
) -> tuple[list[svg.Element], list[PlotFrame]]:
    """Return panels without their axis of time, and the frame of each. ``left``: the least room for the axes."""
    begin, end = compute_span(panels) if span is None else span
    limits = [choose_limits(_list_values(panel), panel.form, panel.limits) for panel in panels]
    left = max(left, compute_left((panel.form, own) for panel, own in zip(panels, limits, strict=True)))
    axis = PlotFrame(left=left, right=width - RIGHT, top=TOP, bottom=TOP, x=(begin, max(end, begin + 1)), y=(0, 1))
    head, labels = _draw_labels(marks, periods, axis)
    frames = list(_lay_out(panels, limits, axis, top=TOP + head))
    parts = [
        *(part for period in periods for part in _draw_period(period, frames)),
        *(part for panel, frame in zip(panels, frames, strict=True) for part in frame.draw_grid(panel.form)),
        *(_draw_mark(mark, frames) for mark in merge_event_lines(marks, axis)),
        *(part for panel, frame in zip(panels, frames, strict=True) for part in _draw_panel(panel, frame)),
        *labels,
    ]
    return parts, frames


def build_points(
    values: Iterable[tuple[float, float | None]], form: str = "{:,.6g}", *, zone: tzinfo = UTC
) -> list[Point]:
    """Return points with a tooltip of time and value. A value of None is not known, and breaks the line."""
    return [
        Point(at, math.nan, "")
        if value is None
        else Point(at, value, f"{svg.format_time(at, zone=zone)} {form.format(value)}")
        for at, value in values
    ]


def merge_event_lines(marks: Iterable[EventLine], frame: PlotFrame) -> list[EventLine]:
    """Return the marks with those as one that would cover each other: a failure of them, else the first."""
    groups: dict[int, list[EventLine]] = {}
    for mark in marks:
        groups.setdefault(int(frame.scale_x(mark.at) / NEAR_PX), []).append(mark)
    return [_merge(own) for own in groups.values()]


def _merge(marks: Sequence[EventLine]) -> EventLine:
    shown = next((mark for mark in marks if mark.colour == "red"), marks[0])
    more = f", and {len(marks) - 1:,} more beside it" if len(marks) > 1 else ""
    return shown._replace(detail=f"{shown.detail or shown.words}{more}")


def compute_span(panels: Iterable[LinePanel]) -> tuple[float, float]:
    """Return the first and the last time of all points."""
    times = [point.at for panel in panels for points in panel.lines.values() for point in points]
    return min(times, default=0.0), max(times, default=1.0)


def _list_values(panel: LinePanel) -> list[float]:
    points = [point for line in panel.lines.values() for point in line]
    ends = [end for point in points for end in (point.value, point.low, point.high) if end is not None]
    return [*ends, *(threshold.value for threshold in panel.thresholds)]


def _lay_out(
    panels: Sequence[LinePanel], limits: Iterable[tuple[float, float]], axis: PlotFrame, *, top: float
) -> Iterator[PlotFrame]:
    for panel, own in zip(panels, limits, strict=True):
        first = top + _measure_head(panel, axis)
        yield replace(axis, top=first, bottom=first + panel.height, y=own)
        top = first + panel.height + GAP_PX


def _measure_head(panel: LinePanel, axis: PlotFrame) -> float:
    if not panel.name:
        return 0.0
    names = [name for name, _ in _list_legend(panel)]
    places = place_legend(names, first=_get_legend_left(panel, axis), left=axis.left, right=axis.right)
    return HEAD_PX + LEGEND_ROW_PX * max((row for row, _ in places), default=0)


def _get_legend_left(panel: LinePanel, frame: PlotFrame) -> float:
    return max(frame.left, 14 + svg.estimate_text_width(panel.name, svg.BOLD_FONT_PX))


def _draw_labels(
    marks: Sequence[EventLine], periods: Sequence[Period], axis: PlotFrame
) -> tuple[float, list[svg.Element]]:
    """Return the words above the panels, and how much room they take."""
    middles = [(axis.scale_x(period.begin) + axis.scale_x(_get_end(period, axis))) / 2 for period in periods]
    wishes: list[tuple[EventLine | Period, float]] = [
        *zip(periods, middles, strict=True),
        *((mark, axis.scale_x(mark.at)) for mark in marks),
    ]
    places = svg.place_labels(
        [(middle, svg.estimate_text_width(item.words)) for item, middle in wishes],
        left=axis.left,
        right=axis.right,
        rows=ROWS,
        gap=4,
    )
    low = ROW_PX if any(mark.mark for mark in marks) else 0.0
    head = low + ROW_PX * max((1 + label.row for label in places if label), default=0)
    base = axis.top + head - 8 - low
    lines, texts = list[svg.Element](), _draw_signs(marks, axis, axis.top + head - 6)
    for (item, middle), label in zip(wishes, places, strict=True):
        if label is None:
            continue
        y = base - label.row * ROW_PX
        if isinstance(item, EventLine) and label.row:
            lines.append(svg.draw_line(middle, y + 4, middle, base + 4, item.colour, stroke_dasharray="4 4"))
        texts.append(svg.draw_label(item.words, label.middle, y, item.colour))
    return head, [*lines, *texts]


def _draw_signs(marks: Sequence[EventLine], axis: PlotFrame, y: float) -> list[svg.Element]:
    """Draw the characters of events where there is room; that of a failure comes first."""
    signs = sorted((mark for mark in marks if mark.mark), key=lambda mark: mark.colour != "red")
    wishes = [(axis.scale_x(mark.at), svg.estimate_text_width(mark.mark, svg.BOLD_FONT_PX)) for mark in signs]
    places = svg.place_labels(wishes, left=0.0, right=axis.right + RIGHT, rows=1, gap=0.0)
    return [
        svg.draw_text(mark.mark, place.middle, y, mark.colour, font_weight=600)
        for mark, place in zip(signs, places, strict=True)
        if place
    ]


def _get_end(period: Period, axis: PlotFrame) -> float:
    return axis.x[1] if period.end is None else period.end


def _draw_mark(mark: EventLine, frames: Sequence[PlotFrame]) -> svg.Element:
    x = frames[0].scale_x(mark.at)
    line = svg.draw_line(x, frames[0].top - 4, x, frames[-1].bottom, mark.colour, stroke_dasharray="4 4")
    return svg.draw_link(mark.address, mark.detail or mark.words, line)


def _draw_period(period: Period, frames: Sequence[PlotFrame]) -> list[svg.Element]:
    x = frames[0].scale_x(period.begin)
    wide = max(frames[0].scale_x(_get_end(period, frames[0])) - x, 1.0)
    bar = svg.draw_element("rect", x=x, y=frames[0].top - 5, width=wide, height=3.0, **svg.paint(period.colour))
    bands = [
        svg.draw_element(
            "rect",
            x=x,
            y=frame.top,
            width=wide,
            height=frame.bottom - frame.top,
            opacity=0.1,
            **svg.paint(period.colour),
        )
        for frame in frames
    ]
    edges = [
        svg.draw_line(edge, frame.top - 5, edge, frame.bottom, period.colour, stroke_dasharray="1 3")
        for frame in frames
        for edge in (x, x + wide)
    ]
    return [svg.draw_link(period.address, period.words, bar, *bands, *edges)]


def _draw_panel(panel: LinePanel, frame: PlotFrame) -> list[svg.Element]:
    styles = _get_styles(panel)
    parts = _draw_heading(panel, frame) if panel.name else []
    for threshold in panel.thresholds:
        line = _draw_bound(threshold, frame.left, frame.right, frame.scale_y(threshold.value))
        parts.append(svg.draw_titled(threshold.words, line))
    for name, points in panel.lines.items():
        parts += _draw_line(name, points, styles[name], panel, frame) if points else ()
    return parts


def _get_styles(panel: LinePanel) -> dict[str, LineStyle]:
    return {name: panel.styles.get(name, STYLES[place % len(STYLES)]) for place, name in enumerate(panel.lines)}


def _list_legend(panel: LinePanel) -> list[tuple[str, svg.Element]]:
    styles = _get_styles(panel)
    entries = [
        (name, _draw_swatch(styles[name])) for name, points in panel.lines.items() if points and name != panel.name
    ]
    return entries + [(threshold.words, _draw_bound(threshold, -12, 12, 0)) for threshold in panel.thresholds]


def _draw_heading(panel: LinePanel, frame: PlotFrame) -> list[svg.Element]:
    """Draw what the values are, and the names of the lines, in as many rows as they take."""
    first, y = _get_legend_left(panel, frame), frame.top - 12
    entries = _list_legend(panel)
    places = place_legend([name for name, _ in entries], first=first, left=frame.left, right=frame.right)
    y -= LEGEND_ROW_PX * max((row for row, _ in places), default=0)
    head = svg.draw_label(panel.name, 2.0, y, "ink", anchor="start", font_weight=600)
    return [head, *draw_legend(entries, first=first, left=frame.left, right=frame.right, y=y)]


def _draw_swatch(style: LineStyle) -> svg.Element:
    dashes = {"stroke_dasharray": style.dashes} if style.dashes else {}
    line = svg.draw_path([(-12, 0), (12, 0)], style.colour, stroke_width=2, **dashes)
    return svg.join_elements([line, svg.draw_marker(style.shape, 0, 0, style.colour)])


def _draw_bound(threshold: Threshold, left: float, right: float, y: float) -> svg.Element:
    return svg.draw_line(left, y, right, y, threshold.colour, width=2, stroke_dasharray="10 3")


def _draw_line(
    name: str, points: Sequence[Point], style: LineStyle, panel: LinePanel, frame: PlotFrame
) -> Iterator[svg.Element]:
    """Draw a line through points, with dots if they are far enough apart to be pointed at."""
    columns = max(int(frame.right - frame.left), 1)
    shown = downsample(points, *frame.x, columns)
    dotted = panel.dotted and len(shown) * POINT_PX <= columns
    dashes = {"stroke_dasharray": style.dashes} if style.dashes else {}
    for is_gap, group in groupby(shown, lambda point: math.isnan(point.value)):
        places = [(frame.scale_x(point.at), frame.scale_y(point.value)) for point in group if not is_gap]
        if style.stepped and places:
            places = [*_step(places), places[-1]]
        if places:
            line = svg.draw_path(places, style.colour, stroke_width=2, stroke_linejoin="round", **dashes)
            yield line if dotted else svg.draw_titled(_summarize(name, points, panel.form), line)
    if dotted:
        for point in shown:
            if not math.isnan(point.value):
                yield from _draw_point(point, style, frame)


def _step(places: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    for (x, y), (following, _) in pairwise(places):
        yield from ((x, y), (following, y))


def _summarize(name: str, points: Sequence[Point], form: str) -> str:
    values = [point.value for point in points if not math.isnan(point.value)]
    least, most = form.format(min(values)), form.format(max(values))
    return f"{name}: {least} to {most}, last {form.format(values[-1])}".removeprefix(": ")


def _draw_point(point: Point, style: LineStyle, frame: PlotFrame) -> Iterator[svg.Element]:
    x, y = frame.scale_x(point.at), frame.scale_y(point.value)
    if point.low is not None and point.high is not None:
        low, high = frame.scale_y(point.low), frame.scale_y(point.high)
        yield svg.draw_line(x, low, x, high, style.colour, width=5, opacity=0.4)
    yield svg.draw_marker(style.shape, x, y, style.colour, words=point.words)


def _draw_names(names: Sequence[str], frame: PlotFrame, width: float) -> list[svg.Element]:
    """Draw names at 0, 1, 2 … of the level axis: all, or every second, third … if there is no room for more."""
    wishes = [(frame.scale_x(at), svg.estimate_text_width(text)) for at, text in enumerate(names)]
    for step in range(1, len(names) + 1):
        places = svg.place_labels(wishes[::step], left=0, right=width, rows=1)
        if all(places):
            named = zip(names[::step], places, strict=True)
            return [svg.draw_text(text, place.middle, frame.bottom + 20, "soft") for text, place in named if place]
    return []
