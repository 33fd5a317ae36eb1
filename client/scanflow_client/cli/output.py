"""The one way out: everything that a command prints is made safe for the terminal here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
    typer.echo(json.dumps(_jsonable(value), indent=indent))


def write_blocks(blocks: Iterator[bytes], *, raw: bool) -> bool:
    """Write what a process printed, and return whether it was anything.

    To a terminal its escape sequences are left out unless ``raw``; to a file or a pipe every byte is written as it is.
    """
    stream = None if raw or not sys.stdout.isatty() else PrintableStream()
    found = False
    for block in blocks:
        found = True
        pass_through(block if stream is None else stream.feed(block).encode())
    if stream is not None:
        pass_through(stream.feed(b"", last=True).encode())
    return found


def pass_through(content: bytes) -> None:
    """Write bytes to standard output as they are."""
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


@contextmanager
def observer(as_json: bool) -> Iterator[Any]:
    """Give an observer that prints how a service changes; with JSON, one that prints nothing."""
    from scanflow_client.progress import changes_on

    if as_json:
        yield lambda _change: None
        return
    with changes_on(sys.stdout) as observe:
        yield observe


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_jsonable(one) for one in value]
    return value


def _print_table(table: Any) -> None:
    from scanflow_client.formatting.table import lay_out

    terminal = sys.stdout.isatty()
    lines = lay_out(table, shutil.get_terminal_size().columns if terminal else None)
    for place, line in enumerate(lines):
        typer.echo(typer.style(line, bold=True) if terminal and not place else line)
