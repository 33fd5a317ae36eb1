"""A figure's plots as SVG: bars of the arms beside the source's values, and curves of single samples.

No colour is needed to read them: what the source published is hatched, and curves differ in their dashes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow_research.figure import FigurePanel, FigureResult, Measurements

_WIDTH, _PANEL_H = 960.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 150.0, 40.0, 44.0
_DASHES = ("none", "7 4", "2 3", "9 3 2 3", "14 4", "1 5", "5 2 1 2")
_COLOURS = ("blue", "red", "green", "violet", "amber", "ink")
_POINTS = 200

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
    parts = [*_draw_axes(panel.label, most, top)]
    place_width = (_WIDTH - _LEFT - _RIGHT) / len(values)
    bottom = top + _PANEL_H - _BOTTOM

    def scale_y(value: float) -> float:
        return bottom - value / most * (_PANEL_H - _TOP - _BOTTOM)

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
    most = 1.1 * max(max(values) for values in curves.values()) or 1.0
    right, bottom = _WIDTH - _RIGHT, top + _PANEL_H - _BOTTOM
    parts = [*_draw_axes(panel.label, most, top)]
    longest = max(len(values) for values in curves.values())
    for place, (arm, values) in enumerate(curves.items()):
        step = max(1, math.ceil(len(values) / _POINTS))
        points = " ".join(
            f"{svg.format_number(_LEFT + number / (longest - 1) * (right - _LEFT))},"
            f"{svg.format_number(bottom - value / most * (_PANEL_H - _TOP - _BOTTOM))}"
            for number, value in enumerate(values)
            if number % step == 0
        )
        colour, dashes = _COLOURS[place % len(_COLOURS)], _DASHES[place % len(_DASHES)]
        style = {**svg.paint(stroke=colour), "stroke_dasharray": dashes, "stroke_width": 2}
        parts.append(svg.draw_element("polyline", points=points, **style))
        y = top + _TOP + 18.0 * place + 8
        parts.append(svg.draw_line(right + 14, y, right + 44, y, colour, width=2, stroke_dasharray=dashes))
        parts.append(svg.draw_text(arm, right + 50, y + 4, "ink", anchor="start"))
    parts += [svg.draw_text(f"{longest:,}", right, bottom + 18, "soft"), svg.draw_text("1", _LEFT, bottom + 18, "soft")]
    return parts


def _draw_axes(label: str, most: float, top: float) -> list[svg.Element]:
    right, bottom = _WIDTH - _RIGHT, top + _PANEL_H - _BOTTOM
    parts = [
        svg.draw_text(label, 8.0, top + 18, "ink", anchor="start"),
        svg.draw_line(_LEFT, bottom, right, bottom, "soft"),
    ]
    for tick in svg.compute_ticks(0.0, most, 4):
        y = bottom - tick / most * (_PANEL_H - _TOP - _BOTTOM)
        parts += [
            svg.draw_line(_LEFT, y, right, y, "line"),
            svg.draw_text(_format_number(tick), _LEFT - 8, y + 4, "soft", anchor="end"),
        ]
    return parts


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
