"""A run as it happens: one line a step. Live where a terminal shows it, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TextIO

from scanflow.app.quantities import format_duration
from scanflow.backends.records import (
    EnvironmentReady,
    Event,
    Observer,
    RunStarted,
    TaskEnded,
    TaskRecord,
    TaskStarted,
    Waiting,
)
from scanflow.names import StepName
from scanflow_client.words import MARKS, counted, task_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress_bar import ProgressBar

    from scanflow.backends.service_records import Progress, ServiceObserver

__all__ = ["Story", "changes_on", "counting_on", "progress_for"]

SHOWN_RUNNING = 8  # lines of running steps kept at the bottom of a terminal


class _FanOut:
    """A fanned-out step so far."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.ended = 0
        self.began = time.monotonic()


class Story:
    """Turns events into lines to print, and knows what runs at the moment. No terminal in here."""

    def __init__(self) -> None:
        self.running: dict[StepName, float] = {}
        self.waiting: dict[str, float] = {}
        self.fan_outs: dict[str, _FanOut] = {}

    def lines(self, event: Event) -> list[str]:
        """Take in an event and return the lines that it is worth."""
        match event:
            case RunStarted():
                kept = f", {counted(event.kept, 'task')} kept" if event.kept else ""
                return [f"run {event.run}  ({counted(event.steps, 'step')}{kept})"]
            case Waiting():
                self.waiting[event.what] = time.monotonic()
                return []
            case EnvironmentReady():
                self.waiting.pop(event.what, None)
                return [f"  {MARKS['succeeded']} {event.what:<28} {format_duration(event.seconds):>9}"]
            case TaskStarted():
                self.running[event.task] = time.monotonic()
                if event.width > 1:
                    self.fan_outs.setdefault(event.step, _FanOut(event.width))
                return [f"  {MARKS['running']} {event.task} still runs, adopted"] if event.adopted else []
            case TaskEnded():
                self.running.pop(event.record.task, None)
                return self._ended(event)
            case _:
                return []

    def _ended(self, event: TaskEnded) -> list[str]:
        record = event.record
        if event.retry_in_s is not None:
            why = record.failure.summary if record.failure else ""
            return [f"  ↻ {record.task:<28} {'':>9}  {why}; try {record.attempts + 1} in {event.retry_in_s:g} s"]
        if event.width == 1 or record.state == "failed":
            return [task_line(record)]
        group = self.fan_outs.setdefault(record.step, _FanOut(event.width))
        group.ended = event.width - event.left
        if event.left:
            return []
        whole = TaskRecord(
            task=StepName(record.step),
            step=record.step,
            state=record.state,
            seconds=time.monotonic() - group.began,
            origin=record.origin,
        )
        del self.fan_outs[record.step]
        return [task_line(whole, label=f"{record.step} ×{group.width}")]


def progress_for(stream: TextIO) -> AbstractContextManager[Observer]:
    """Return a context that gives an observer which shows a run on ``stream``."""
    return _live(stream) if stream.isatty() else _plain(stream)


@contextmanager
def changes_on(stream: TextIO) -> Iterator[ServiceObserver]:
    """Give an observer that shows on ``stream`` how a service changes: a line for each thing that happened."""
    if not stream.isatty():
        yield lambda change: _print(f"  {change.text}", stream)
        return
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    with console.status("") as status:

        def observe(change: Progress) -> None:
            console.print(f"  {change.text}", markup=False)
            status.update(change.service)

        yield observe


@contextmanager
def counting_on(stream: TextIO, text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give what is told how many more are done, and show on ``stream`` how far it has come, or how long it took."""
    began = time.monotonic()
    if not stream.isatty():
        yield lambda _count: None
    else:
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(file=stream), transient=True) as bar:
            task = bar.add_task(text, total=total)
            yield lambda count: bar.advance(task, count)
    _print(f"  {MARKS['succeeded']} {text:<28} {format_duration(time.monotonic() - began):>9}", stream)


@contextmanager
def _plain(stream: TextIO) -> Iterator[Observer]:
    story = Story()

    def observe(event: Event) -> None:
        for line in story.lines(event):
            _print(line, stream)

    yield observe


@contextmanager
def _live(stream: TextIO) -> Iterator[Observer]:
    from rich.console import Console
    from rich.live import Live

    story = Story()
    console = Console(file=stream, highlight=False)
    with Live(_Running(story), console=console, refresh_per_second=8, transient=True) as live:

        def observe(event: Event) -> None:
            for line in story.lines(event):
                live.console.print(line, style=_style(line), markup=False)

        yield observe


class _Running:
    """What runs at this moment, drawn anew each time."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def __rich__(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table.grid(padding=(0, 1))
        for what, began in list(self._story.waiting.items()):
            table.add_row(Spinner("dots"), Text(what), Text(format_duration(now - began), style="dim"))
        grouped = dict(self._story.fan_outs)
        for step, group in grouped.items():
            table.add_row(Spinner("dots"), Text(f"{step} {group.ended}/{group.width}"), _bar(group))
        alone = [task for task in list(self._story.running) if task.partition(".")[0] not in grouped]
        for task in alone[:SHOWN_RUNNING]:
            took = now - self._story.running.get(task, now)
            table.add_row(Spinner("dots"), Text(task), Text(format_duration(took), style="dim"))
        if len(alone) > SHOWN_RUNNING:
            table.add_row("", Text(f"and {len(alone) - SHOWN_RUNNING} more", style="dim"), "")
        return table


def _bar(group: _FanOut) -> ProgressBar:
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=group.width, completed=group.ended, width=30)


def _style(line: str) -> str:
    mark = line.strip()[:1]
    return {"✓": "green", "✗": "bold red", "–": "dim", "≡": "cyan", "↻": "yellow", "r": "bold"}.get(mark, "")


def _print(line: str, stream: TextIO) -> None:
    """Print, also where the terminal's encoding has no ✓."""
    encoding = stream.encoding or "utf-8"
    stream.write(line.encode(encoding, errors="replace").decode(encoding) + "\n")
    stream.flush()
