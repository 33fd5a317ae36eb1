"""Draws the distributions of columns in two tables, before and now, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from scanflow.drawing import svg

if TYPE_CHECKING:
    from scanflow.drift.two_sample import Comparison

MAX_COLUMNS = 6
WIDTH, HEIGHT, TOP, FOOT, GAP = 340.0, 190.0, 44.0, 20.0, 24.0
LETTERS = 44  # of the widest line over a column


def draw_columns(comparison: Comparison, *, most: int = MAX_COLUMNS) -> Markup:
    """Draw the ``most`` columns that changed most as SVG, two in a row."""
    shown = comparison.columns[:most]
    width, height = 2 * WIDTH + 3 * GAP, (len(shown) + 1) // 2 * (HEIGHT + GAP) + GAP
    parts = [svg.draw_element("rect", width=width, height=height, **svg.paint("paper"))]
    for at, column in enumerate(shown):
        x, y = GAP + (at % 2) * (WIDTH + GAP), GAP + (at // 2) * (HEIGHT + GAP)
        drawn = _draw_column_parts(asdict(column), colour="red" if comparison.has_drifted(column) else "ink")
        parts.append(svg.draw_element("g", drawn, transform=f"translate({x:g} {y:g})"))
    return svg.draw_figure(height, "Column distributions, before and now", *parts, width=width) + "\n"


def draw_column(column: Mapping[str, Any]) -> Markup:
    """Draw one column of a detection's output ``columns`` as SVG."""
    return svg.draw_figure(HEIGHT, f"Distribution of {column['name']}", _draw_column_parts(column), width=WIDTH)


def _draw_column_parts(column: Mapping[str, Any], *, colour: str = "red") -> svg.Element:
    figures = ", ".join(f"{name} {column[name]:.3g}" for name in ("p", "effect") if _is_number(column.get(name)))
    bins, before, after = _read_bars(column)
    base, step = HEIGHT - FOOT, WIDTH / max(len(bins), 1)
    tallest = max([*before, *after, 1e-9])
    parts = [
        svg.draw_text(_shorten(str(column["name"])), 0, 12, colour, anchor="start", font_weight="bold"),
        svg.draw_text(_shorten(f"{column.get('test', '')} {figures}".strip()), 0, 28, "soft", anchor="start"),
        svg.draw_line(0, base, WIDTH, base, "line"),
    ]
    if not bins:
        summary = f"{_format_summary(column.get('reference'))} → {_format_summary(column.get('current'))}"
        parts.append(svg.draw_text(_shorten(summary), 0, TOP + 24, "ink", anchor="start"))
    for place, pair in enumerate(zip(before, after, strict=True)):
        for share, paint, shift in zip(pair, ("blue", "amber"), (0.1, 0.5), strict=True):
            tall = share / tallest * (base - TOP)
            title = svg.draw_element("title", svg.escape_text(f"{bins[place]}: {share:.1%}"))
            where = {"x": (place + shift) * step, "y": base - tall, "width": step * 0.4, "height": tall}
            parts.append(svg.draw_element("rect", title, **where, **svg.paint(paint)))
    letters = int(step / svg.estimate_text_width("x"))
    if letters > 3 or (bins and max(map(len, bins)) <= letters):
        names = [_shorten(name, letters) for name in bins]
        parts += [svg.draw_text(name, (at + 0.5) * step, base + 15, "soft") for at, name in enumerate(names)]
    elif bins:  # there is room for the ends of an order
        parts.append(svg.draw_text(_shorten(bins[0], LETTERS // 2), 0, base + 15, "soft", anchor="start"))
        parts.append(svg.draw_text(_shorten(bins[-1], LETTERS // 2), WIDTH, base + 15, "soft", anchor="end"))
    return svg.Element("".join(parts))


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
    bins = sorted({*before, *after}, key=lambda name: -_read_share(before, name) - _read_share(after, name))[:12]
    return bins, [_read_share(before, name) for name in bins], [_read_share(after, name) for name in bins]


def _read_share(shares: Mapping[str, Any], name: str) -> float:
    value = shares.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _format_summary(statistics: Any) -> str:
    if not isinstance(statistics, Mapping) or not _is_number(statistics.get("mean")):
        return "unknown"
    return f"mean {statistics['mean']:.3g}" + (f" ± {statistics['sd']:.3g}" if _is_number(statistics.get("sd")) else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shorten(words: str, most: int = LETTERS) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
