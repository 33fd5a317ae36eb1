"""Primitives carried out inside a server, as requests that its processes fulfil."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from scanflow.agent.agent_records import PrimitiveCall
from scanflow.agent.primitive_context import PrimitiveContext, PrimitiveResult, SavedApplication
from scanflow.agent.primitive_model import Act
from scanflow.agent.primitives import CATALOGUE, parse_act
from scanflow.app.application import Application
from scanflow.app.application_files import dump_document, load_json
from scanflow.backends.backend_port import JobPlanner, RunBackend
from scanflow.backends.run_records import RunRecord
from scanflow.deployer import RunRequest
from scanflow.errors import NotFoundError, UnsupportedError, UsageError
from scanflow_server import run_requests
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store
from scanflow_server.store.application_store import ApplicationRow


def carry_out(call: PrimitiveCall, context: PrimitiveContext) -> PrimitiveResult:
    """Carry out a call, an action's or its inverse.

    Raises:
        ScanflowError: it cannot be done; nothing was changed.
    """
    act = parse_act(call.primitive, call.arguments, inverse=True)
    _check_kind(act, context)
    return act.carry_out(context)


def _check_kind(act: Act, context: PrimitiveContext) -> None:
    """Refuse a built-in primitive for a workflow of another kind."""
    kinds = [row.kind for row in CATALOGUE if row.name == act.name]
    if not kinds or not act.workflow:
        return
    try:
        kind = context.workflow(act.workflow)[1].type
    except NotFoundError:
        if len(kinds) == 1 or act.workflow_kind is None:
            return  # a service or run may outlive its workflow in the application
        raise
    if kind not in kinds or act.workflow_kind not in {None, kind}:
        rows = ", ".join(row.name for row in CATALOGUE if row.kind == kind)
        asked = " or ".join(repr(str(name)) for name in (kinds if act.workflow_kind is None else [act.workflow_kind]))
        raise UsageError(
            f"{act.name} is for workflows of type {asked}, but {act.workflow!r} is of type {kind!r}. Use instead: "
            f"{rows}."
        )


class RequestedRuns:
    """Runs that the server drives: see :class:`~scanflow.agent.primitive_context.Runs`."""

    def __init__(self, context: ServerContext, team: str) -> None:
        """``team``: the only team whose runs are visible."""
        self._context, self._team = context, team

    def find_run(self, key: str) -> RunRecord | None:
        return run_requests.find_begun_run(self._context, key) if key else None

    def begin(self, request: RunRequest, *, key: str) -> RunRecord:
        if request.run is not None:
            self.show(request.run)
        begin = run_requests.request_run if request.step is None else run_requests.request_spin
        return begin(self._context, request, key=key or None, own=True)

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        self.show(run)
        if task is not None:
            return run_requests.request_task_stop(self._context, run, task)
        return run_requests.request_stop(self._context, run)

    def show(self, run: str) -> RunRecord:
        return run_requests.show_team_run(self._context, run, team=self._team)

    def get_job_planner(self) -> JobPlanner:
        return require_job_planner(self._context.deployer.batch)

    def find_full_run(self, *, app: str, team: str, workflow: str) -> RunRecord | None:
        return self._context.deployer.find_full_run(app=app, team=team, workflow=workflow)

    def list_newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:
        return run_requests.list_runs(self._context, limit=limit, app=app, team=team, workflow=workflow)


def require_job_planner(runs: RunBackend) -> JobPlanner:
    """Return a backend as a planner of MPI jobs; UnsupportedError: it plans none."""
    if not isinstance(runs, JobPlanner):
        raise UnsupportedError("The backend does not plan MPI jobs, so it cannot choose the granularity of a job.")
    return runs


class ApplicationStore:
    """Applications in the server's database. See :class:`~scanflow.agent.primitive_context.Applications`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def get(self, app: str, team: str) -> SavedApplication:
        with self._context.store.read() as connection:
            row = application_store.find(connection, app, team)
        return _load_application(_require_application(row, app, team))

    def change(self, app: str, team: str, make: Callable[[Application], Application]) -> SavedApplication:
        with self._context.store.write() as connection:
            row = _require_application(application_store.find(connection, app, team), app, team)
            before = _load_application(row)
            after = make(before.application)
            if after == before.application:
                return before
            document = dump_document(after)
            at = self._context.clock()
            return _load_application(
                application_store.put(connection, name=app, team=team, document=document, source=row.source, at=at)
            )


def _require_application(row: ApplicationRow | None, app: str, team: str) -> ApplicationRow:
    if row is None:
        raise NotFoundError(
            f"The server has no application {app!r} of the team {team!r}. It stores an application with its first run, "
            "deployment or agent."
        )
    return row


def _load_application(row: ApplicationRow) -> SavedApplication:
    source = None if row.source is None else Path(row.source)
    return SavedApplication(application=load_json(json.dumps(row.document)), source=source, revision=row.revision)
