"""The frame of a plot: where values are on it, and its grid with round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scanflow.drawing import svg

LEFT = 56.0
"""The least room for the numbers of the grid."""

TICKS = 4
NUMBER = "{:,.10g}"
"""Writes a number at an axis: those there are round, however large."""

LEGEND_ROW_PX, SWATCH_PX, LEGEND_GAP_PX = 16.0, 32.0, 14.0
_LEAST_STEPS = (("%", 0.01), (".0f", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotFrame:
    """Edges in pixels, and the values at them."""

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def scale_x(self, value: float) -> float:
        """Return where a value is; one beyond an edge is on it."""
        first, last = self.x
        return self.left + (min(max(value, first), last) - first) / (last - first) * (self.right - self.left)

    def scale_y(self, value: float) -> float:
        low, high = self.y
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def draw_grid(self, form: str, *, ticks: int = TICKS) -> list[svg.Element]:
        """Return a line at each round number of the upright axis; ``form`` writes it: ``{:.0%}``."""
        parts = []
        for tick in compute_grid(self.y, form, ticks) if self.bottom > self.top else ():
            y = self.scale_y(tick)
            parts.append(svg.draw_line(self.left, y, self.right, y, "line"))
            parts.append(svg.draw_text(form.format(tick), self.left - 8, y + 4, "soft", anchor="end"))
        return parts

    def draw_ticks(self, form: str, *, ticks: int) -> list[svg.Element]:
        """Return the level axis with its round numbers."""
        parts = [svg.draw_line(self.left, self.bottom, self.right, self.bottom, "soft")]
        for tick in svg.compute_ticks(*self.x, ticks):
            x = self.scale_x(tick)
            parts.append(svg.draw_line(x, self.bottom, x, self.bottom + 5, "soft"))
            parts.append(svg.draw_text(form.format(tick), x, self.bottom + 20, "soft"))
        return parts


def choose_limits(
    values: Iterable[float], form: str, limits: tuple[float | None, float | None] = (None, None)
) -> tuple[float, float]:
    """Return the ends of an axis: ``limits``, and where one is None a round number beyond all values."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low = min(finite) if limits[0] is None else limits[0]
    high = max(finite) if limits[1] is None else limits[1]
    if high <= low:  # all figures are one
        low, high = (low - 0.1, high) if limits[0] is None and low > 0.1 else (low, low + 1)
    step = max(svg.choose_step(high - low, TICKS), _get_least_step(form))
    low = step * math.floor(low / step + 1e-9) if limits[0] is None else low
    return low, max(low + step, step * math.ceil(high / step - 1e-9) if limits[1] is None else high)


def compute_grid(limits: tuple[float, float], form: str, ticks: int = TICKS) -> list[float]:
    """Return round numbers between two that do not read alike."""
    return svg.compute_ticks(*limits, ticks, _get_least_step(form))


def _get_least_step(form: str) -> float:
    return max((step for ending, step in _LEAST_STEPS if ending in form), default=0.0)


def compute_left(forms: Iterable[tuple[str, tuple[float, float]]]) -> float:
    """Return the left edge that leaves room for the numbers of each grid, given its form and limits."""
    labels = [form.format(tick) for form, limits in forms for tick in compute_grid(limits, form)]
    return max([LEFT, *(svg.estimate_text_width(label) + 12 for label in labels)])


def place_legend(names: Iterable[str], *, first: float, left: float, right: float) -> list[tuple[int, float]]:
    """Return the row and the left edge of each name of a legend; the first row begins at ``first``."""
    row, x, places = 0, first, list[tuple[int, float]]()
    for name in names:
        wide = SWATCH_PX + svg.estimate_text_width(name)
        if places and x + wide > right:
            row, x = row + 1, left
        places.append((row, x))
        x += wide + LEGEND_GAP_PX
    return places


def draw_legend(
    entries: Sequence[tuple[str, svg.Element]], *, first: float, left: float, right: float, y: float
) -> list[svg.Element]:
    """Return names with their swatches, which are drawn around 0, 0, in as many rows as they take."""
    parts = list[svg.Element]()
    places = place_legend([name for name, _ in entries], first=first, left=left, right=right)
    for (name, swatch), (row, x) in zip(entries, places, strict=True):
        base = y + row * LEGEND_ROW_PX
        place = f"translate({svg.format_number(x + 14)} {svg.format_number(base - 4)})"
        parts.append(svg.draw_element("g", swatch, transform=place))
        parts.append(
            svg.draw_label(svg.shorten_text(name, right - x - SWATCH_PX), x + SWATCH_PX, base, "ink", anchor="start")
        )
    return parts
