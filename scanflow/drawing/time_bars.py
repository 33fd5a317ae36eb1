"""Bars over time (a Gantt chart): a row for each thing, a bar for each time that it took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from itertools import accumulate
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing import svg

RIGHT, TOP, BOTTOM = 24.0, 34.0, 32.0
ROW_PX, BAR_PX, INDENT_PX = 26.0, 16.0, 14.0
STACKED_PX, EDGE_PX, LINE_PX = 38.0, 4.0, 16.0
NAMES = (90.0, 250.0)
"""The least and the most width of the names beside the bars."""

STACKED_BELOW = 600.0
"""In a narrower drawing, names stand above their bars."""

LEAST_S = 0.05
"""The shortest time of a drawing."""

COLUMNS = 240
"""How many parts of its time a density has."""


class TimeBar(NamedTuple):
    """A time that something took, in seconds since the epoch."""

    begin: float
    end: float
    colour: str
    outline: bool = False
    """Whether it is hollow: what waited, or was not done again."""

    words: str = ""
    """Its tooltip; empty: that of its row."""

    label: str = ""
    """Stands in it, if there is room."""

    address: str = ""


class Density(NamedTuple):
    """How many things there were over the time of a row's first bar: shares from 0 to 1, drawn as an area in it."""

    shares: Sequence[float]
    colour: str


class TimeRow(NamedTuple):
    name: str
    words: str
    """Its tooltip."""

    bars: Sequence[TimeBar] = ()
    label: str = ""
    """Stands in the last bar or beside it; without bars, where they would begin."""

    mark: str = ""
    colour: str = "ink"
    """Of the mark."""

    address: str = ""
    indent: int = 0
    strong: bool = False
    """Whether it is emphasised, as what decides how long all took."""

    density: Density | None = None
    """If there is one, the label stands above the bar."""


@dataclass(frozen=True, slots=True)
class _Frame:
    begin: float
    scale: float
    left: float
    right: float
    stacked: bool

    def get_height(self, row: TimeRow) -> float:
        return STACKED_PX if self.stacked or row.density else ROW_PX

    def scale_x(self, at: float) -> float:
        return self.left + (at - self.begin) * self.scale


