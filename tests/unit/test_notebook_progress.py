"""What the one output of a cell says while a run or a change goes on."""

from __future__ import annotations

import re

import pytest
from IPython.display import DisplayHandle

from scanflow.backends.run_records import EnvironmentReady, RunEnded, RunStarted, TaskEnded, TaskStarted, Waiting
from scanflow.names import RunName, StepName
from scanflow.text.failures import Failure
from scanflow_client.formatting.run_text import format_run
from scanflow_client.formatting.text_table import Table, format_lines
from scanflow_client.notebook_progress import MAX_LINES, NotebookLines, RunTable, show_in_place
from tests.notebooks import build_run, build_task

NAME = RunName("tall-fox-1")


def read_rows(table: RunTable) -> list[tuple[str, ...]]:
    return [tuple(row) for part in table.make_screen() if isinstance(part, Table) for row in part.rows]


def test_the_table_of_a_run_has_a_row_for_each_step_that_has_started() -> None:
    moment = [0.0]
    table = RunTable(lambda: moment[0])
    assert table.make_screen() == ["● starting"]
    table.update(RunStarted(run=NAME, steps=3, ignored=("load: image",)))
    table.update(Waiting(run=NAME, what="environment", why="it is made"))
    table.update(EnvironmentReady(run=NAME, what="environment", seconds=2.5))
    table.update(TaskStarted(run=NAME, task=StepName("load"), step="load", width=1, attempt=1))
    moment[0] = 2.0
    failed = build_task("load", "failed", attempts=1, failure=Failure(summary="exit 1"))
    table.update(TaskEnded(run=NAME, record=failed, width=1, retry_in_s=3.0))
    assert read_rows(table)[1] == ("load", "↻ waiting", "2.00 s", "exit 1; attempt 2 in 3 s")
    moment[0] = 3.25
    table.update(TaskStarted(run=NAME, task=StepName("load"), step="load", width=1, attempt=2))
    assert read_rows(table)[1] == ("load", "● running", "3.00 s", "attempt 2")
    table.update(TaskEnded(run=NAME, record=build_task("load", "succeeded", seconds=0.25), width=1))
    head, rows, note = table.make_screen()
    assert (head, note) == ("● tall-fox-1  3 steps", "  ! load: image")
    assert isinstance(rows, Table)
    assert list(rows.rows) == [("environment", "✓ ready", "2.50 s", ""), ("load", "✓ succeeded", "0.25 s", "")]


def test_a_fan_out_is_one_row_that_counts() -> None:
    moment = [0.0]
    table = RunTable(lambda: moment[0])
    for number in range(3):
        table.update(TaskStarted(run=NAME, task=StepName(f"train.{number}"), step="train", width=3, attempt=1))
    table.update(TaskEnded(run=NAME, record=build_task("train.0", "succeeded"), width=3, left=2))
    moment[0] = 7.5
    assert read_rows(table) == [("train ×3", "● running", "7.00 s", "1 of 3 done")]
    table.update(TaskEnded(run=NAME, record=build_task("train.1", "succeeded"), width=3, left=1))
    table.update(TaskEnded(run=NAME, record=build_task("train.2", "succeeded"), width=3, left=0))
    assert read_rows(table) == [("train ×3", "✓ succeeded", "7.50 s", "")]


def test_a_task_that_failed_is_what_its_fan_out_says() -> None:
    table = RunTable()
    table.update(TaskStarted(run=NAME, task=StepName("train.0"), step="train", width=2, attempt=1))
    failed = build_task("train.0", "failed", failure=Failure(summary="exit 1"))
    table.update(TaskEnded(run=NAME, record=failed, width=2, left=2))
    table.update(TaskEnded(run=NAME, record=build_task("train.1", "succeeded"), width=2, left=1))
    assert [row[1] for row in read_rows(table)] == ["✗ failed"]


def test_the_table_of_a_run_that_has_ended_is_what_the_command_shows() -> None:
    table = RunTable()
    table.update(TaskEnded(run=NAME, record=build_task("load", "succeeded", origin="old-fox-1"), width=1))
    assert read_rows(table) == [("load", "≡ reused", "", "from old-fox-1")]
    record = build_run("succeeded", build_task("load", "succeeded"))
    table.update(RunEnded(run=NAME, record=record))
    assert format_lines(table.make_screen()) == format_lines(format_run(record))
    assert table.ended_run == NAME


def test_what_a_run_leaves_in_the_cell_has_times_with_their_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[str]()
    for method in ("display", "update"):
        monkeypatch.setattr(DisplayHandle, method, lambda _self, bundle, **_: shown.append(bundle["text/plain"]))
    with show_in_place(lambda: format_run(build_run("succeeded"))):
        pass
    assert {bool(re.search(r"succeeded, 19\d\d-\d\d-\d\d \d\d:\d\d:\d\d \w+", text)) for text in shown} == {True}


def test_lines_of_progress_are_the_newest_and_what_goes_on() -> None:
    lines = NotebookLines()
    assert lines.make_screen() == ["● …"]
    for number in range(MAX_LINES + 2):
        lines.print(f"  instance {number} is ready", "")
    lines.update("digits")
    screen = lines.make_screen()
    assert (screen[0], screen[-1]) == ("  … 2 lines before", "● digits")
    assert len(screen) == MAX_LINES + 2
    lines.update("")
    assert lines.make_screen()[-1] == f"  instance {MAX_LINES + 1} is ready"


def test_of_what_says_nothing_nothing_stays() -> None:
    table, lines = RunTable(), NotebookLines()
    for shown in (table, lines):
        assert shown.make_screen() != []
        shown.end()
        assert shown.make_screen() == []
