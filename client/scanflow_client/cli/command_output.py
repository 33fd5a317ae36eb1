"""Output of commands; everything that is printed is made safe for the terminal here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from scanflow.text.masking import mask_addresses, mask_secrets
from scanflow.text.printable import PrintableStream, can_print, make_printable

if TYPE_CHECKING:
    from scanflow.drawing.text_graph import TextGraph
    from scanflow_client.formatting.text_table import GraphScreen


def say(*screen: Any, err: bool = False) -> None:
    """Print lines, tables and graphs, without escape sequences and credentials in addresses."""
    for part in screen:
        if isinstance(part, str):
            typer.echo(make_printable(mask_addresses(part)), err=err)
        elif hasattr(part, "draw"):
            _print_graph(part)
        else:
            _print_table(part)


def respond(value: Any, as_json: bool, screen: Callable[[], GraphScreen], *, mask: bool = True) -> None:
    """Print ``value`` as JSON, or the lines and tables of ``screen`` for people. ``mask``: see :func:`print_json`."""
    if as_json:
        print_json(value, mask=mask)
    else:
        say(*screen())


def remark(as_json: bool, *screen: Any) -> None:
    """Print lines and tables for people, beside what a command returns: nothing with JSON."""
    if not as_json:
        say(*screen)


def name_written(files: Iterable[Path]) -> str:
    return f"Wrote {', '.join(map(str, files))}."


def print_json(value: Any, *, indent: int | None = 2, mask: bool = True) -> None:
    """Print records or JSON values; control characters are escaped, and secrets masked.

    ``mask`` False: the value is what the user asked for, such as a new token or what a step returned.
    """
    from scanflow_client.formatting.text import to_document

    document = to_document(value)
    typer.echo(json.dumps(mask_secrets(document) if mask else document, indent=indent, allow_nan=False))


def choose_progress_stream(as_json: bool) -> TextIO | None:
    """Return the stream for progress; None with JSON output."""
    return None if as_json else sys.stdout


def write_blocks(blocks: Iterator[bytes], *, raw: bool) -> bool:
    """Write a process's output, and return whether there was any.

    On a terminal, escape sequences are removed unless ``raw``; to a file or a pipe, all bytes are written unchanged.
    """
    stream = None if raw or not sys.stdout.isatty() else PrintableStream()
    has_output = False
    for block in blocks:
        has_output = True
        _write(block if stream is None else stream.feed(block).encode())
    if stream is not None:
        _write(stream.feed(b"", last=True).encode())
    return has_output


def _write(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _print_table(table: Any) -> None:
    from scanflow_client.formatting.text_table import lay_out

    terminal = sys.stdout.isatty()
    lines = lay_out(table, shutil.get_terminal_size().columns if terminal else None)
    for place, line in enumerate(map(mask_addresses, lines)):
        typer.echo(typer.style(line, bold=True) if terminal and not place else line)


def _print_graph(graph: TextGraph) -> None:
    terminal = sys.stdout.isatty()
    ascii_only = not can_print("┼✓", sys.stdout)
    lines = graph.draw(shutil.get_terminal_size().columns if terminal else None, ascii_only=ascii_only)
    if terminal:
        from scanflow_client.terminal_styles import print_styled

        print_styled(lines, sys.stdout)
        return
    for line in lines:
        typer.echo("".join(text for text, _ in line))