def draw_time_bars(
    name: str,
    rows: Sequence[TimeRow],
    *,
    heading: str = "",
    span: tuple[float, float] | None = None,
    now: float | None = None,
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw rows in their order, over the time of ``span`` or of all bars.

    ``now``: where the present is marked. A row's mark and colour say the same.
    """
    begin, end = span or _compute_span(rows)
    end = max(end, begin + LEAST_S)
    stacked = width < STACKED_BELOW
    left = EDGE_PX if stacked else _compute_left(rows)
    right = width - (EDGE_PX if stacked else RIGHT)
    frame = _Frame(begin, (right - left) / (end - begin), left, right, stacked)
    lines = svg.wrap_text(heading, width - 2 * EDGE_PX)
    head = [svg.draw_text(line, EDGE_PX, 18 + at * LINE_PX, "ink", anchor="start") for at, line in enumerate(lines)]
    top = TOP + LINE_PX * max(len(lines) - 1, 0)
    *tops, bottom = accumulate((frame.get_height(row) for row in rows), initial=top)
    drawn = [_draw_row(row, place, frame) for row, place in zip(rows, tops, strict=True)]
    axis = svg.draw_time_axis(begin, end, left=left, right=right, y=bottom, zone=zone)
    present = [] if now is None or not begin < now <= end else [_draw_now(frame.scale_x(now), top, bottom)]
    return svg.draw_figure(bottom + BOTTOM, name, *head, *present, *drawn, axis, width=width)


def compute_density(spans: Iterable[tuple[float, float]], begin: float, end: float) -> list[float]:
    """Return how many spans there are in each part of the time between two, as shares of the most."""
    scale = COLUMNS / max(end - begin, 1e-9)
    changes = [0] * (COLUMNS + 1)
    for first, last in spans:
        place = min(max(int((first - begin) * scale), 0), COLUMNS - 1)
        changes[place] += 1
        changes[min(max(int((last - begin) * scale), place) + 1, COLUMNS)] -= 1
    counts = list(accumulate(changes))[:COLUMNS]
    most = max(counts, default=0)
    return [count / most for count in counts] if most else []


def _compute_span(rows: Sequence[TimeRow]) -> tuple[float, float]:
    bars = [bar for row in rows for bar in row.bars]
    return min((bar.begin for bar in bars), default=0.0), max((bar.end for bar in bars), default=1.0)


def _compute_left(rows: Sequence[TimeRow]) -> float:
    widths = [svg.estimate_text_width(row.name, _get_font(row)) + row.indent * INDENT_PX for row in rows]
    return min(max(max(widths, default=0.0) + 34, NAMES[0]), NAMES[1])


def _get_font(row: TimeRow) -> float:
    return svg.BOLD_FONT_PX if row.strong else svg.AXIS_FONT_PX


def _draw_now(x: float, top: float, bottom: float) -> svg.Element:
    line = svg.draw_line(x, top - 4, x, bottom, "blue", stroke_dasharray="2 3")
    return svg.draw_titled("now", line)


def _draw_row(row: TimeRow, top: float, frame: _Frame) -> svg.Element:
    tall = frame.get_height(row) == STACKED_PX
    y = top + frame.get_height(row) - BAR_PX - (4 if tall else (ROW_PX - BAR_PX) / 2)
    parts = [*_draw_name(row, top, frame), *(_draw_bar(bar, y, frame) for bar in row.bars)]
    if row.density is not None and row.bars:
        parts.insert(-len(row.bars), _draw_density(row.density, row.bars[0], y, frame))
    if row.strong:
        foot = y + BAR_PX + 2
        ends = [(frame.scale_x(bar.begin), _compute_end(bar, frame)) for bar in row.bars]
        parts += [svg.draw_line(first, foot, last, foot, "ink", width=2) for first, last in ends]
    if row.label and not frame.stacked:
        parts.append(_draw_label(row, y + BAR_PX - 4, frame))
    return svg.draw_link(row.address, row.words, *parts)


def _draw_name(row: TimeRow, top: float, frame: _Frame) -> list[svg.Element]:
    x, y = EDGE_PX + row.indent * INDENT_PX, top + (13 if frame.stacked else (frame.get_height(row) + 9) / 2)
    label = row.label if frame.stacked else ""
    room = (frame.right - 4 - svg.estimate_text_width(label) if frame.stacked else frame.left) - 8 - x - 16
    weight = {"font_weight": 600} if row.strong else {}
    parts = [svg.draw_text(row.mark, x + 6, y, row.colour)] if row.mark else []
    parts.append(
        svg.draw_text(svg.shorten_text(row.name, room, _get_font(row)), x + 16, y, "ink", anchor="start", **weight)
    )
    return [*parts, svg.draw_text(label, frame.right - 4, y, "soft", anchor="end")] if label else parts


def _compute_end(bar: TimeBar, frame: _Frame) -> float:
    return max(frame.scale_x(bar.end), frame.scale_x(bar.begin) + 2)


def _draw_bar(bar: TimeBar, y: float, frame: _Frame) -> svg.Element:
    x, end = frame.scale_x(bar.begin), _compute_end(bar, frame)
    colour = svg.paint(stroke=bar.colour) if bar.outline else svg.paint(bar.colour)
    parts = [svg.draw_element("rect", x=x, y=y, width=end - x, height=BAR_PX, rx=2, **colour)]
    if label := svg.shorten_text(bar.label, end - x - 6):
        parts.append(svg.draw_text(label, (x + end) / 2, y + BAR_PX - 4, "ink" if bar.outline else "paper"))
    return svg.draw_link(bar.address, bar.words, *parts) if bar.words else svg.join_elements(parts)


def _draw_density(density: Density, bar: TimeBar, y: float, frame: _Frame) -> svg.Element:
    first, foot = frame.scale_x(bar.begin), svg.format_number(y + BAR_PX)
    step = (_compute_end(bar, frame) - first) / len(density.shares)
    path, before = f"M{svg.format_number(first)} {foot}", 0.0
    for place, share in enumerate(density.shares):
        if share != before:
            path += f"H{svg.format_number(first + place * step)}V{svg.format_number(y + BAR_PX * (1 - share))}"
            before = share
    path += f"H{svg.format_number(_compute_end(bar, frame))}V{foot}Z"
    return svg.draw_element("path", d=path, opacity=0.5, **svg.paint(density.colour))


def _draw_label(row: TimeRow, y: float, frame: _Frame) -> svg.Element:
    """Draw the label in the last bar if it fits, else after or before it; above one with a density."""
    if not row.bars:
        return svg.draw_text(row.label, frame.left, y, "soft", anchor="start")
    width = svg.estimate_text_width(row.label) + 8
    if row.density is not None:
        x = max(min(frame.scale_x(row.bars[0].begin), frame.right - width), frame.left)
        return svg.draw_text(row.label, x, y - BAR_PX - 1, "soft", anchor="start")
    first, last = frame.scale_x(row.bars[-1].begin), max(_compute_end(bar, frame) for bar in row.bars)
    if last - first >= width:
        colour = "ink" if row.bars[-1].outline else "paper"
        return svg.draw_text(row.label, (first + last) / 2, y, colour)
    if last + width <= frame.right:
        return svg.draw_text(row.label, last + 5, y, "soft", anchor="start")
    before = min(frame.scale_x(bar.begin) for bar in row.bars)
    if before - width >= frame.left:
        return svg.draw_text(row.label, before - 5, y, "soft", anchor="end")
    return svg.draw_label(row.label, frame.right - width / 2, y, "ink")
