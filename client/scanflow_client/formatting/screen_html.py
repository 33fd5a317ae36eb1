"""Screens as HTML, for notebooks: other people's text escaped, in the colours of the notebook's theme."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from markupsafe import Markup

from scanflow.drawing.states import STATE_LOOKS
from scanflow.drawing.svg import COLOURS, WIDTH
from scanflow.text.markup import Templates
from scanflow.text.masking import mask_addresses
from scanflow.text.printable import make_one_line, make_printable
from scanflow_client.formatting.text_table import Screen, Table

MAX_ROWS = 50
_MAX_LENGTH = 400
_COLUMN_GAP = "  "
_COLOUR_OF: Mapping[str, str] = {look.mark: look.colour for look in STATE_LOOKS.values()}
_TEMPLATES = Templates("scanflow_client")
_SCOPE = ".scanflow-output"
_LIGHT, _DARK = (
    '[data-jp-theme-light="true"],.vscode-light',
    '[data-jp-theme-light="false"],.vscode-dark,.vscode-high-contrast',
)
"""What JupyterLab and VS Code say of their theme; the reader's system may be set to the other one."""


class TextSpan(NamedTuple):
    """A part of a text: plain, a link, or the mark of a state."""

    text: str
    address: str = ""
    colour: str = ""


TextSpans = Sequence[TextSpan]


class _Part(NamedTuple):
    """A table, if it has rows; else a line, or a block of lines."""

    tag: str = ""
    spans: TextSpans = ()
    headers: Sequence[TextSpans] = ()
    rows: Sequence[Sequence[TextSpans]] = ()


def render_screen(
    screen: Screen, *, links: Mapping[str, str] | None = None, drawings: Mapping[str, Markup] | None = None
) -> str:
    """Return lines and tables (the first 50 rows of each) as HTML.

    Args:
        screen: The first line is a heading, if more follows, unless it and the next one have columns.
        links: Addresses by the names that lead to them, wherever these stand.
        drawings: SVG below the lines and tables, by its caption.
    """
    return _TEMPLATES.render(
        "screen.html.jinja",
        style=_write_style(),
        parts=[*_list_parts(screen, links or {})],
        drawings=[(_clean_line(caption), drawing) for caption, drawing in (drawings or {}).items()],
    )


def _list_parts(screen: Screen, links: Mapping[str, str]) -> Iterator[_Part]:
    lines: list[str] = []
    for place, part in enumerate(screen):
        if isinstance(part, str) and not place and _is_heading(part, screen[1:]):
            yield _Part("strong", _divide(_clean_line(part), links))
        elif isinstance(part, str):
            lines.append(_clean_line(part))
        else:
            yield from _join_lines(lines, links)
            lines = []
            yield from _list_table_parts(part, links)
    yield from _join_lines(lines, links)


def _is_heading(line: str, rest: Screen) -> bool:
    """Return whether a first line is a heading: not where it has columns, as the lines below it have."""
    return bool(rest) and not line.startswith(" ") and not (_COLUMN_GAP in line and isinstance(rest[0], str))


def _list_table_parts(table: Table, links: Mapping[str, str]) -> Iterator[_Part]:
    shown = [[_divide(_shorten(cell), links) for cell in row] for row in table.rows[:MAX_ROWS]]
    if shown:
        yield _Part(headers=[[TextSpan(_shorten(header))] for header in table.headers], rows=shown)
    if len(table.rows) > MAX_ROWS:
        yield _Part("div", [TextSpan(f"and {len(table.rows) - MAX_ROWS:,} more")])


def _join_lines(lines: Iterable[str], links: Mapping[str, str]) -> Iterator[_Part]:
    """Return lines as paragraphs; those with indents or columns as one block, in letters of one width."""
    block = list(lines)
    if any(_COLUMN_GAP in line for line in block):
        yield _Part("pre", [span for line in block for span in (*_divide(line, links), TextSpan("\n"))][:-1])
    else:
        yield from (_Part("div", _divide(line, links)) for line in block if line)


def _divide(text: str, links: Mapping[str, str]) -> TextSpans:
    """Return a text as its mark of a state, the names that lead somewhere, and what is between them."""
    spans: list[TextSpan] = []
    if text[1:2] == " " and text[0] in _COLOUR_OF:
        spans.append(TextSpan(text[0], colour=_COLOUR_OF[text[0]]))
        text = text[1:]
    if not links:
        return [*spans, TextSpan(text)]
    names = "|".join(map(re.escape, sorted(links, key=len, reverse=True)))
    parts = re.split(rf"(?<![\w.-])({names})(?![\w-])", text)
    return [*spans, *(TextSpan(part, links[part] if place % 2 else "") for place, part in enumerate(parts) if part)]


def _clean_line(line: str) -> str:
    text = make_printable(mask_addresses(line)).replace("\n", " ")
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def _shorten(cell: object) -> str:
    return make_one_line(mask_addresses(str(cell)), _MAX_LENGTH)


@cache
def _write_style() -> Markup:
    """Return rules for the classes of colours, in the theme of the notebook, else of the reader's system."""
    light, dark = (";".join(f"--{name}:{pair[place]}" for name, pair in COLOURS.items()) for place in (0, 1))
    rules = [
        f"{_SCOPE}{{{light}}}",
        f"@media (prefers-color-scheme:dark){{{_SCOPE}{{{dark}}}}}",
        f":is({_LIGHT}) {_SCOPE}{{{light}}}",
        f":is({_DARK}) {_SCOPE}{{{dark}}}",
        f"{_SCOPE}{_SCOPE} table :is(td,th){{text-align:left}}",  # twice, as JupyterLab's own rule has two classes
        f"{_SCOPE} .short{{white-space:nowrap}}",
        f"{_SCOPE} :is(strong,div,pre){{display:block;white-space:pre-wrap;margin:.3em 0}}",
        # A wide table scrolls in its own box, with whole words.
        f"{_SCOPE} .table{{overflow-x:auto;white-space:normal}}",
        f"{_SCOPE} :is(td,th){{max-width:30em;overflow-wrap:break-word;word-break:normal}}",
        f"{_SCOPE} .drawing{{max-width:{WIDTH:g}px}}",
        f"{_SCOPE} pre{{font-family:var(--jp-code-font-family,monospace)}}",
        *(
            f"{_SCOPE} .{prefix}-{name}{{{what}:var(--{name})}}"
            for prefix, what in (("c", "color"), ("f", "fill"), ("s", "stroke"))
            for name in COLOURS
        ),
    ]
    return Markup("".join(rules))  # noqa: S704 - of constants
