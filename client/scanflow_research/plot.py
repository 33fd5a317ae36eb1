"""A figure's plots as SVG: bars of the arms beside the source's values, and curves of single samples.

No colour is needed to read them: what the source published is hatched, and curves differ in their dashes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.line_chart import LinePanel, Point, build_panels
from scanflow.drawing.plot_frame import PlotFrame
from scanflow_research.figure import FigurePanel, FigureResult, Measurements

_WIDTH, _PANEL_H = 960.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 150.0, 40.0, 44.0

_HATCH = svg.draw_element(
    "defs",
    svg.draw_element(
        "pattern",
        svg.draw_line(0.0, 0.0, 0.0, 6.0, "soft", width=2),
        id="hatch",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    ),
)


def draw_figure(result: FigureResult) -> Markup:
    """Return the plots of a figure below each other as one SVG; empty: nothing was measured."""
    parts, top = [_HATCH], 0.0
    for panel in result.figure.panels:
        drawn = _draw_curves(panel, result.measured, top) if panel.curve else _draw_bars(panel, result, top)
        if drawn:
            parts += drawn
            top += _PANEL_H
    simulated = " (simulated)" if result.simulated else ""
    name = f"{result.figure.source}: {result.figure.title}{simulated}"
    return svg.draw_figure(top, name, *parts, width=_WIDTH) if top else Markup()


def _draw_bars(panel: FigurePanel, result: FigureResult, top: float) -> list[svg.Element]:
    measured = result.measured
    values = {
        arm: measured.select_values(arm, panel.metric)
        for arm in (panel.arms or measured.arms)
        if measured.select_values(arm, panel.metric)
    }
    if not values:
        return []
    published = _compute_published_heights(panel, result)
    most = 1.15 * max([*(max(several) for several in values.values()), *published.values()])
    most = most if most > 0 else 1.0
    bottom = top + _PANEL_H - _BOTTOM
    frame = PlotFrame(left=_LEFT, right=_WIDTH - _RIGHT, top=top + _TOP, bottom=bottom, x=(0.0, 1.0), y=(0.0, most))
    parts = _draw_axes(panel.label, frame)
    place_width = (_WIDTH - _LEFT - _RIGHT) / len(values)
    scale_y = frame.scale_y
    for place, (arm, several) in enumerate(values.items()):
        middle = _LEFT + (place + 0.5) * place_width
        width = min(46.0, 0.34 * place_width)
        value = statistics.median(several)
        x = middle - width if arm in published else middle - width / 2
        parts.append(
            svg.draw_element(
                "rect", x=x, y=scale_y(value), width=width, height=bottom - scale_y(value), **svg.paint("blue")
            )
        )
        centre = x + width / 2
        parts.append(svg.draw_line(centre, scale_y(min(several)), centre, scale_y(max(several)), "ink", width=2))
        parts.append(svg.draw_text(_format_number(value), centre, scale_y(max(several)) - 6, "ink"))
        if arm in published:
            high = scale_y(published[arm])
            parts.append(
                svg.draw_element(
                    "rect",
                    x=middle + 2,
                    y=high,
                    width=width,
                    height=bottom - high,
                    fill="url(#hatch)",
                    stroke="#5b6372",
                )
            )
        parts.append(svg.draw_text(arm, middle, bottom + 18, "ink", font_size=11 if place_width > 90 else 8))
    if published:
        x, y = _WIDTH - _RIGHT + 14, top + _TOP + 10
        parts.append(svg.draw_element("rect", x=x, y=y, width=14.0, height=12.0, **svg.paint("blue")))
        parts.append(svg.draw_text("here", x + 20, y + 11, "ink", anchor="start"))
        parts.append(
            svg.draw_element("rect", x=x, y=y + 20, width=14.0, height=12.0, fill="url(#hatch)", stroke="#5b6372")
        )
        parts.append(svg.draw_text("in the source", x + 20, y + 31, "ink", anchor="start"))
        parts.append(svg.draw_text("(its ratio)", x + 20, y + 45, "soft", anchor="start"))
    return parts


def _compute_published_heights(panel: FigurePanel, result: FigureResult) -> Mapping[str, float]:
    """Return the height of a bar here by the source's ratio, for each arm with a published ratio."""
    heights = {}
    for finding in result.findings:
        claim = finding.claim
        if claim.metric != panel.metric or claim.published is None or not claim.base or claim.arm in heights:
            continue
        base = result.measured.compute_median(claim.base, claim.metric)
        if base is not None and result.measured.compute_median(claim.arm, claim.metric) is not None:
            heights[claim.arm] = claim.published * base
    return heights


def _draw_curves(panel: FigurePanel, measured: Measurements, top: float) -> list[svg.Element]:
    curves: dict[str, Sequence[float]] = {}
    for part in measured.rounds[:1]:  # of one round: samples of several have no common order
        own = part.curves.get(panel.metric, {})
        curves = {arm: own[arm] for arm in (panel.arms or own) if len(own.get(arm, ())) > 1}
    if not curves:
        return []
    lines = {arm: [Point(at, value, "") for at, value in enumerate(values, 1)] for arm, values in curves.items()}
    longest = max(len(values) for values in curves.values())
    height = _PANEL_H - _TOP - _BOTTOM
    panels = [LinePanel(name=panel.label, lines=lines, height=height, dotted=False)]
    parts, (frame,) = build_panels(panels, span=(1, longest), width=_WIDTH, left=_LEFT)
    foot = frame.bottom + 18
    parts += [
        svg.draw_text(f"{longest:,}", frame.right - 12, foot, "soft"),
        svg.draw_text("1", frame.left, foot, "soft"),
    ]
    return [svg.draw_element("g", *parts, transform=f"translate(0 {top:g})")]


def _draw_axes(label: str, frame: PlotFrame) -> list[svg.Element]:
    line = svg.draw_line(frame.left, frame.bottom, frame.right, frame.bottom, "soft")
    return [svg.draw_text(label, 8.0, frame.top - _TOP + 18, "ink", anchor="start"), *frame.draw_grid("{:,.6g}"), line]


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
