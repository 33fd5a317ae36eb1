"""Draws the distributions of columns in two tables, before and now, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from scanflow.drawing.histograms import Histogram, draw_histogram, draw_histograms
from scanflow.drift.column_text import format_mean

if TYPE_CHECKING:
    from scanflow.drift.two_sample import Comparison

MAX_COLUMNS = 6
MOST_VALUES = 12


def draw_columns(comparison: Comparison, *, most: int = MAX_COLUMNS) -> Markup:
    """Draw the ``most`` columns that changed most as SVG, two in a row. The names of drifted ones are red, with a !."""
    histograms = []
    for column in comparison.columns[:most]:
        histogram = build_histogram(asdict(column))
        drifted = comparison.has_drifted(column)
        histograms.append(histogram._replace(name=f"! {histogram.name}", colour="red") if drifted else histogram)
    return draw_histograms("Column distributions, before and now", histograms) + "\n"


def draw_column(column: Mapping[str, Any]) -> Markup:
    """Draw one column of a detection's output ``columns`` as SVG."""
    return draw_histogram(build_histogram(column)._replace(colour="red"))


def build_histogram(column: Mapping[str, Any]) -> Histogram:
    """Return the shares of bins or values of a column; its means, if only those are known."""
    figures = ", ".join(f"{name} {column[name]:.3g}" for name in ("p", "effect") if _is_number(column.get(name)))
    bins, before, now = _read_bars(column)
    return Histogram(
        str(column["name"]),
        f"{column.get('test', '')} {figures}".strip(),
        bins,
        before,
        now,
        summary=f"{_format_summary(column, 'reference')} → {_format_summary(column, 'current')}",
    )


def _read_bars(column: Mapping[str, Any]) -> tuple[list[str], list[float], list[float]]:
    """Return the labels of bins, and both shares of each; none if only means are known."""
    shares, before, after = (column.get(name) for name in ("shares", "reference", "current"))
    if isinstance(shares, Mapping):
        distribution: list[list[Any]] = [list(shares.get(name) or ()) for name in ("bins", "reference", "current")]
        if len({len(values) for values in distribution}) == 1 and all(
            map(_is_number, distribution[1] + distribution[2])
        ):
            return [str(label) for label in distribution[0]], distribution[1], distribution[2]
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or "mean" in before:
        return [], [], []
    bins = sorted({*before, *after}, key=lambda name: -_read_share(before, name) - _read_share(after, name))
    bins = bins[:MOST_VALUES]
    return bins, [_read_share(before, name) for name in bins], [_read_share(after, name) for name in bins]


def _read_share(shares: Mapping[str, Any], name: str) -> float:
    value = shares.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _format_summary(column: Mapping[str, Any], which: str) -> str:
    statistics = column.get(which)
    if not isinstance(statistics, Mapping) or not _is_number(statistics.get("mean")):
        return "unknown"
    sd = statistics["sd"] if _is_number(statistics.get("sd")) else None
    return f"mean {format_mean(statistics['mean'], sd, is_time=bool(column.get('is_time')))}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
