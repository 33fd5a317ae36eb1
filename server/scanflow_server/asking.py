"""What a server can be asked for, written down so that it is done whatever happens to the server then."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from scanflow.agent.records import Event
from scanflow.app.application import Application
from scanflow.app.files import dump_json
from scanflow.backends.records import RunRecord
from scanflow.errors import AlreadyRunningError, NotFoundError, UnavailableError
from scanflow_server.context import Context
from scanflow_server.control.runs import ensure_entered
from scanflow_server.store import applications, events, keys, operations, runs
from scanflow_server.store.operations import Kind, StoredOperation
from scanflow_server.store.runs import Asked, WantedRun

__all__ = [
    "ask_operation",
    "ask_resume",
    "ask_run",
    "ask_spin",
    "ask_stop",
    "document_of",
    "is_being_deployed",
    "shown",
    "shown_runs",
]


def ask_run(
    context: Context,
    app: Application,
    workflow: str | None = None,
    *,
    parameters: Mapping[str, Any],
    source: Path | None,
    key: str | None = None,
) -> RunRecord:
    """Ask for a run of a workflow, and return it as it then stands. The same key asks for one run only."""
    document = document_of(app)
    chosen = context.deployer.runnable(app, workflow, parameters)
    definition = {"application": document, "parameters": dict(parameters)}
    asked = {**definition, "workflow": chosen.name, "source": None if source is None else str(source)}

    def new(name: str) -> WantedRun:
        return WantedRun(
            name=name,
            app=app.name,
            team=app.team,
            workflow=chosen.name,
            created=context.clock(),
            definition=definition,
            source=None if source is None else str(source),
            asked=Asked(action="run"),
        )

    return _begun(context, "run", new, asked, key, keep=(app, document, source))


def ask_spin(
    context: Context,
    step: str,
    *,
    run: str,
    app: Application | None = None,
    parameters: Mapping[str, Any],
    key: str | None = None,
) -> RunRecord:
    """Ask for one step to be run anew on the inputs it had in a past run, as a run of its own."""
    past = shown(context, run)
    document = None if app is None else document_of(app)
    asked = {"step": step, "of": past.name, "application": document, "parameters": dict(parameters)}
    context.deployer.check_spin(step, run=past.name, app=app, parameters=parameters)

    def new(name: str) -> WantedRun:
        return WantedRun(
            name=name,
            app=past.app,
            team=past.team,
            workflow=past.workflow,
            created=context.clock(),
            definition=asked,
            source=past.source,
            asked=Asked(action="spin"),
        )

    return _begun(context, "spin", new, asked, key)


def ask_resume(context: Context, run: str, *, app: Application | None = None, key: str | None = None) -> RunRecord:
    """Ask for a run to be gone on with.

    Raises:
        AlreadyRunningError: it goes on already.
    """
    document = None if app is None else document_of(app)
    record = context.deployer.show(run)
    mark = keys.fingerprint({"run": record.name, "application": document})
    with context.store.write() as connection:
        if keys.find(connection, key, "resume", mark) is None:
            known = runs.get(connection, record.name)
            if record.state == "running" or (known is not None and known.active):
                raise AlreadyRunningError(f"The run {record.name!r} is running. Watch it: scanflow show {record.name}")
            asked = Asked(action="resume", application=document)
            if known is None:
                fresh = WantedRun(
                    name=record.name,
                    app=record.app,
                    team=record.team,
                    workflow=record.workflow,
                    created=record.created,
                    source=record.source,
                    asked=asked,
                )
                runs.add(connection, fresh)
            else:
                runs.drive_again(connection, record.name, asked)
            keys.keep(connection, key, "resume", mark, target=record.name, at=context.clock())
            _tell_started(context, connection, record.name)
    context.work.ring()
    return shown(context, record.name)


def ask_stop(context: Context, run: str) -> RunRecord:
    """Ask a run to stop.

    Raises:
        UsageError: it has ended.
    """
    record = shown(context, run)
    with context.store.write() as connection:
        known = runs.get(connection, record.name)
        if known is not None and known.active:
            runs.stop(connection, record.name)
    if known is None or not known.active:
        return context.deployer.stop(record.name)
    try:
        context.deployer.stop(record.name)
    except NotFoundError:  # it is not entered yet, and the controller stops it as soon as it is
        pass
    context.work.ring()
    return shown(context, record.name)


def ask_operation(
    context: Context, kind: Kind, service: str, *, app: str = "", request: dict[str, Any], key: str | None = None
) -> str:
    """Ask for a change of a service, and return the id of the operation that makes it."""
    mark = keys.fingerprint({"kind": kind, "service": service, "request": request})
    with context.store.write() as connection:
        known = keys.find(connection, key, "operation", mark)
        if known is not None:
            return known
        one = StoredOperation(
            id=f"{kind}-{secrets.token_hex(6)}",
            kind=kind,
            service=service,
            app=app,
            request=request,
            created=context.clock(),
        )
        operations.add(connection, one)
        keys.keep(connection, key, "operation", mark, target=one.id, at=one.created)
    context.work.ring()
    return one.id


def is_being_deployed(context: Context, service: str) -> bool:
    """Say whether a deployment of that service is under way."""
    with context.store.read() as connection:
        return any(one.service == service and one.kind == "deploy" for one in operations.running(connection))


def shown(context: Context, run: str) -> RunRecord:
    """Return a run with its tasks. One that this server is to drive is running, also before somebody does.

    Raises:
        NotFoundError: there is none of that name.
    """
    try:
        record = context.deployer.show(run)
    except NotFoundError:
        with context.store.read() as connection:
            known = runs.get(connection, run)
        if known is None:
            raise
        return _unentered(context, known)
    with context.store.read() as connection:
        known = runs.get(connection, record.name)
    return _as_wanted(context, record, known)


def shown_runs(context: Context, *, limit: int) -> list[RunRecord]:
    """Return the newest runs first, without their tasks."""
    with context.store.read() as connection:
        wanted = {run.name: run for run in runs.active(connection)}
    found = context.deployer.runs(limit=limit)
    return [_as_wanted(context, record, wanted.get(record.name)) for record in found]


def document_of(app: Application) -> dict[str, Any]:
    """Return an application as it travels."""
    document: dict[str, Any] = json.loads(dump_json(app))
    return document


def _begun(
    context: Context,
    kind: str,
    new: Callable[[str], WantedRun],
    asked: Mapping[str, Any],
    key: str | None,
    keep: tuple[Application, dict[str, Any], Path | None] | None = None,
) -> RunRecord:
    mark = keys.fingerprint(asked)
    with context.store.write() as connection:
        name = keys.find(connection, key, kind, mark)
        if name is None:
            name = str(context.deployer.free_name())
            while runs.get(connection, name) is not None:
                name = str(context.deployer.free_name())
            run = new(name)
            runs.add(connection, run)
            keys.keep(connection, key, kind, mark, target=name, at=run.created)
            if keep is not None:
                app, document, source = keep
                applications.put(
                    connection,
                    name=app.name,
                    team=app.team,
                    document=document,
                    source=None if source is None else str(source),
                    at=run.created,
                )
            _tell_started(context, connection, name)
    with context.store.read() as connection:
        known = runs.get(connection, name)
    if known is not None and known.active:
        try:
            ensure_entered(context, known)
        except UnavailableError:  # it is wanted, and the controller goes on trying
            pass
    context.work.ring()
    return shown(context, name)


def _tell_started(context: Context, connection: Connection, name: str) -> None:
    run = runs.get(connection, name)
    assert run is not None
    data: dict[str, Any] = {"workflow": run.workflow, "drive": run.drive, "action": run.asked.action}
    happened = Event(at=context.clock(), type="run.started", app=run.app, subject=f"run/{name}", data=data)
    events.append(connection, [happened])


def _as_wanted(context: Context, record: RunRecord, known: WantedRun | None) -> RunRecord:
    if known is None or not known.active or record.state == "running":
        return record
    if context.run_job(known.name, known.drive).result is not None:
        return record  # it has ended, which is only not noted yet
    return record.model_copy(update={"state": "running"})


def _unentered(context: Context, run: WantedRun) -> RunRecord:
    """Return a run that is in no journal yet."""
    return RunRecord.model_validate(
        {
            **run.model_dump(include={"name", "app", "team", "workflow", "created", "source"}),
            "state": "running" if run.active else (run.outcome or "failed"),
            "folder": str(context.settings.home),
            "error": None if run.problem is None else run.problem.get("detail"),
        }
    )
