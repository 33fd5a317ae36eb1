"""A small HTML table that notebooks show for an object: other people's text escaped, in the page's own colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scanflow.text.markup import Templates
from scanflow.text.printable import make_one_line

MAX_ROWS = 50
_MAX_LENGTH = 200
_TEMPLATES = Templates()


def render_html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *notes: str) -> str:
    """Return a heading, a table (its first 50 rows) and lines below it; None is an empty cell."""
    cells = [[_shorten("" if cell is None else cell) for cell in row] for row in rows]
    below = [*notes] if len(cells) <= MAX_ROWS else [*notes, f"and {len(cells) - MAX_ROWS:,} more"]
    return _TEMPLATES.render(
        "table.html.jinja",
        title=_shorten(title),
        columns=map(_shorten, columns),
        rows=cells[:MAX_ROWS],
        notes=map(_shorten, below),
    )


def _shorten(value: object) -> str:
    return make_one_line(str(value), _MAX_LENGTH)
