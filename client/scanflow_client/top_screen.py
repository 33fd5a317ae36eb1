"""The screen of ``scanflow top``, which is refreshed in place."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from scanflow.app.quantities import format_count
from scanflow.drawing.states import STATE_LOOKS
from scanflow.text.masking import mask_addresses
from scanflow.text.printable import can_print, make_one_line
from scanflow_client.formatting.text_table import Screen, Table, lay_out
from scanflow_client.formatting.top_text import LEVELS, format_top
from scanflow_client.terminal_styles import STYLES

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from scanflow_client.top_reading import TopReading

_MARKS = {look.mark: STYLES[look.colour] for look in STATE_LOOKS.values()}
_MARK = re.compile(rf"(?:^|(?<=  ))[{re.escape(''.join(_MARKS))}](?= \w)")


class TopScreen:
    """The last reading, laid out for the terminal as it is now; what fails for a while is above it."""

    def __init__(self) -> None:
        self._reading: TopReading | None = None
        self._problem = ""

    def show(self, reading: TopReading) -> None:
        self._reading, self._problem = reading, ""

    def report(self, error: Exception) -> None:
        words = make_one_line(str(error))
        self._problem = f"! {words}{'' if words.endswith('.') else '.'} Trying again."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        lines = [Text(line, style=STYLES["red"]) for line in textwrap.wrap(self._problem, width)]
        if self._reading is not None:
            ascii_only = not can_print(LEVELS, console.file)
            lines += _lay_out_screen(format_top(self._reading, width=width, ascii_only=ascii_only), width)
        if len(lines) > height:
            hidden = len(lines) - height + 1
            lines = [*lines[: height - 1], Text(f"and {format_count(hidden, 'line')} more: scanflow top --once", "dim")]
        for line in lines:
            line.truncate(width)
            yield line


def _lay_out_screen(screen: Screen, width: int) -> Iterator[Text]:
    for part in screen:
        if isinstance(part, str):
            yield from (Text(line) for line in textwrap.wrap(part, width, drop_whitespace=False) or [""])
        elif isinstance(part, Table):
            for number, line in enumerate(map(mask_addresses, lay_out(part, width))):
                text = Text(line, style="" if number else "bold")
                for match in _MARK.finditer(line):
                    text.stylize(_MARKS[match[0]], match.start(), match.end())
                yield text
