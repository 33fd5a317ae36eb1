"""The one way out: everything that a command prints is made safe for the terminal here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import typer

from scanflow.printable import PrintableStream, printable

if TYPE_CHECKING:
    from scanflow_client.formatting.table import Screen


def say(*screen: Any, err: bool = False) -> None:
    """Print lines and tables, without escape sequences."""
    for part in screen:
        if isinstance(part, str):
            typer.echo(printable(part), err=err)
        else:
            _print_table(part)


def respond(value: Any, as_json: bool, screen: Callable[[], Screen]) -> None:
    """Print ``value`` as JSON, or what ``screen`` makes of it for people."""
    if as_json:
        print_json(value)
    else:
        say(*screen())


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print records, or what JSON can hold; control characters are escaped, so that nothing is lost."""
    from pydantic_core import to_jsonable_python

    typer.echo(json.dumps(to_jsonable_python(value, by_alias=False), indent=indent))


def progress_stream(as_json: bool) -> TextIO | None:
    """Return where progress is printed: nowhere beside JSON."""
    return None if as_json else sys.stdout


def write_blocks(blocks: Iterator[bytes], *, raw: bool) -> bool:
    """Write what a process printed, and return whether it was anything.

    To a terminal its escape sequences are left out unless ``raw``; to a file or a pipe every byte is written as it is.
    """
    stream = None if raw or not sys.stdout.isatty() else PrintableStream()
    found = False
    for block in blocks:
        found = True
        _write(block if stream is None else stream.feed(block).encode())
    if stream is not None:
        _write(stream.feed(b"", last=True).encode())
    return found


def _write(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _print_table(table: Any) -> None:
    from scanflow_client.formatting.table import lay_out

    terminal = sys.stdout.isatty()
    lines = lay_out(table, shutil.get_terminal_size().columns if terminal else None)
    for place, line in enumerate(lines):
        typer.echo(typer.style(line, bold=True) if terminal and not place else line)
