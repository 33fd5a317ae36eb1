"""Decisions over metrics on one plot (thesis Fig. 5.10): what was seen, what was decided of it, and what it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.event_lanes import LaneAxis, LaneEvent, compute_left, draw_lanes
from scanflow.drawing.line_chart import (
    BOTTOM,
    EventLine,
    LinePanel,
    Period,
    Point,
    Threshold,
    build_panels,
    compute_span,
    merge_event_lines,
)

PANEL_PX, LANE_ROWS = 90.0, 2


def draw_decisions(
    metrics: Mapping[str, Sequence[Point]],
    decisions: Sequence[EventLine],
    *,
    observations: Mapping[str, Sequence[LaneEvent]] | None = None,
    thresholds: Mapping[str, Sequence[Threshold]] | None = None,
    periods: Sequence[Period] = (),
    span: tuple[float, float] | None = None,
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw a panel for each metric and a lane for each kind of observation; decisions run through all of them.

    Args:
        metrics: The points of each metric by its name, in the order of time.
        decisions: What was decided, with its mark and colour.
        observations: Events by who made them: a sensor that fired, a strategy whose rule held.
        thresholds: Of metrics by name.
        periods: Times that are marked through all panels.
        span: The ends of the axis. None: those of everything drawn.
    """
    lanes = observations or {}
    panels = [
        LinePanel(
            name=name,
            lines={name: points},
            form="{:,.0f}" if all(point.value % 1 == 0 or math.isnan(point.value) for point in points) else "{:,.6g}",
            limits=(None, None),
            thresholds=(thresholds or {}).get(name, ()),
            height=PANEL_PX,
        )
        for name, points in metrics.items()
    ] or [LinePanel(name="", lines={}, height=0.0)]
    begin, end = _compute_span(panels, decisions, lanes) if span is None else span
    left_px = compute_left(lanes, width, least=0.0)
    parts, frames = build_panels(panels, decisions, periods, span=(begin, end), width=width, left=left_px)
    last = frames[-1]
    axis = LaneAxis(*last.x, last.left, last.right)
    drawn, bottom = draw_lanes(lanes, axis, top=last.bottom, rows=LANE_ROWS)
    guides = [
        svg.draw_line(
            axis.scale_x(mark.at), last.bottom, axis.scale_x(mark.at), bottom, mark.colour, stroke_dasharray="4 4"
        )
        for mark in merge_event_lines(decisions, last)
        if lanes
    ]
    times = svg.draw_time_axis(*last.x, left=last.left, right=last.right, y=bottom, zone=zone)
    return svg.draw_figure(bottom + BOTTOM, "Decisions over metrics", *parts, *guides, *drawn, times, width=width)


def _compute_span(
    panels: Sequence[LinePanel], decisions: Sequence[EventLine], lanes: Mapping[str, Sequence[LaneEvent]]
) -> tuple[float, float]:
    times = [mark.at for mark in decisions] + [event.at for events in lanes.values() for event in events]
    if any(points for panel in panels for points in panel.lines.values()):
        times += compute_span(panels)
    return min(times, default=0.0), max(times, default=1.0)
