"""Drawings in the colours of the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from scanflow.drawing.text_graph import StyledLine

STYLES = {
    "soft": "dim",
    "blue": "bright_blue",
    "red": "bold red",
    "green": "green",
    "amber": "yellow",
    "violet": "magenta",
}
"""The style of each colour of drawings; those that are not here have none."""


def open_console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False)


def print_styled(lines: Iterable[StyledLine], stream: TextIO) -> None:
    """Print the lines of a drawing, none of which is broken."""
    console = open_console(stream)
    for line in lines:
        console.print(Text.assemble(*((text, STYLES.get(colour, "")) for text, colour in line)), soft_wrap=True)
