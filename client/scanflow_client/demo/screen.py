"""The demo's events as they happen: one line each, and in a terminal the current activity below."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from scanflow.agent.records import Event
from scanflow.reports.loop_events import loop_event
from scanflow_client.demo.phases import Phase
from scanflow_client.demo.traffic import Responses
from scanflow_client.progress import print_line

_STYLES = {"detection": "red", "promotion": "green", "revert": "yellow", "gate": "magenta", "predictions": "blue"}


class DemoScreen:
    """Prints each event once."""

    def __init__(self, print_line: Callable[[str, str], None], update: Callable[[str], None]) -> None:
        """Print with ``print_line(line, style)``, and hand the current activity to ``update``."""
        self._print, self._update = print_line, update
        self._began = time.time()
        self._printed: set[tuple[str, str, str]] = set()

    def show(self, event: Event) -> None:
        """Print an event, unless it repeats a request that was printed before."""
        found = loop_event(event)
        if found is None:
            return
        mark = (found.agent, found.text, "" if found.kind == "other" else str(event.id))
        if mark not in self._printed:
            self._printed.add(mark)
            line = f"  {max(0.0, found.at - self._began):5.0f} s  {found.agent:<9} {found.text}"
            self._print(line, _STYLES.get(found.kind, ""))

    def look(self, phase: Phase, responses: Sequence[Responses]) -> None:
        """Show the current activity."""
        self._update(activity(phase, responses))


def activity(phase: Phase, responses: Sequence[Responses]) -> str:
    """Return what is going on, and the accuracy so far."""
    right, count = sum(one.right for one in responses), sum(one.right + one.wrong for one in responses)
    accuracy = f"; {count:,} predictions, {right / count:.0%} correct" if count else ""
    return f"{phase.activity}{accuracy}"


@contextmanager
def screen_on(stream: TextIO | None) -> Iterator[DemoScreen]:
    """Give a screen that prints on ``stream``; None: it prints nothing."""
    if stream is None:
        yield DemoScreen(lambda _line, _style: None, lambda _text: None)
    elif not stream.isatty():
        yield DemoScreen(lambda line, _style: print_line(line, stream), lambda _text: None)
    else:
        from rich.console import Console

        console = Console(file=stream, highlight=False)
        with console.status("") as status:
            yield DemoScreen(lambda line, style: console.print(line, style=style, markup=False), status.update)
