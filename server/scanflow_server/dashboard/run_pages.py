"""The pages of runs: the list, and one run with its graph, its tasks, their logs and what they left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from markupsafe import Markup

from scanflow.app.parameters import refuse_mask
from scanflow.app.quantities import format_duration
from scanflow.backends.run_drawing import draw_run
from scanflow.backends.run_records import RunRecord, RunState, TaskRecord
from scanflow.deployer import RunRequest
from scanflow.deployer.deployer_port import LATEST
from scanflow.errors import InvalidError
from scanflow.reports.run_timeline import draw_run_timeline
from scanflow_server import run_requests
from scanflow_server.dashboard.overview_page import build_run_row
from scanflow_server.dashboard.page import Page, PageAction, PageFile, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link, Moment, StateCell
from scanflow_server.dashboard.page_windows import WINDOW, Window
from scanflow_server.dashboard.run_files import open_file, open_log
from scanflow_server.dashboard.run_reader import RunReader, get_run
from scanflow_server.dashboard.task_view import choose_task, load_task_view
from scanflow_server.scope import restrict_team
from scanflow_server.store import application_store

_STATES: Final[tuple[RunState, ...]] = ("running", "interrupted", "failed", "stopped", "succeeded")
_FIRST: Final = {state: place for place, state in enumerate(("failed", "running", "stopped", "pending"))}
"""The tasks that a table begins with, by their states."""

_MAX_FAILURES: Final = 5
_STEPS_OF_TIME: Final = 64
"""How often a drawing of a running run changes while its length doubles."""


def load_runs(request: PageRequest) -> PageView:
    window = Window.read(request)
    records = run_requests.list_runs(
        request.context,
        limit=WINDOW + 1,
        offset=window.start,
        state=next((state for state in _STATES if state == request.query.get("state")), None),
        app=request.query.get("app") or None,
        team=restrict_team(request.caller, request.query.get("team") or None),
        workflow=request.query.get("workflow") or None,
    )
    return PageView(
        title="Runs",
        command="scanflow runs",
        values={
            "choices": _list_choices(request),
            "table": build_run_table(records[:WINDOW]),
            **window.list_neighbours(len(records)),
        },
    )


def build_run_table(records: Sequence[RunRecord]) -> CellTable:
    columns = ("state", "run", "workflow", "took", "started")
    return CellTable(columns, list(map(build_run_row, records)), "No such run.", "scanflow run")


def _list_choices(request: PageRequest) -> dict[str, Sequence[str]]:
    with request.context.store.read() as connection:
        rows = application_store.list_all(connection, team=request.caller.team)
    workflows = {str(workflow["name"]) for row in rows for workflow in row.document.get("workflows", ())}
    choices = {"app": {row.name for row in rows}, "workflow": workflows, "team": {row.team for row in rows}}
    return {"state": _STATES, **{name: sorted(values) for name, values in choices.items() if len(values) > 1}}


def load_run(request: PageRequest) -> PageView:
    reader = RunReader(request)
    run, state = reader.run, request.query.get("state") or None
    failed = [task for task in run.tasks if task.state == "failed"]
    tasks = sorted((task for task in run.tasks if state in {None, task.state}), key=_rank_task)
    window = Window.read(request)
    return PageView(
        title=f"Run {run.name}",
        command=f"scanflow show {run.name}",
        values={
            "run": run,
            "failed": [(task, _build_task_address(request, task.task)) for task in failed[:_MAX_FAILURES]],
            "graph": lambda width: draw_run(run, address=partial(_build_task_address, request), width=width),
            "timeline": _make_timeline(request, reader),
            "view": load_task_view(reader, choose_task(run.tasks, request.query.get("task", ""))),
            "states": [
                (name, count, request.build_address(state=name, start=None))
                for name, count in Counter(task.state for task in run.tasks).items()
            ],
            "tasks": _build_task_table(request, tasks[window.start : window.start + WINDOW]),
            **window.list_neighbours(len(tasks) - window.start),
            "parameters": reader.build_parameter_table(),
            "steps": reader.steps,
        },
    )


def _rank_task(task: TaskRecord) -> int:
    return _FIRST.get(task.state, len(_FIRST))


def _build_task_address(request: PageRequest, task: str) -> str:
    return request.build_address(task=task, attempt=None) + "#task"


def _make_timeline(request: PageRequest, reader: RunReader) -> Callable[[float], Markup] | None:
    """Return what draws the timeline, by its width; None: no task has begun yet."""
    run = reader.run
    if all(task.began is None for task in run.tasks):
        return None
    now = round_up_now(run.created, request.now) if run.state == "running" else None
    address = partial(_build_task_address, request)
    options: dict[str, Any] = {"now": now, "parents": run.parents, "address": address, "zone": request.zone}
    return lambda width: draw_run_timeline(run, width=width, **options)


def round_up_now(began: float, now: float) -> float:
    """Return a time shortly after now that is the same for a while, so that a page does not change at every look."""
    step = max(1.0, 2.0 ** math.floor(math.log2(max(now - began, 1.0) / _STEPS_OF_TIME)))
    return math.ceil(now / step) * step


def _build_task_table(request: PageRequest, tasks: Sequence[TaskRecord]) -> CellTable:
    rows: list[list[Cell]] = [
        [
            StateCell(task.state),
            Link(task.task, _build_task_address(request, task.task)),
            task.attempts or None,
            None if task.seconds is None else format_duration(task.seconds),
            None if task.began is None else Moment(task.began),
            None if task.failure is None else task.failure.cause or task.failure.summary,
        ]
        for task in tasks
    ]
    return CellTable(("state", "task", "attempts", "took", "started", "failure"), rows, "No such task.")


def resume(request: PageRequest, _form: Mapping[str, str]) -> str:
    run = _get_changeable_run(request)
    run_requests.request_resume(request.context, run.name, by=request.caller.name)
    return f"/runs/{run.name}"


def stop(request: PageRequest, _form: Mapping[str, str]) -> str:
    run = _get_changeable_run(request)
    run_requests.request_stop(request.context, run.name)
    return f"/runs/{run.name}"


def stop_task(request: PageRequest, _form: Mapping[str, str]) -> str:
    run, task = _get_changeable_run(request), request.parameters["task"]
    run_requests.request_task_stop(request.context, run.name, task)
    return f"/runs/{run.name}"


def spin(request: PageRequest, form: Mapping[str, str]) -> str:
    run, texts = _get_changeable_run(request), parse_parameter_lines(form.get("parameters", ""))
    spun = run_requests.request_spin(
        request.context,
        RunRequest(run=run.name, step=form.get("step", ""), texts=texts),
        latest=request.parameters["run"] == LATEST,
        by=request.caller.name,
    )
    return f"/runs/{spun.name}"


def _get_changeable_run(request: PageRequest) -> RunRecord:
    run = get_run(request)
    request.caller.check("change", run.team)
    return run


def parse_parameter_lines(text: str) -> dict[str, str]:
    """Parse the parameters that a form has, a line each, such as ``epochs=3``.

    Raises:
        InvalidError: a line is no parameter, or its value is masked.
    """
    texts: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, mark, value = line.partition("=")
        if not mark or not name.strip():
            raise InvalidError(f"{line!r:.60} is not a parameter. Write one in each line, with its value: epochs=3")
        texts[name.strip()] = value.strip()
    refuse_mask(texts)
    return texts


PAGES: Final = (
    Page(path="/runs", template="runs", section="/runs", load=load_runs),
    Page(path="/runs/{run}", template="run", section="/runs", load=load_run),
)
ACTIONS: Final = (
    PageAction(path="/runs/{run}/resume", perform=resume),
    PageAction(path="/runs/{run}/stop", perform=stop),
    PageAction(path="/runs/{run}/tasks/{task}/stop", perform=stop_task),
    PageAction(path="/runs/{run}/spin", perform=spin),
)
FILES: Final = (
    PageFile(path="/runs/{run}/logs/{task}", open=open_log),
    PageFile(path="/runs/{run}/files/{task}/{name:path}", open=open_file),
)
