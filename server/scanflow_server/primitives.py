"""Primitives carried out inside a server: what they ask for is written down, and done by processes of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from scanflow.agent.primitive_context import KeptApplication, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitive_model import Act
from scanflow.agent.primitives import CATALOGUE, act_of
from scanflow.agent.records import PrimitiveCall
from scanflow.app.application import Application
from scanflow.app.files import load_json
from scanflow.backends.records import RunRecord
from scanflow.deployer import RunRequest
from scanflow.errors import NotFoundError, UnsupportedError, UsageError
from scanflow_server import requests
from scanflow_server.context import ServerContext
from scanflow_server.store import applications
from scanflow_server.store.applications import ApplicationRow


def carry_out(call: PrimitiveCall, context: PrimitiveContext) -> PrimitiveResult:
    """Carry out one call, an action's or one that takes an action back.

    Raises:
        ScanflowError: it cannot be done; nothing was changed.
    """
    act = act_of(call.primitive, call.arguments, inverse=True)
    _check_kind(act, context)
    return act.carry_out(context)


def _check_kind(act: Act, context: PrimitiveContext) -> None:
    """Refuse a primitive of ours for a workflow of another kind."""
    kinds = [row.kind for row in CATALOGUE if row.name == act.name]
    if not kinds or not act.workflow:
        return
    try:
        kind = context.workflow(act.workflow)[1].type
    except NotFoundError:
        if len(kinds) == 1:
            return  # a service or a run may outlive its workflow's place in the application
        raise
    if kind == "mpi":
        raise UnsupportedError(f"{act.name}: the embedded backend runs no workflow of type {kind!r}.")
    if act.workflow_kind not in {None, kind}:
        rows = ", ".join(row.name for row in CATALOGUE if row.kind == kind)
        raise UsageError(
            f"{act.name} is asked for a workflow of type {str(act.workflow_kind)!r}, and {act.workflow!r} is of type "
            f"{kind!r}. For that there is: {rows}."
        )


class RequestedRuns:
    """Runs that the server drives: see :class:`~scanflow.agent.primitive_context.Runs`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def begun(self, key: str) -> RunRecord | None:
        return requests.begun_run(self._context, key) if key else None

    def begin(self, request: RunRequest, *, key: str) -> RunRecord:
        begin = requests.request_run if request.step is None else requests.request_spin
        return begin(self._context, request, key=key or None, own=True)

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        if task is not None:
            return requests.request_task_stop(self._context, run, task)
        return requests.request_stop(self._context, run)

    def show(self, run: str) -> RunRecord:
        return requests.show_run(self._context, run)

    def newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:
        return requests.list_runs(self._context, limit=limit, app=app, team=team, workflow=workflow)


class ApplicationStore:
    """Applications in the server's database. See :class:`~scanflow.agent.primitive_context.Applications`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def get(self, app: str, team: str) -> KeptApplication:
        with self._context.store.read() as connection:
            found = applications.get(connection, app, team)
        return _kept(_known(found, app, team))

    def change(self, app: str, team: str, make: Callable[[Application], Application]) -> KeptApplication:
        with self._context.store.write() as connection:
            found = _known(applications.get(connection, app, team), app, team)
            before = _kept(found)
            after = make(before.application)
            if after == before.application:
                return before
            document = requests.document_of(after)
            at = self._context.clock()
            return _kept(
                applications.put(connection, name=app, team=team, document=document, source=found.source, at=at)
            )


def _known(found: ApplicationRow | None, app: str, team: str) -> ApplicationRow:
    if found is None:
        raise NotFoundError(
            f"The application {app!r} of the team {team!r} is not known here. It is kept from its first run, "
            "deployment or agent on."
        )
    return found


def _kept(found: ApplicationRow) -> KeptApplication:
    source = None if found.source is None else Path(found.source)
    return KeptApplication(application=load_json(json.dumps(found.document)), source=source, revision=found.revision)
