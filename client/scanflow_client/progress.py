"""Progress of a command: a line for each step or change, and in a terminal the current activity."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from scanflow.app.quantities import format_count, format_duration
from scanflow.backends import run_records
from scanflow.backends.run_records import Observer, TaskRecord
from scanflow.names import StepName
from scanflow.text.printable import can_print, make_printable
from scanflow_client.formatting.run_text import format_task, list_notes
from scanflow_client.formatting.text import MARKS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scanflow.backends.service_records import Progress, ServiceObserver

MAX_RUNNING = 8  # lines of running steps at the bottom of a terminal
_DRAWN = "✓⠋━"
"""Of what is drawn in a terminal: marks of states, spinners and bars."""

_STYLES = {"✓": "green", "✗": "bold red", "–": "dim", "≡": "cyan", "↻": "yellow", "r": "bold"}


class Output(NamedTuple):
    """An output for progress: lines with a style, and in a terminal the current activity below them."""

    print: Callable[[str, str], None]
    update: Callable[[str], None]


@contextmanager
def open_output(stream: TextIO | None, running: RenderableType | None = None) -> Iterator[Output]:
    """Open an output on ``stream``; None: nothing is shown. ``running`` is drawn in place of the current activity."""

    def ignore(*_: str) -> None:
        return

    def print_line(line: str, _style: str) -> None:
        assert stream is not None
        encoding = stream.encoding or "utf-8"  # which may have no ✓
        stream.write(make_printable(line).encode(encoding, errors="replace").decode(encoding) + "\n")
        stream.flush()

    if stream is not None and is_notebook(stream):
        from scanflow_client.notebook_progress import NotebookLines, show_in_place

        lines = NotebookLines()
        with show_in_place(lines.make_screen):
            try:
                yield Output(lines.print, lines.update)
            finally:
                lines.end()
        return
    if stream is None or not _can_draw(stream):
        yield Output(ignore if stream is None else print_line, ignore)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, highlight=False)

    def print_styled(line: str, style: str) -> None:
        console.print(make_printable(line), style=style, markup=False)

    if running is not None:
        with Live(running, console=console, refresh_per_second=8, transient=True):
            yield Output(print_styled, ignore)
    else:
        with console.status("") as status:
            yield Output(print_styled, status.update)


def is_notebook(stream: TextIO) -> bool:
    """Return whether what is printed on a stream is an output of a cell of a notebook."""
    return type(stream).__module__ == "ipykernel.iostream"


def _can_draw(stream: TextIO) -> bool:
    return stream.isatty() and can_print(_DRAWN, stream)


@contextmanager
def show_run_progress(
    stream: TextIO | None, link_runs: Callable[..., Mapping[str, str]] = lambda *_: {}
) -> Iterator[Observer]:
    """Provide an observer that shows a run on ``stream``; None: it shows nothing.

    ``link_runs`` returns the addresses of the pages of runs, where there are any, by their names.
    """
    if stream is not None and is_notebook(stream):
        from scanflow_client.notebook_progress import show_run_table

        with show_run_table(link_runs) as observer:
            yield observer
        return
    progress = RunProgress(is_drawn=stream is not None and _can_draw(stream))
    with open_output(stream, progress) as output:

        def observe(event: run_records.Event) -> None:
            for line in progress.update(event):
                output.print(line, _STYLES.get(line.strip()[:1], ""))

        yield observe


@contextmanager
def show_service_changes(stream: TextIO | None) -> Iterator[ServiceObserver]:
    """Provide an observer that shows a service's changes on ``stream``; None: it shows nothing."""
    with open_output(stream) as output:

        def observe(change: Progress) -> None:
            output.print(f"  {change.text}", "")
            output.update(change.service)

        yield observe


class _FanOut:
    def __init__(self, width: int) -> None:
        self.width = width
        self.ended = 0
        self.began = time.monotonic()


class RunProgress:
    """Turns a run's events into lines to print; rich renders it as the current activity."""

    def __init__(self, *, is_drawn: bool = False) -> None:
        """``is_drawn``: the current activity is drawn, so that what is waited for needs no line of its own."""
        self._is_drawn = is_drawn
        self._running: dict[StepName, float] = {}
        self._waiting: dict[str, tuple[str, float]] = {}
        self._fan_outs: dict[str, _FanOut] = {}

    def update(self, event: run_records.Event) -> list[str]:
        match event:
            case run_records.RunStarted():
                reused = f", {format_count(event.kept, 'task')} kept" if event.kept else ""
                head = f"run {event.run}  ({format_count(event.steps, 'step')}{reused})"
                return [head, *list_notes(event)]
            case run_records.Waiting():
                text = f"{event.what}: {event.why}" if event.why else event.what
                self._waiting[event.what] = text, time.monotonic()
                return [] if self._is_drawn else [f"  … waiting for {text}"]
            case run_records.EnvironmentReady():
                self._waiting.pop(event.what, None)
                return [f"  {MARKS['succeeded']} {event.what:<28} {format_duration(event.seconds):>9}"]
            case run_records.TaskStarted():
                self._running[event.task] = time.monotonic()
                if event.width > 1:
                    self._fan_outs.setdefault(event.step, _FanOut(event.width))
                return [f"  {MARKS['running']} {event.task} still runs, adopted"] if event.adopted else []
            case run_records.TaskEnded():
                self._running.pop(event.record.task, None)
                return self._format_ended(event)
        return []

    def _format_ended(self, event: run_records.TaskEnded) -> list[str]:
        record = event.record
        if event.retry_in_s is not None:
            why = record.failure.summary if record.failure else ""
            return [f"  ↻ {record.task:<28} {'':>9}  {why}; attempt {record.attempts + 1} in {event.retry_in_s:g} s"]
        if event.width == 1 or record.state == "failed":
            return [format_task(record)]
        group = self._fan_outs.setdefault(record.step, _FanOut(event.width))
        group.ended = event.width - event.left
        if event.left:
            return []
        del self._fan_outs[record.step]
        step, took = StepName(record.step), time.monotonic() - group.began
        whole = TaskRecord(task=step, step=step, state=record.state, seconds=took, origin=record.origin)
        whole = whole.model_copy(update={"cache_note": record.cache_note})
        return [format_task(whole, label=f"{step} ×{group.width}")]

    def __rich__(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))

        def add_row(what: str, then: Any) -> None:
            table.add_row(Spinner("dots"), Text(what), then)

        def format_elapsed(began: float) -> Text:
            return Text(format_duration(time.monotonic() - began), style="dim")

        # Copies: events come from other threads than the one that draws.
        for text, began in list(self._waiting.values()):
            add_row(text, format_elapsed(began))
        grouped = dict(self._fan_outs)
        for step, group in grouped.items():
            add_row(f"{step} {group.ended}/{group.width}", ProgressBar(group.width, group.ended, width=30))
        alone = [entry for entry in list(self._running.items()) if entry[0].partition(".")[0] not in grouped]
        for task, began in alone[:MAX_RUNNING]:
            add_row(task, format_elapsed(began))
        if len(alone) > MAX_RUNNING:
            table.add_row("", Text(f"and {len(alone) - MAX_RUNNING} more", style="dim"), "")
        return table
