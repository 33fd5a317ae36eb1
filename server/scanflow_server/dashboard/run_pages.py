"""The pages of runs: the list, and one run with its graph, its tasks, its logs and what it left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from scanflow.app.quantities import format_duration
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow_server import run_requests
from scanflow_server.dashboard.overview_page import build_run_row
from scanflow_server.dashboard.page import Page, PageAction, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link, Moment, StateCell
from scanflow_server.routes import run_routes
from scanflow_server.scope import restrict_team

_WINDOW: Final = 50
"""How many rows of a table are shown at once."""


def load_runs(request: PageRequest) -> PageView:
    start = int(request.query.get("start", "0") or 0)
    records = run_requests.list_runs(
        request.context,
        limit=start + _WINDOW + 1,
        app=request.query.get("app") or None,
        team=restrict_team(request.caller, request.query.get("team") or None),
        workflow=request.query.get("workflow") or None,
    )[start:]
    table = CellTable(
        ("state", "run", "workflow", "took", "started"),
        list(map(build_run_row, records[:_WINDOW])),
        "No run yet.",
        "scanflow run",
    )
    return PageView(
        title="Runs",
        command="scanflow runs",
        values={
            "table": table,
            "newer": request.build_address(start=max(0, start - _WINDOW) or None) if start else None,
            "older": request.build_address(start=start + _WINDOW) if len(records) > _WINDOW else None,
        },
    )


def load_run(request: PageRequest) -> PageView:
    run = get_run(request)
    failed = [task for task in run.tasks if task.state == "failed"]
    return PageView(
        title=f"Run {run.name}",
        command=f"scanflow show {run.name}",
        values={"run": run, "failed": failed, "tasks": _build_task_table(request, run.tasks)},
    )


def get_run(request: PageRequest) -> RunRecord:
    """Return the run of a page's address; NotFoundError: there is none, or it is another team's."""
    name, team = request.parameters["run"], request.caller.team
    if team is None:
        return run_routes.show(request.context, request.caller, name)
    return run_requests.show_team_run(request.context, name, team=team)


def _build_task_table(request: PageRequest, tasks: Sequence[TaskRecord]) -> CellTable:
    rows: list[list[Cell]] = [
        [
            StateCell(task.state),
            Link(task.task, f"{request.path}?{urlencode({'task': task.task})}"),
            task.attempts or None,
            None if task.seconds is None else format_duration(task.seconds),
            Moment(task.began),
        ]
        for task in tasks[:_WINDOW]
    ]
    return CellTable(("state", "task", "attempts", "took", "started"), rows, "No task has begun yet.")


def resume(request: PageRequest, _form: Mapping[str, str]) -> str:
    run = get_run(request)
    request.caller.check("change", run.team)
    run_requests.request_resume(request.context, run.name, by=request.caller.name)
    return f"/runs/{run.name}"


def stop(request: PageRequest, _form: Mapping[str, str]) -> str:
    run = get_run(request)
    request.caller.check("change", run.team)
    run_requests.request_stop(request.context, run.name)
    return f"/runs/{run.name}"


PAGES: Final = (
    Page(path="/runs", template="runs", section="/runs", load=load_runs),
    Page(path="/runs/{run}", template="run", section="/runs", load=load_run),
)
ACTIONS: Final = (
    PageAction(path="/runs/{run}/resume", perform=resume),
    PageAction(path="/runs/{run}/stop", perform=stop),
)
