"""A small HTML table that notebooks show for an object: other people's text escaped, in the page's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from scanflow.text.printable import make_one_line

MAX_ROWS = 50
_MAX_LENGTH = 200
_LEFT = ' style="text-align:left"'


def render_html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *notes: str) -> str:
    """Return a heading, a table (its first 50 rows) and lines below it; None is an empty cell."""
    cells = [[_escape_value("" if cell is None else cell) for cell in row] for row in rows]
    below = [*notes] if len(cells) <= MAX_ROWS else [*notes, f"and {len(cells) - MAX_ROWS:,} more"]
    head = "".join(f"<th{_LEFT}>{_escape_value(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td{_LEFT}>{cell}</td>' for cell in row)}</tr>" for row in cells[:MAX_ROWS])
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if cells else ""
    lines = "".join(f"<div>{_escape_value(line)}</div>" for line in below)
    return f"<div><strong>{_escape_value(title)}</strong>{table}{lines}</div>"


def _escape_value(value: object) -> str:
    return escape(make_one_line(str(value), _MAX_LENGTH))
