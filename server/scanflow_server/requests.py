"""What a server can be asked for, written down so that it is done whatever happens to the server then."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from scanflow.app.application import Application
from scanflow.app.files import dump_json
from scanflow.backends.records import RunRecord
from scanflow.deployer import RunRequest
from scanflow.errors import AlreadyRunningError, NotFoundError, UnavailableError, UsageError
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.commands import intent_of, new_id
from scanflow_server.context import ServerContext
from scanflow_server.control.runs import ensure_entered
from scanflow_server.store import applications, events, keys, operations, runs
from scanflow_server.store.operations import Kind, OperationRow
from scanflow_server.store.runs import DriveRequest, WantedRun

_FURTHEST_BACK = 10_000
"""``@latest-N`` is looked up among that many runs of a team."""


def request_run(
    context: ServerContext, request: RunRequest, *, key: str | None = None, by: str | None = None, own: bool = False
) -> RunRecord:
    """Ask for a run of a workflow, and return it as it then stands. The same key asks for one run only.

    ``own``: the server asks itself, for an application that it keeps. The application is not kept again, as it may be
    another by now; and the key alone says whether the run was begun.
    """
    app, file = request.application, None if request.source is None else str(request.source)
    definition = {"application": document_of(app), "parameters": dict(request.parameters)}
    sent = {**definition, "workflow": request.workflow, "source": file}
    once = _Once("run", key, None if own else keys.fingerprint(sent))
    if (name := once.found(context)) is not None:
        return _going(context, name)
    context.check_backend(app)
    made = context.deployer.define(request)
    context.deployer.batch.check(made)
    wanted = WantedRun(
        name="",
        app=app.name,
        team=app.team,
        workflow=made.workflow.name,
        created=context.clock(),
        definition=definition,
        source=file,
        asked=DriveRequest(action="run", by=by),
    )
    return _begin(context, wanted, once, keep=None if own else app)


def request_spin(
    context: ServerContext, request: RunRequest, *, key: str | None = None, by: str | None = None, own: bool = False
) -> RunRecord:
    """Request one step to be run again on the inputs it had in a past run, as a run of its own.

    ``own``: as for :func:`request_run`.
    """
    run, document = request.run or "@latest", None if request.app is None else document_of(request.app)
    given = {"step": request.step, "application": document, "parameters": dict(request.parameters)}
    once = _Once("spin", key, None if own else keys.fingerprint({**given, "of": run}))
    if (name := once.found(context)) is not None:  # by now it may be the newest run itself
        return _going(context, name)
    past = show_run(context, run)
    context.deployer.batch.check(context.deployer.define(replace(request, run=past.name)))
    wanted = WantedRun(
        name="",
        **past.model_dump(include={"app", "team", "workflow", "source"}),
        created=context.clock(),
        definition={**given, "of": past.name},
        asked=DriveRequest(action="spin", by=by),
    )
    return _begin(context, wanted, once)


def begun_run(context: ServerContext, key: str) -> RunRecord | None:
    with context.store.read() as connection:
        name = keys.find_own(connection, key)
    return None if name is None else _going(context, name)


def request_resume(
    context: ServerContext, run: str, *, app: Application | None = None, key: str | None = None, by: str | None = None
) -> RunRecord:
    """Ask for a run to be gone on with; AlreadyRunningError: it goes on already."""
    document = None if app is None else document_of(app)
    once = _Once("resume", key, keys.fingerprint({"run": run, "application": document}))
    if (name := once.found(context)) is not None:
        return show_run(context, name)
    record = context.deployer.show(run)
    with context.store.write() as connection:
        if once.find(connection) is None:
            known = runs.get(connection, record.name)
            if record.state == "running" or (known is not None and known.active):
                raise AlreadyRunningError(f"The run {record.name!r} is running. Watch it: scanflow show {record.name}")
            asked = DriveRequest(action="resume", application=document, by=by)
            if known is None:
                same = record.model_dump(include={"name", "app", "team", "workflow", "created", "source"})
                runs.add(connection, WantedRun(**same, asked=asked))
            else:
                runs.drive_again(connection, record.name, asked)
            once.keep(connection, record.name, at=context.clock())
            _tell_started(context, connection, record.name)
    context.work.notify()
    return show_run(context, record.name)


def request_stop(context: ServerContext, run: str) -> RunRecord:
    record = show_run(context, run)
    with context.store.write() as connection:
        known = runs.get(connection, record.name)
        if known is not None and known.active:
            runs.stop(connection, record.name)
    if known is None or not known.active:
        return context.deployer.stop(record.name)
    with suppress(UsageError):  # it is not entered, or not gone on with yet: the controller stops it as soon as it is
        context.deployer.stop(record.name)
    context.work.notify()
    return show_run(context, record.name)


def request_task_stop(context: ServerContext, run: str, task: str) -> RunRecord:
    """Ask one task of a run, or all running ones of a step, to stop; what does not need it goes on.

    Raises:
        UsageError: it is not running.
    """
    record = show_run(context, run)
    context.deployer.batch.stop_task(record.name, task)
    return show_run(context, record.name)


def request_operation(
    context: ServerContext,
    engine: ArbiterEngine,
    kind: Kind,
    service: str,
    *,
    of: Callable[[], tuple[str, str]],
    request: dict[str, Any],
    by: str,
    key: str | None = None,
    keep: Application | None = None,
) -> str:
    """Request a change of a service, and return the id of the operation that makes it and of the intent that wants it.

    ``of`` returns the service's application and team, or refuses what cannot be changed; it is not called where the
    key was used before. ``keep``: the application, where it is to be kept with that.
    """
    once = _Once("operation", key, keys.fingerprint({"kind": kind, "service": service, "request": request}))
    if (known := once.found(context)) is not None:
        return known
    app, team = of()
    one = OperationRow(
        id=new_id(kind),
        kind=kind,
        service=service,
        app=app,
        team=team,
        request=request,
        created=context.moment(),
        state="queued",
    )
    intent = intent_of(one, by=by)
    seen = engine.intents.look(intent)
    with context.store.write() as connection:
        if (known := once.find(connection)) is not None:
            return known
        operations.add(connection, one)
        engine.intents.admit(connection, intent, seen)
        once.keep(connection, one.id, at=one.created)
        if keep is not None:
            keep_application(connection, keep, request["source"], at=one.created)
    engine.wake()
    return one.id


def under_way(context: ServerContext, service: str) -> list[OperationRow]:
    with context.store.read() as connection:
        return [one for one in operations.list_open(connection) if one.service == service]


def show_run(context: ServerContext, run: str) -> RunRecord:
    """Return a run with its tasks. One that this server is to drive is running, also before somebody does."""
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


def show_run_of(context: ServerContext, run: str, *, team: str) -> RunRecord:
    """Return a team's run; ``@latest`` is its newest. Another team's is not told from one that is not there at all."""
    found: RunRecord | None = None
    if run.startswith("@latest"):
        back = run.removeprefix("@latest").removeprefix("-") or "0"
        number = int(back) if back.isdecimal() and len(back) < 5 else _FURTHEST_BACK
        newest = context.deployer.runs(limit=number + 1, team=team)
        found = show_run(context, newest[number].name) if number < len(newest) else None
    else:
        with suppress(NotFoundError):
            found = show_run(context, run)
    if found is None or found.team != team:
        raise NotFoundError(f"There is no run {run!r}. See which there are: scanflow runs")
    return found


def list_runs(
    context: ServerContext, *, limit: int, app: str | None = None, team: str | None = None, workflow: str | None = None
) -> list[RunRecord]:
    with context.store.read() as connection:
        wanted = {run.name: run for run in runs.list_active(connection)}
    found = context.deployer.runs(limit=limit, app=app, team=team, workflow=workflow)
    return [_as_wanted(context, record, wanted.get(record.name)) for record in found]


def document_of(app: Application) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(dump_json(app))
    return document


@dataclass(frozen=True, slots=True)
class _Once:
    kind: str
    key: str | None
    mark: str | None
    """The request as it was sent, which has to be the same with the same key. None: the key alone tells."""

    def found(self, context: ServerContext) -> str | None:
        """Return what was begun; nothing that was needed for it has to be there any more."""
        with context.store.read() as connection:
            return self.find(connection)

    def find(self, connection: Connection) -> str | None:
        if self.mark is None:
            return None if self.key is None else keys.find_own(connection, self.key)
        return keys.find(connection, self.key, self.kind, self.mark)

    def keep(self, connection: Connection, target: str, *, at: float) -> None:
        keys.record(connection, self.key, self.kind, self.mark or keys.fingerprint(self.key), target=target, at=at)


def keep_application(
    connection: Connection, app: Application, source: str | None, *, at: float
) -> applications.ApplicationRow:
    return applications.put(connection, name=app.name, team=app.team, document=document_of(app), source=source, at=at)


def _begin(context: ServerContext, wanted: WantedRun, once: _Once, keep: Application | None = None) -> RunRecord:
    with context.store.write() as connection:
        name = once.find(connection)
        if name is None:
            name = str(context.deployer.batch.free_name())
            while runs.get(connection, name) is not None:
                name = str(context.deployer.batch.free_name())
            runs.add(connection, wanted.model_copy(update={"name": name}))
            once.keep(connection, name, at=wanted.created)
            if keep is not None:
                keep_application(connection, keep, wanted.source, at=wanted.created)
            _tell_started(context, connection, name)
    return _going(context, name)


def _going(context: ServerContext, name: str) -> RunRecord:
    """Return a run that was begun; who began it may have been killed before it was entered."""
    with context.store.read() as connection:
        known = runs.get(connection, name)
    if known is not None and known.active:
        with suppress(UnavailableError):  # it is wanted, and the controller goes on trying
            ensure_entered(context, known)
    context.work.notify()
    return show_run(context, name)


def _tell_started(context: ServerContext, connection: Connection, name: str) -> None:
    run = runs.get(connection, name)
    assert run is not None
    data = {"workflow": run.workflow, "drive": run.drive, "action": run.asked.action}
    told = data if run.asked.by is None else {**data, "by": run.asked.by}
    events.record(connection, "run.started", f"run/{name}", at=context.clock(), app=run.app, team=run.team, data=told)


def _as_wanted(context: ServerContext, record: RunRecord, known: WantedRun | None) -> RunRecord:
    if known is None or not known.active or record.state == "running":
        return record
    if context.run_job(known.name, known.drive).result is not None:
        return record  # it has ended, which is only not noted yet
    return record.model_copy(update={"state": "running"})


def _unentered(context: ServerContext, run: WantedRun) -> RunRecord:
    return RunRecord.model_validate(
        {
            **run.model_dump(include={"name", "app", "team", "workflow", "created", "source"}),
            "state": "running" if run.active else (run.outcome or "failed"),
            "folder": str(context.settings.home),
            "error": None if run.problem is None else run.problem.get("detail"),
        }
    )
