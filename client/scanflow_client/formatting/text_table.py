"""Layout of tables as lines: cells are wrapped between words and never cut, however narrow the terminal is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from scanflow.drawing.text_graph import TextGraph
from scanflow.text.masking import mask_addresses
from scanflow.text.printable import make_one_line, make_printable

GAP = "  "


class Table(NamedTuple):
    """Rows below headers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


Screen = Sequence[str | Table]
"""Output of a command: lines and tables, in order."""

GraphScreen = Sequence[str | Table | TextGraph]
"""Output of a command that may draw a graph, too."""


def lay_out(table: Table, width: int | None = None) -> list[str]:
    """Return a table as lines of at most ``width`` characters; None: one line a row, however long.

    Cells that are too wide are wrapped between words. If even single words do not fit side by side, each row becomes a
    block of ``header  cell`` lines.
    """
    cells = [[make_one_line(cell) for cell in row] for row in (table.headers, *table.rows)]
    natural = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is None or _sum_widths(natural) <= width:
        return [_format_line(row, natural) for row in cells]
    widths = _fit_widths(cells, natural, width)
    if widths is None:
        return _format_blocks(cells)
    lines: list[str] = []
    for row in cells:
        wrapped = [_wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        lines += [_format_line(parts, widths) for parts in zip_longest(*wrapped, fillvalue="")]
    return lines


def format_lines(screen: Screen, width: int | None = None) -> list[str]:
    """Return lines and tables as lines, without control characters and credentials in addresses.

    ``width``: see :func:`lay_out`.
    """
    lines = (line for part in screen for line in ([part] if isinstance(part, str) else lay_out(part, width)))
    return [make_printable(mask_addresses(line)) for line in lines]


def _sum_widths(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _format_line(row: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()


def _wrap(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) or [""]


def _fit_widths(cells: Sequence[Sequence[str]], natural: Sequence[int], width: int) -> list[int] | None:
    """Return widths that fit the terminal, shrinking the widest columns first; None: words would break."""
    least = [
        max((len(word) for cell in column for word in cell.split()), default=0) for column in zip(*cells, strict=True)
    ]
    if _sum_widths(least) > width:
        return None
    widths = list(natural)
    while _sum_widths(widths) > width:
        widest = max((place for place in range(len(widths)) if widths[place] > least[place]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _format_blocks(cells: Sequence[Sequence[str]]) -> list[str]:
    headers, *rows = cells
    size = max(map(len, headers))
    blocks = [
        [f"{head.ljust(size)}{GAP}{cell}".rstrip() for head, cell in zip(headers, row, strict=True)] for row in rows
    ]
    return [line for place, block in enumerate(blocks) for line in ([""] if place else []) + block]
