"""The page that compares a run with another of the same workflow: states, durations, parameters and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from scanflow.app.quantities import format_duration
from scanflow.backends.run_records import TaskRecord
from scanflow.errors import ScanflowError
from scanflow_server import run_requests
from scanflow_server.dashboard.overview_page import build_run_row
from scanflow_server.dashboard.page import Page, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link, Moment, StateCell
from scanflow_server.dashboard.page_html import to_json
from scanflow_server.dashboard.run_reader import RunReader

_MAX_CHOICES: Final = 20
_MAX_ROWS: Final = 100
_MAX_STEPS: Final = 20
"""How many steps' outputs are compared."""


def load_comparison(request: PageRequest) -> PageView:
    reader, other = RunReader(request), request.query.get("with")
    values: dict[str, Any] = {"run": reader.run, "other": None, "choices": _build_choices(request, reader)}
    if other:
        values |= _compare(reader, RunReader(request, other))
    return PageView(title=f"Compare {reader.run.name}", command=f"scanflow show {reader.run.name}", values=values)


def _build_choices(request: PageRequest, reader: RunReader) -> CellTable:
    """Return the newest other runs of the workflow, to choose from."""
    run = reader.run
    records = run_requests.list_runs(
        request.context, limit=_MAX_CHOICES + 1, app=run.app, team=run.team, workflow=run.workflow
    )
    rows: list[list[Cell]] = []
    for record in records:
        if record.name != run.name:
            state, _, *rest = build_run_row(record)
            rows.append([state, Link(record.name, request.build_address(**{"with": record.name})), *rest])
    columns = ("state", "compare with", "workflow", "took", "started")
    return CellTable(columns, rows[:_MAX_CHOICES], "The workflow has no other run.", "scanflow run")


def _compare(first: RunReader, second: RunReader) -> dict[str, Any]:
    names = ("", first.run.name, second.run.name)
    sides = (first, second)
    about: list[list[Cell]] = [
        ["state", *(StateCell(side.run.state) for side in sides)],
        ["started", *(Moment(side.run.created) for side in sides)],
        ["took", *(None if side.run.seconds is None else format_duration(side.run.seconds) for side in sides)],
        ["of", *(f"{side.run.app}: {side.run.workflow}" for side in sides)],
        ["file", *(side.run.source for side in sides)],
    ]
    outputs = [_read_all_outputs(side) for side in sides]
    return {
        "other": second.run,
        "about": CellTable(names, about),
        "tasks": CellTable(names, _pair_tasks(first.run.tasks, second.run.tasks)[:_MAX_ROWS], "Neither has tasks."),
        "parameters": CellTable(names, list_differences(first.parameters, second.parameters), "They are the same."),
        "outputs": CellTable(names, list_differences(*outputs), "They are the same."),
    }


def list_differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    """Return the names whose values differ, with both; None: there is none. Pure."""
    names = dict.fromkeys([*first, *second])
    return [(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)][
        :_MAX_ROWS
    ]


def _pair_tasks(first: Iterable[TaskRecord], second: Iterable[TaskRecord]) -> list[list[Cell]]:
    """Return how the tasks of both ended and how long they took, those first that ended otherwise. Pure."""
    sides = [{str(task.task): task for task in tasks} for tasks in (first, second)]
    names = dict.fromkeys([*sides[0], *sides[1]])

    def is_same(name: str) -> bool:
        states = {None if (task := side.get(name)) is None else task.state for side in sides}
        return len(states) == 1

    return [[name, *(_describe_task(side.get(name)) for side in sides)] for name in sorted(names, key=is_same)]


def _describe_task(task: TaskRecord | None) -> StateCell | None:
    if task is None:
        return None
    return StateCell(task.state, "" if task.seconds is None else format_duration(task.seconds))


def _read_all_outputs(reader: RunReader) -> dict[str, str]:
    """Return the outputs of the first steps as JSON, by ``step.name``; of those that cannot be read, why."""
    outputs = dict[str, str]()
    for step in dict.fromkeys(task.step for task in reader.run.tasks if task.state == "succeeded"):
        if len(outputs) >= _MAX_STEPS:
            break
        try:
            outputs |= {f"{step}.{name}": to_json(value) for name, value in reader.read_outputs(step).items()}
        except ScanflowError as error:
            outputs[step] = str(error)
    return outputs


PAGES: Final = (Page(path="/runs/{run}/compare", template="comparison", section="/runs", load=load_comparison),)
