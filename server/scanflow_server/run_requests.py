"""Requests of runs, stored first so that they are fulfilled whatever happens to the server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from scanflow.app.application import Application
from scanflow.app.application_files import dump_document, load_document
from scanflow.backends.run_records import RunRecord, RunState
from scanflow.deployer import RunRequest
from scanflow.errors import AlreadyRunningError, NotFoundError, UnavailableError, UsageError
from scanflow.names import RunName
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store, event_store, keys, run_store, usage
from scanflow_server.store.keys import IdempotentRequest
from scanflow_server.store.run_store import Drive, DriveRequest, RequestedRun

_MAX_BACKLOG = 10_000
"""How many runs of a team ``@latest-N`` can go back."""


def request_run(
    context: ServerContext, request: RunRequest, *, key: str | None = None, by: str | None = None, own: bool = False
) -> RunRecord:
    """Request a run of a workflow, once per key, and return its record.

    ``own``: the request is the server's own, for a stored application. The application is not stored again, as it may
    have changed; and the key alone identifies the request.
    """
    app, file = request.application, None if request.source is None else str(request.source)
    definition: dict[str, Any] = {"application": dump_document(app), "parameters": request.changed_parameters}
    if request.refresh_cache:
        definition["refresh_cache"] = True
    sent = {**definition, "workflow": request.workflow, "source": file}
    definition["functions"] = dict(request.functions)
    once = IdempotentRequest("run", key, None if own else keys.compute_fingerprint(sent))
    if (name := once.find_earlier_target(context.store)) is not None:
        return _ensure_run_entered(context, name)
    context.check_backend(app)
    defined = context.deployer.define(request)
    context.deployer.batch.check(defined)
    wanted = RequestedRun(
        name="",
        app=app.name,
        team=app.team,
        workflow=defined.workflow.name,
        created=context.clock(),
        definition=definition,
        source=file,
        asked=DriveRequest(action="run", by=by),
    )
    return _begin(context, wanted, once, keep=None if own else app)


def request_spin(
    context: ServerContext,
    request: RunRequest,
    *,
    latest: bool = False,
    key: str | None = None,
    by: str | None = None,
    own: bool = False,
) -> RunRecord:
    """Request a run of one step on the inputs it had in a past run.

    ``latest``: that run is a caller's newest one, and stands for the newest of its whole workflow. ``own``: as for
    :func:`request_run`.
    """
    run, document = request.run or "@latest", None if request.app is None else dump_document(request.app)
    definition = {"step": request.step, "application": document, "parameters": dict(request.parameters)}
    if request.texts:
        definition["texts"] = dict(request.texts)
    once = IdempotentRequest("spin", key, None if own else keys.compute_fingerprint({**definition, "of": run}))
    if (name := once.find_earlier_target(context.store)) is not None:  # by now it may be the newest run itself
        return _ensure_run_entered(context, name)
    past = show_run(context, run)
    if latest:
        past = context.deployer.find_full_run(app=past.app, team=past.team, workflow=past.workflow) or past
    context.deployer.batch.check(context.deployer.define(replace(request, run=past.name)))
    wanted = RequestedRun(
        name="",
        **past.model_dump(include={"app", "team", "workflow", "source"}),
        created=context.clock(),
        definition={**definition, "of": past.name},
        asked=DriveRequest(action="spin", by=by),
    )
    return _begin(context, wanted, once)


def find_begun_run(context: ServerContext, key: str) -> RunRecord | None:
    with context.store.read() as connection:
        name = keys.find_own(connection, key)
    return None if name is None else _ensure_run_entered(context, name)


def request_resume(
    context: ServerContext,
    run: str,
    *,
    app: Application | None = None,
    functions: Mapping[str, str] | None = None,
    key: str | None = None,
    by: str | None = None,
) -> RunRecord:
    """Request that a run resume; AlreadyRunningError: it is running."""
    document = None if app is None else dump_document(app)
    once = IdempotentRequest("resume", key, keys.compute_fingerprint({"run": run, "application": document}))
    if (name := once.find_earlier_target(context.store)) is not None:
        return show_run(context, name)
    record = context.deployer.show(run)
    with context.store.write() as connection:
        if once.find(connection) is None:
            wanted = run_store.find(connection, record.name)
            if record.state == "running" or (wanted is not None and wanted.active):
                raise AlreadyRunningError(f"The run {record.name!r} is running. Watch it: scanflow show {record.name}")
            asked = DriveRequest(action="resume", application=document, functions=dict(functions or {}), by=by)
            if wanted is None:
                same = record.model_dump(include={"name", "app", "team", "workflow", "created", "source"})
                run_store.add(connection, RequestedRun(**same, asked=asked))
            else:
                run_store.drive_again(connection, record.name, asked)
            once.keep(connection, record.name, at=context.clock())
            _record_start(context, connection, record.name)
    context.work_notifier.notify()
    return show_run(context, record.name)


def request_stop(context: ServerContext, run: str) -> RunRecord:
    record = show_run(context, run)
    with context.store.write() as connection:
        wanted = run_store.find(connection, record.name)
        if wanted is not None and wanted.active:
            run_store.stop(connection, record.name)
    if wanted is None or not wanted.active:
        return context.deployer.stop(record.name)
    with suppress(UsageError):  # it is not entered or not resumed yet: the controller will stop it
        context.deployer.stop(record.name)
    context.work_notifier.notify()
    return show_run(context, record.name)


def request_task_stop(context: ServerContext, run: str, task: str) -> RunRecord:
    """Stop one task of a run, or all running ones of a step; tasks that do not depend on it go on.

    Raises:
        UsageError: it is not running.
    """
    record = show_run(context, run)
    context.deployer.batch.stop_task(record.name, task)
    return show_run(context, record.name)


def show_run(context: ServerContext, run: str) -> RunRecord:
    """Return a run with its tasks. One that this server is to drive counts as running, even before it is driven."""
    try:
        record = context.deployer.show(run)
    except NotFoundError:
        with context.store.read() as connection:
            wanted = run_store.find(connection, run)
        if wanted is None:
            raise
        return _make_unentered_record(context, wanted)
    with context.store.read() as connection:
        active = next(iter(run_store.list_active(connection, [record.name])), None)
    return _apply_wanted_state(context, record, active)


def show_team_run(context: ServerContext, run: str, *, team: str) -> RunRecord:
    """Return a team's run; ``@latest`` is its newest. Another team's is indistinguishable from a missing one."""
    record: RunRecord | None = None
    if run.startswith("@latest"):
        back = run.removeprefix("@latest").removeprefix("-") or "0"
        number = int(back) if back.isdecimal() and len(back) < 5 else _MAX_BACKLOG
        newest = context.deployer.runs(limit=number + 1, team=team)
        record = show_run(context, newest[number].name) if number < len(newest) else None
    else:
        with suppress(NotFoundError):
            record = show_run(context, run)
    if record is None or record.team != team:
        raise NotFoundError(f"There is no run {run!r}. List the runs: scanflow runs")
    return record


def list_runs(
    context: ServerContext,
    *,
    limit: int,
    offset: int = 0,
    app: str | None = None,
    team: str | None = None,
    workflow: str | None = None,
    state: RunState | None = None,
) -> list[RunRecord]:
    """Return the newest runs first, without their tasks. Those that this server is to drive count as running."""
    about: Any = {"app": app, "team": team, "workflow": workflow}
    if state in {"running", "interrupted"}:  # which is which is known only afterwards, and there are few of both
        unfinished = _load_runs(context, limit=_MAX_BACKLOG, **about, state="running")
        return [record for record in unfinished if record.state == state][offset : offset + limit]
    return _load_runs(context, limit=limit, offset=offset, **about, state=state)


def _load_runs(context: ServerContext, **about: Any) -> list[RunRecord]:
    def load() -> list[RunRecord]:
        return context.deployer.runs(**about)

    records = load()
    with context.store.read() as connection:
        active = {drive.name: drive for drive in run_store.list_active(connection, [record.name for record in records])}
    if any(record.state == "interrupted" and record.name not in active for record in records):
        records = load()  # it may have ended in between
    return [_apply_wanted_state(context, record, active.get(record.name)) for record in records]


def _begin(
    context: ServerContext, wanted: RequestedRun, once: IdempotentRequest, keep: Application | None = None
) -> RunRecord:
    with context.store.write() as connection:
        name = once.find(connection)
        if name is None:
            name = str(context.deployer.batch.free_name())
            while run_store.find(connection, name) is not None:
                name = str(context.deployer.batch.free_name())
            n_bytes = usage.measure(wanted.definition)
            usage.check(connection, wanted.team, n_bytes, max_mib=context.settings.max_team_mib)
            run_store.add(connection, wanted.model_copy(update={"name": name}))
            once.keep(connection, name, at=wanted.created)
            if keep is not None:
                application_store.keep(connection, keep, wanted.source, at=wanted.created)
            _record_start(context, connection, name)
    return _ensure_run_entered(context, name)


def _ensure_run_entered(context: ServerContext, name: str) -> RunRecord:
    """Return a requested run, and enter it if the server was killed before it could."""
    with context.store.read() as connection:
        wanted = run_store.find(connection, name)
    if wanted is not None and wanted.active:
        with suppress(UnavailableError):  # the controller keeps trying
            ensure_entered(context, wanted)
    context.work_notifier.notify()
    return show_run(context, name)


def _record_start(context: ServerContext, connection: Connection, name: str) -> None:
    run = run_store.find(connection, name)
    assert run is not None
    data = {"workflow": run.workflow, "drive": run.drive, "action": run.asked.action}
    data_with_author = data if run.asked.by is None else {**data, "by": run.asked.by}
    event_store.record(
        connection, "run.started", f"run/{name}", at=context.clock(), app=run.app, team=run.team, data=data_with_author
    )


def _apply_wanted_state(context: ServerContext, record: RunRecord, active: Drive | None) -> RunRecord:
    if active is None or record.state == "running":
        return record
    if context.get_run_job(active.name, active.number).result is not None:
        return record  # it has ended, which is not recorded yet
    return record.model_copy(update={"state": "running"})


def _make_unentered_record(context: ServerContext, run: RequestedRun) -> RunRecord:
    return RunRecord.model_validate(
        {
            **run.model_dump(include={"name", "app", "team", "workflow", "created", "source"}),
            "state": run_store.describe_state(run.active, run.outcome),
            "folder": str(context.settings.home),
            "error": None if run.problem is None else run.problem.get("detail"),
        }
    )


def ensure_entered(context: ServerContext, run: RequestedRun) -> None:
    definition = run.definition
    if definition is None:
        return
    try:
        context.deployer.show(run.name)
    except NotFoundError:
        app = None if definition.get("application") is None else load_document(definition["application"])
        request = RunRequest(
            app,
            run.workflow,
            parameters=definition["parameters"],
            functions=definition.get("functions", {}),
            refresh_cache=bool(definition.get("refresh_cache")),
        )
        if run.asked.action == "spin":
            texts = definition.get("texts", {})
            request = replace(request, run=definition["of"], step=definition["step"], texts=texts)
        elif run.source is not None:
            request = replace(request, source=Path(run.source))
        context.deployer.batch.enter(context.deployer.define(request), RunName(run.name))
