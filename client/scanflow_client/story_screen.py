"""The loop as it happens: a line for each thing that an agent saw or did; in a terminal, below it, what is going on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from scanflow.agent.records import Event
from scanflow.reports.records import LoopEvent
from scanflow.reports.story import loop_event
from scanflow_client.scenario import Scenario
from scanflow_client.traffic import Answered

__all__ = ["StoryScreen", "going_on", "story_line", "story_on"]

_STYLES = {"detection": "red", "promotion": "green", "revert": "yellow", "gate": "magenta", "predictions": "blue"}


class StoryScreen:
    """Says what happened, once each."""

    def __init__(self, print_line: Callable[[str, str], None], update: Callable[[str], None]) -> None:
        """``print_line`` gets a line and its colour, ``update`` what is going on at the moment."""
        self._print, self._update = print_line, update
        self._began = time.time()
        self._told: set[tuple[str, str, str]] = set()

    def tell(self, event: Event) -> None:
        """Take an event."""
        found = loop_event(event)
        if found is None:
            return
        # What an agent wants again at each look, and is refused again, is told once.
        mark = (found.agent, found.text, "" if found.kind == "other" else str(event.id))
        if mark not in self._told:
            self._told.add(mark)
            self._print(story_line(found, self._began), _STYLES.get(found.kind, ""))

    def look(self, scenario: Scenario, answered: Sequence[Answered]) -> None:
        """Take what has been answered so far."""
        self._update(going_on(scenario, answered))


def story_line(found: LoopEvent, began: float) -> str:
    """Return one thing that happened as a line; ``began``: when seconds are counted from."""
    return f"  {max(0.0, found.at - began):5.0f} s  {found.agent:<9} {found.text}"


def going_on(scenario: Scenario, answered: Sequence[Answered]) -> str:
    """Return what is going on: what is waited for, and how well digits are read."""
    right, count = sum(one.right for one in answered), sum(one.right + one.wrong for one in answered)
    read = f"; {count:,} answered, {right / count:.0%} of them right" if count else ""
    return f"{scenario.waits_for}{read}"


@contextmanager
def story_on(stream: TextIO | None) -> Iterator[StoryScreen]:
    """Give a screen that tells on ``stream``; None: it tells nothing."""
    if stream is None:
        yield StoryScreen(lambda _line, _style: None, lambda _text: None)
        return
    if not stream.isatty():

        def plain(line: str, _style: str) -> None:
            encoding = stream.encoding or "utf-8"
            stream.write(line.encode(encoding, errors="replace").decode(encoding) + "\n")
            stream.flush()

        yield StoryScreen(plain, lambda _text: None)
        return
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    with console.status("") as status:
        yield StoryScreen(lambda line, style: console.print(line, style=style, markup=False), status.update)
