"""A run as it happens: one line a step; in a terminal also what runs at the moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
from scanflow.printable import printable
from scanflow_client.formatting.runs import task_line
from scanflow_client.formatting.text import MARKS, counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress_bar import ProgressBar

    from scanflow.backends.service_records import Progress, ServiceObserver

MAX_RUNNING = 8
"""Lines of running steps at the bottom of a terminal."""


class _FanOut:
    """A fanned-out step so far."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.ended = 0
        self.began = time.monotonic()


class RunProgress:
    """Turns events into lines to print, and keeps what runs at the moment. Pure."""

    def __init__(self) -> None:
        self.running: dict[StepName, float] = {}
        self.waiting: dict[str, float] = {}
        self.fan_outs: dict[str, _FanOut] = {}

    def lines(self, event: Event) -> list[str]:
        """Return the lines to print for an event."""
        match event:
            case RunStarted():
                kept = f", {counted(event.kept, 'task')} kept" if event.kept else ""
                return [
                    f"run {event.run}  ({counted(event.steps, 'step')}{kept})",
                    *(f"  ! {one}" for one in event.ignored),
                ]
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
            return [f"  ↻ {record.task:<28} {'':>9}  {why}; attempt {record.attempts + 1} in {event.retry_in_s:g} s"]
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
    """Give an observer that prints on ``stream`` the progress of a service's change."""
    if not stream.isatty():
        yield lambda change: print_line(f"  {change.text}", stream)
        return
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    with console.status("") as status:

        def observe(change: Progress) -> None:
            console.print(f"  {printable(change.text)}", markup=False)
            status.update(change.service)

        yield observe


@contextmanager
def _plain(stream: TextIO) -> Iterator[Observer]:
    progress = RunProgress()

    def observe(event: Event) -> None:
        for line in progress.lines(event):
            print_line(line, stream)

    yield observe


@contextmanager
def _live(stream: TextIO) -> Iterator[Observer]:
    from rich.console import Console
    from rich.live import Live

    progress = RunProgress()
    console = Console(file=stream, highlight=False)
    with Live(_Running(progress), console=console, refresh_per_second=8, transient=True) as live:

        def observe(event: Event) -> None:
            for line in progress.lines(event):
                live.console.print(printable(line), style=_style(line), markup=False)

        yield observe


class _Running:
    """What runs at the moment, drawn again at each refresh."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress

    def __rich__(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table.grid(padding=(0, 1))
        for what, began in list(self._progress.waiting.items()):
            table.add_row(Spinner("dots"), Text(what), Text(format_duration(now - began), style="dim"))
        grouped = dict(self._progress.fan_outs)
        for step, group in grouped.items():
            table.add_row(Spinner("dots"), Text(f"{step} {group.ended}/{group.width}"), _bar(group))
        alone = [task for task in list(self._progress.running) if task.partition(".")[0] not in grouped]
        for task in alone[:MAX_RUNNING]:
            took = now - self._progress.running.get(task, now)
            table.add_row(Spinner("dots"), Text(task), Text(format_duration(took), style="dim"))
        if len(alone) > MAX_RUNNING:
            table.add_row("", Text(f"and {len(alone) - MAX_RUNNING} more", style="dim"), "")
        return table


def _bar(group: _FanOut) -> ProgressBar:
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=group.width, completed=group.ended, width=30)


def _style(line: str) -> str:
    mark = line.strip()[:1]
    return {"✓": "green", "✗": "bold red", "–": "dim", "≡": "cyan", "↻": "yellow", "r": "bold"}.get(mark, "")


def print_line(line: str, stream: TextIO) -> None:
    """Print a line without escape sequences, also if the terminal's encoding has no ✓."""
    encoding = stream.encoding or "utf-8"
    stream.write(printable(line).encode(encoding, errors="replace").decode(encoding) + "\n")
    stream.flush()
