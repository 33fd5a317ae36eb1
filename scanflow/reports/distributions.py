"""Columns of two tables drawn beside each other: how values were distributed, and how they are now."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from scanflow.reports.drawing import STYLE, element, paint

if TYPE_CHECKING:
    from scanflow.drift.table import DataTable, Shares
    from scanflow.drift.two_sample import ColumnDrift, Comparison

MOST_COLUMNS = 6
WIDTH, HEIGHT, TOP, GAP = 340, 190, 44, 24


def draw_columns(reference: DataTable, current: DataTable, found: Comparison, *, most: int = MOST_COLUMNS) -> str:
    """Return an SVG picture of the columns that changed most, ``most`` at most, two beside each other."""
    from scanflow.drift.table import shares

    shown = found.columns[:most]
    rows = (len(shown) + 1) // 2
    parts = [
        _column(one, shares(reference.columns[one.name], current.columns[one.name]), at, drifted=one.p <= found.level)
        for at, one in enumerate(shown)
    ]
    width, height = 2 * WIDTH + 3 * GAP, rows * (HEIGHT + GAP) + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
        f"<style>{STYLE}</style>{element('rect', width=width, height=height, **paint('paper'))}{''.join(parts)}</svg>\n"
    )


def _column(one: ColumnDrift, found: Shares, at: int, *, drifted: bool) -> str:
    left, top = GAP + (at % 2) * (WIDTH + GAP), GAP + (at // 2) * (HEIGHT + GAP)
    base, step = top + HEIGHT - 16, WIDTH / len(found.bins)
    tallest = max(*found.reference, *found.current, 1e-9)
    parts = [
        element("text", escape(one.name), x=left, y=top + 12, font_weight="bold", **paint("red" if drifted else "ink")),
        element(
            "text", escape(f"{one.test} p {one.p:.3g}, effect {one.effect:.2f}"), x=left, y=top + 28, **paint("soft")
        ),
        element("line", x1=left, x2=left + WIDTH, y1=base, y2=base, **paint(stroke="line")),
        element("text", escape(found.bins[0]), x=left, y=base + 14, **paint("soft")),
        element("text", escape(found.bins[-1]), x=left + WIDTH, y=base + 14, text_anchor="end", **paint("soft")),
    ]
    for place, (before, after) in enumerate(zip(found.reference, found.current, strict=True)):
        for share, colour, shift in ((before, "blue", 0.1), (after, "amber", 0.5)):
            tall = share / tallest * (HEIGHT - TOP - 20)
            x = left + (place + shift) * step
            parts.append(element("rect", x=x, y=base - tall, width=step * 0.4, height=tall, **paint(colour)))
    return "".join(parts)
