"""The page that compares a run with another of the same workflow: states, durations, parameters and outputs."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from scanflow.app.quantities import format_duration
from scanflow.backends.run_records import TaskRecord
from scanflow.errors import ScanflowError
from scanflow.reports.run_differences import list_differences, pair_tasks
from scanflow_server import run_requests
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageRequest, PageView
from scanflow_server.dashboard.overview_page import build_run_row
from scanflow_server.dashboard.page_cells import Cell, CellTable, Moment, StateCell
from scanflow_server.dashboard.page_html import to_json
from scanflow_server.dashboard.run_downloads import open_run
from scanflow_server.run_reader import RunReader, format_parameter

_MAX_CHOICES: Final = 20
_MAX_ROWS: Final = 100
_MAX_STEPS: Final = 20
"""How many steps' outputs are compared."""


def load_comparison(request: PageRequest) -> PageView:
    reader, other = open_run(request), request.query.get("with")
    compared = _compare(reader, open_run(request, other)) if other else {"other": None}
    choices = _build_choices(request, reader)
    return PageView.make(f"Compare {reader.run.name}", run=reader.run, choices=choices, **compared)


def _build_choices(request: PageRequest, reader: RunReader) -> CellTable:
    """Return the newest other runs of the workflow, to choose from."""
    about: Any = reader.run.model_dump(include={"app", "team", "workflow"})
    records = run_requests.list_runs(request.context, limit=_MAX_CHOICES + 2, **about)
    rows = [
        build_run_row(record, "compare with", request.build_address(**{"with": record.name}))
        for record in records
        if record.name not in {reader.run.name, request.query.get("with")}
    ]
    empty = f"The workflow has no {'further' if 'with' in request.query else 'other'} run."
    return CellTable.make(rows[:_MAX_CHOICES], empty, "scanflow run")


def _compare(first: RunReader, second: RunReader) -> dict[str, Any]:
    runs, names = (first.run, second.run), ("what", first.run.name, second.run.name)
    about: list[list[Cell]] = [
        ["state", *(StateCell(run.state) for run in runs)],
        ["started", *(Moment(run.created) for run in runs)],
        ["took", *(None if run.seconds is None else format_duration(run.seconds) for run in runs)],
        ["workflow", *(f"{run.app}: {run.workflow}" for run in runs)],
        ["file", *(run.source for run in runs)],
    ]
    pairs = pair_tasks(first.run.tasks, second.run.tasks)[:_MAX_ROWS]
    parameters, outputs = (
        list_differences(*map(read, (first, second)))[:_MAX_ROWS] for read in (_read_parameters, _read_outputs)
    )
    return {
        "other": second.run,
        "about": CellTable(names, about),
        "tasks": CellTable(names, [[pair.name, *map(_build_task_cell, pair[1:])] for pair in pairs]),
        "parameters": CellTable(names, parameters, "They are the same."),
        "outputs": CellTable(names, outputs, "They are the same."),
    }


def _build_task_cell(task: TaskRecord | None) -> StateCell | None:
    if task is None:
        return None
    return StateCell(task.state, "" if task.seconds is None else format_duration(task.seconds))


def _read_parameters(reader: RunReader) -> dict[str, str]:
    return {name: format_parameter(value) for name, value in reader.parameters.items()}


def _read_outputs(reader: RunReader) -> dict[str, str]:
    """Return the outputs of the first steps as JSON, by ``step.name``; of those that cannot be read, why."""
    outputs = dict[str, str]()
    unfinished = {task.step for task in reader.run.tasks if task.state != "succeeded"}
    steps = dict.fromkeys(task.step for task in reader.run.tasks if task.step not in unfinished)
    for step in islice(steps, _MAX_STEPS):
        try:
            outputs |= {f"{step}.{name}": to_json(value) for name, value in reader.read_outputs(step).items()}
        except ScanflowError as error:
            outputs[step] = str(error)
    return outputs


SERVED: Final = (DashboardPage(path="/runs/{run}/compare", template="comparison", load=load_comparison),)
