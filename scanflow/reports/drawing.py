"""Small means to draw with: elements as text, ticks at round numbers, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

AXIS_FONT_PX = 12
WIDEST = 0.62  # of a letter, on average, as a share of the font's size: an upper bound for the usual sans-serif fonts
GAP_PX = 8.0


def number(value: float) -> str:
    """Return a coordinate as short as it can be."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, text: str | None = None, /, **attributes: object) -> str:
    """Return one SVG element; ``_`` in a name stands for ``-``, and a name may end in ``_`` (``class_``)."""
    parts = [name]
    for key, value in attributes.items():
        shown = number(value) if isinstance(value, float) else str(value)
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(shown, quote=True)}"')
    opening = " ".join(parts)
    return f"<{opening}/>" if text is None else f"<{opening}>{text}</{name}>"


def text_width(text: str, font_px: float = AXIS_FONT_PX) -> float:
    """Return how wide a text is at most, in pixels."""
    return len(text) * font_px * WIDEST


class PlacedLabel(NamedTuple):
    """Where a text is put: its middle, and in which row, counted from the nearest to what it names."""

    middle: float
    row: int


def place(
    wanted: Sequence[tuple[float, float]], *, left: float, right: float, rows: int, gap: float = GAP_PX
) -> list[PlacedLabel | None]:
    """Return a place for each label so that no two overlap, or None where ``rows`` rows have no room for it.

    Args:
        wanted: the middle and the width of each, in the order in which they may choose.
        left: no label begins before this,
        right: and none ends after this, unless it is wider than all.
        rows: how many rows there are.
        gap: how far labels of one row are apart, at least.
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in range(rows)]
    placed: list[PlacedLabel | None] = []
    for middle, width in wanted:
        middle = max(min(middle, right - width / 2), left + width / 2)
        first, last = middle - width / 2 - gap, middle + width / 2 + gap
        row = next(
            (at for at, others in enumerate(taken) if all(last <= start or end <= first for start, end in others)), None
        )
        if row is not None:
            taken[row].append((first + gap, last - gap))
        placed.append(None if row is None else PlacedLabel(middle, row))
    return placed


def nice_step(span: float, most: int) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that cuts ``span`` into at most ``most`` parts."""
    if span <= 0:
        return 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next((power * each for each in (1, 2, 5, 10) if power * each >= rough * (1 - 1e-9)), power * 10)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from ``low`` to ``high``, no more than ``most`` + 1."""
    step = nice_step(high - low, most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(at * step, 10) for at in range(first, last + 1)]


def span_text(seconds: float, unit: str) -> str:
    """Return a time since the beginning, in ``s``, ``min`` or ``h``."""
    return f"{seconds / {'s': 1, 'min': 60, 'h': 3600}[unit]:g} {unit}"
