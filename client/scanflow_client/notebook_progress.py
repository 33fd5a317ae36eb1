"""Progress in a notebook: one output of the cell, which is written again in place while things go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from scanflow.app.quantities import format_count, format_duration
from scanflow.backends import run_records
from scanflow.backends.run_records import TaskRecord
from scanflow_client.formatting.run_text import format_run_in_notebook, list_notes
from scanflow_client.formatting.screen_html import render_screen
from scanflow_client.formatting.text import MARKS, keep_times, shorten
from scanflow_client.formatting.text_table import Screen, Table, format_lines
from scanflow_client.notebook import draw_run_steps, remember_shown

if TYPE_CHECKING:
    from markupsafe import Markup

MAX_LINES = 20
"""Of the lines of a change or a search, the newest."""

REFRESH_S = 0.25
"""At most so often an output is written again. In a browser, four times a second look alive."""

_STARTING = f"{MARKS['running']} starting"
_COLUMNS = ("step", "state", "took", "")


@contextmanager
def show_in_place(
    make_screen: Callable[[], Screen],
    links: Mapping[str, str] = MappingProxyType({}),
    draw: Callable[[], Mapping[str, Markup]] = dict,
) -> Iterator[None]:
    """Show a screen as an output of the cell, and make it again until the block ends: what it shows goes on."""
    from IPython.display import DisplayHandle

    def make_bundle() -> dict[str, str]:
        with keep_times():
            screen = make_screen()
        page = render_screen(screen, links=links, drawings=draw())
        return {"text/plain": "\n".join(format_lines(screen)), "text/html": page}

    shown = make_bundle()
    handle = DisplayHandle()
    handle.display(shown, raw=True)
    ended = Event()

    def write_changes() -> None:
        nonlocal shown
        while not ended.wait(REFRESH_S):
            bundle = make_bundle()
            if bundle != shown:
                handle.update(bundle, raw=True)
                shown = bundle

    thread = Thread(target=write_changes, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        handle.update(make_bundle(), raw=True)


@contextmanager
def show_run_table(link_runs: Callable[..., Mapping[str, str]]) -> Iterator[run_records.Observer]:
    """Provide an observer that shows a run in one table, with a link to its page where ``link_runs`` knows it."""
    table, links = RunTable(), dict[str, str]()

    def observe(event: run_records.Event) -> None:
        links.update({} if event.run in links else link_runs(event.run))
        table.update(event)

    with show_in_place(table.make_screen, links, table.draw):
        try:
            yield observe
        finally:
            table.end()
    if table.ended_run is not None:
        remember_shown(table.ended_run)


class NotebookLines:
    """Lines of progress, and the current activity below them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._current = ""
        self._ended = False

    def print(self, line: str, _style: str) -> None:
        self._lines.append(line)

    def update(self, current: str) -> None:
        self._current = current

    def end(self) -> None:
        """Show nothing but the lines; of what said nothing, nothing stays."""
        self._current, self._ended = "", True

    def make_screen(self) -> Screen:
        hidden = len(self._lines) - MAX_LINES
        before = [f"  … {format_count(hidden, 'line')} before"] if hidden > 0 else []
        now = [f"{MARKS['running']} {self._current}"] if self._current else []
        waiting = [] if self._ended else [f"{MARKS['running']} …"]
        return [*before, *self._lines[-MAX_LINES:], *now] or waiting


class _Row(NamedTuple):
    state: str

    began: float | None = None
    """When it began, of what goes on."""

    took: float | None = None
    remark: str = ""


class RunTable:
    """The steps of a run that have started; a fan-out is one row. At the end of the run, what ``scanflow show`` has."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._head = _STARTING
        self._notes: list[str] = []
        self._rows: dict[str, _Row] = {}
        self._record: run_records.RunRecord | None = None

    def update(self, event: run_records.Event) -> None:
        match event:
            case run_records.RunStarted():
                self._head = f"{MARKS['running']} {event.run}  {format_count(event.steps, 'step')}"
                self._notes = list_notes(event)
            case run_records.Waiting():
                self._rows[event.what] = _Row("waiting", self._clock(), remark=event.why)
            case run_records.EnvironmentReady():
                self._rows[event.what] = _Row("ready", took=event.seconds)
            case run_records.TaskStarted():
                self._start_task(event)
            case run_records.TaskEnded():
                self._end_task(event)
            case run_records.RunEnded():
                self._record = event.record

    def end(self) -> None:
        """Of a run that did not start, nothing stays."""
        if self._head == _STARTING:
            self._head = ""

    def draw(self) -> Mapping[str, Markup]:
        """Return the graph of the run, if it has ended."""
        return {} if self._record is None else draw_run_steps(self._record)

    @property
    def ended_run(self) -> str | None:
        """The name of the run, if it has ended."""
        return None if self._record is None else self._record.name

    def _start_task(self, event: run_records.TaskStarted) -> None:
        name = _name_row(event.step, event.task, event.width)
        remark = "adopted" if event.adopted else "" if event.attempt < 2 else f"attempt {event.attempt}"
        if event.width == 1 or name not in self._rows:
            self._rows[name] = _Row("running", self._compute_begin(name), remark=remark)

    def _end_task(self, event: run_records.TaskEnded) -> None:
        record = event.record
        name, remark = _name_row(record.step, record.task, event.width), _format_remark(record)
        began = self._compute_begin(name)
        if event.retry_in_s is not None:
            again = f"; attempt {record.attempts + 1} in {event.retry_in_s:g} s"
            row = _Row("waiting" if event.width == 1 else "running", began, remark=f"{remark}{again}")
        elif event.width == 1:
            state = "reused" if record.origin else record.state
            row = _Row(state, took=None if record.origin else record.seconds, remark=remark)
        elif record.state == "failed":
            row = _Row("failed", took=self._clock() - began, remark=remark)
        elif event.left:
            row = _Row("running", began, remark=f"{event.width - event.left} of {event.width} done")
        else:
            row = _Row("reused" if record.origin else record.state, took=self._clock() - began, remark=remark)
        if name not in self._rows or event.width == 1 or self._rows[name].state != "failed":  # one failed: so it stays
            self._rows[name] = row

    def _compute_begin(self, name: str) -> float:
        row = self._rows.get(name)
        return self._clock() if row is None or row.began is None else row.began

    def make_screen(self) -> Screen:
        if self._record is not None:
            return format_run_in_notebook(self._record)
        now = self._clock()
        rows = [
            (name, f"{MARKS[row.state]} {row.state}", _format_took(row, now), shorten(row.remark))
            for name, row in list(self._rows.items())  # a copy: events come from other threads
        ]
        return [*([self._head] if self._head else []), *([Table(_COLUMNS, rows)] if rows else []), *self._notes]


def _name_row(step: str, task: str, width: int) -> str:
    return task if width == 1 else f"{step} ×{width}"


def _format_took(row: _Row, now: float) -> str:
    """Return how long it took, or in whole seconds how long it has taken so far."""
    if row.began is not None:
        return format_duration(float(int(now - row.began)))
    return "" if row.took is None else format_duration(row.took)


def _format_remark(record: TaskRecord) -> str:
    if record.failure is not None:
        return record.failure.summary
    return f"from {record.origin}" if record.origin else record.cache_note or ""
