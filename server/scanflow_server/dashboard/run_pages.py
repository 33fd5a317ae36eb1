"""The pages of runs: the list, and one run with its graph, its tasks, their logs and what they left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote_plus

from markupsafe import Markup

from scanflow.app.parameter_texts import parse_parameter_lines
from scanflow.app.parameters import refuse_mask
from scanflow.app.quantities import format_duration
from scanflow.backends.device_text import describe_uses
from scanflow.backends.run_drawing import draw_run
from scanflow.backends.run_records import RunRecord, RunState, TaskRecord
from scanflow.deployer import RunRequest
from scanflow.deployer.deployer_port import LATEST
from scanflow.reports.run_timeline import draw_run_timeline
from scanflow.text.times import round_up_now
from scanflow_server import run_requests
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.dashboard.device_table import build_device_table
from scanflow_server.dashboard.overview_page import build_run_table
from scanflow_server.dashboard.page_cells import CellRow, CellTable, LinkCell, Moment, StateCell
from scanflow_server.dashboard.page_windows import WINDOW, TableWindow, read_choice
from scanflow_server.dashboard.run_downloads import open_run
from scanflow_server.dashboard.task_view import load_task_view
from scanflow_server.run_reader import RunReader, format_parameter
from scanflow_server.scope import restrict_team
from scanflow_server.store import application_store

_STATES: Final[tuple[RunState, ...]] = ("running", "interrupted", "failed", "stopped", "succeeded")
_FIRST: Final = {state: place for place, state in enumerate(("failed", "running", "stopped", "pending"))}
"""The tasks that a table begins with, by their states."""

_MAX_FAILURES: Final = 5
_MAX_PARAMETERS: Final = 200


def load_runs(request: PageRequest) -> PageView:
    window = TableWindow.read(request)
    about: Any = {name: request.filters.get(name) for name in ("app", "team", "workflow")}
    about |= {"team": restrict_team(request.caller, about["team"]), "state": read_choice(request, "state", _STATES)}
    records = run_requests.list_runs(request.context, limit=WINDOW + 1, offset=window.start, **about)
    return PageView.make(
        "Runs",
        request.build_command("scanflow runs"),
        choices=_list_choices(request),
        table=build_run_table(records[:WINDOW]),
        **window.list_neighbours(len(records)),
    )


def _list_choices(request: PageRequest) -> dict[str, Sequence[str]]:
    with request.context.store.read() as connection:
        rows = application_store.list_all(connection, team=request.caller.team)
    workflows = {str(workflow["name"]) for row in rows for workflow in row.document.get("workflows", ())}
    choices = {"app": {row.name for row in rows}, "workflow": workflows, "team": {row.team for row in rows}}
    return {"state": _STATES, **{name: sorted(values) for name, values in choices.items() if len(values) > 1}}


def load_run(request: PageRequest) -> PageView:
    reader, window, state = open_run(request), TableWindow.read(request), request.query.get("state") or None
    run, address = reader.run, _make_task_addresses(request)
    failed = [task for task in run.tasks if task.state == "failed"]
    tasks = sorted((task for task in run.tasks if state in {None, task.state}), key=_rank_task)
    task = reader.choose_task(request.query.get("task", ""))
    is_on_devices = run.state == "running" and any(task.devices or task.waits_for for task in run.tasks)
    return PageView(
        title=f"Run {run.name}",
        command=f"scanflow show {run.name}",
        grows=task is not None and task.state == "running",
        values={
            "run": run,
            "failed": [(task, address(task.task)) for task in failed[:_MAX_FAILURES]],
            "graph": lambda width: draw_run(run, address=address, width=width),
            "timeline": _make_timeline(request, run, address),
            "view": None if task is None else load_task_view(request, reader, task),
            "states": [
                (name, count, request.build_address(state=name, start=None))
                for name, count in Counter(task.state for task in run.tasks).items()
            ],
            "tasks": CellTable.make(
                [_build_task_row(task, address(task.task)) for task in tasks[window.start :][:WINDOW]], "No such task."
            ),
            **window.list_neighbours(len(tasks) - window.start),
            "parameters": _build_parameter_table(reader),
            "devices": build_device_table(request) if is_on_devices else None,
            "steps": reader.steps,
        },
    )


def _build_parameter_table(reader: RunReader) -> CellTable:
    """Return the parameters, those first that were changed for this run."""
    changed = reader.changed_parameters
    parameters = sorted(reader.parameters.items(), key=lambda parameter: parameter[0] not in changed)
    rows: list[CellRow] = [
        {"parameter": name, "value": format_parameter(value), "for this run": "changed" if name in changed else None}
        for name, value in parameters[:_MAX_PARAMETERS]
    ]
    return CellTable.make(rows, "No step has a parameter.")


def _rank_task(task: TaskRecord) -> int:
    return _FIRST.get(task.state, len(_FIRST))


def _make_task_addresses(request: PageRequest) -> Callable[[str], str]:
    """Return what maps a task to its address on this page. Pages of a thousand tasks have a thousand of them."""
    page = request.build_address(task=None, attempt=None)
    start = f"{page}{'&' if '?' in page else '?'}task="
    return lambda task: f"{start}{quote_plus(task)}#task"


def _make_timeline(
    request: PageRequest, run: RunRecord, address: Callable[[str], str]
) -> Callable[[float], Markup] | None:
    """Return what draws the timeline, by its width; None: no task has begun yet."""
    if all(task.began is None for task in run.tasks):
        return None
    now = round_up_now(request.now, run.created) if run.state == "running" else None
    return lambda width: draw_run_timeline(
        run, now=now, parents=run.parents, address=address, width=width, zone=request.zone
    )


def _build_task_row(task: TaskRecord, address: str) -> CellRow:
    return {
        "state": StateCell(task.state),
        "task": LinkCell(task.task, address),
        "attempts": task.attempts or None,
        "took": None if task.seconds is None else format_duration(task.seconds),
        "started": None if task.began is None else Moment(task.began),
        "waits for": task.waits_for,
        "GPUs": describe_uses(task.devices),
        "failure": None if task.failure is None else task.failure.cause or task.failure.summary,
    }


def resume(request: PageRequest, _form: Mapping[str, str]) -> str:
    run = open_run(request).run
    run_requests.request_resume(request.context, run.name, by=request.caller.name)
    return f"/runs/{run.name}"


def stop(request: PageRequest, _form: Mapping[str, str]) -> str:
    run = open_run(request).run
    run_requests.request_stop(request.context, run.name)
    return f"/runs/{run.name}"


def stop_task(request: PageRequest, _form: Mapping[str, str]) -> str:
    run, task = open_run(request).run, request.parameters["task"]
    run_requests.request_task_stop(request.context, run.name, task)
    return f"/runs/{run.name}"


def spin(request: PageRequest, form: Mapping[str, str]) -> str:
    run, texts = open_run(request).run, read_texts(form)
    spun = run_requests.request_spin(
        request.context,
        RunRequest(run=run.name, step=form.get("step", ""), texts=texts),
        latest=request.parameters["run"] == LATEST,
        by=request.caller.name,
    )
    return f"/runs/{spun.name}"


def read_texts(form: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a form; InvalidError: one is none, or masked."""
    texts = parse_parameter_lines(form.get("parameters", ""))
    refuse_mask(texts)
    return texts


SERVED: Final = (
    DashboardPage(path="/runs", template="runs", load=load_runs),
    DashboardPage(path="/runs/{run}", template="run", load=load_run),
    PageAction(path="/runs/{run}/resume", perform=resume),
    PageAction(path="/runs/{run}/stop", perform=stop),
    PageAction(path="/runs/{run}/tasks/{task}/stop", perform=stop_task),
    PageAction(path="/runs/{run}/spin", perform=spin),
)
