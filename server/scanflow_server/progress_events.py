"""Event streams of runs and operations: read from the lines of their process, or derived from their state."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

from scanflow.backends.run_records import (
    FINISHED_STATES,
    Event,
    RunEnded,
    RunRecord,
    RunStarted,
    TaskEnded,
    TaskStarted,
)
from scanflow.deployer.masked_deployer import mask_problem
from scanflow.errors import NotFoundError, UsageError
from scanflow.http.problems import build_problem
from scanflow.processes.background_jobs import Job, Lines
from scanflow.text.masking import Masker
from scanflow_server.bodies import Operation
from scanflow_server.response_masking import mask_action, mask_service_document
from scanflow_server.server_context import ServerContext
from scanflow_server.service_drivers import read_progress
from scanflow_server.store import intent_store, run_store
from scanflow_server.store.intent_store import ActionRow
from scanflow_server.store.run_store import RequestedRun
from scanflow_server.store.secret_store import load_masker
from scanflow_server.streams import format_event

_POLL_S = 0.1
_OPEN = frozenset({"pending", "running"})
_DIGITS = 18
"""The most digits of an event's number."""


async def stream_run_events(context: ServerContext, run: str, *, last: str | None = None) -> AsyncIterator[bytes]:
    """Yield a run's events from the beginning of its newest drive, or after the event ``last``."""
    wanted = await run_in_threadpool(_find_driven_run, context, run)
    if wanted is None:
        async for event in _watch_run(context, run):
            yield format_event(event.model_dump_json(), name=event.kind)
        return
    prefix, number = f"{wanted.drive}-", 0
    passed = parse_event_number(last.removeprefix(prefix)) if last is not None and last.startswith(prefix) else 0
    job = context.get_run_job(run, wanted.drive)
    async for text in _follow_job_lines(job, lambda: not _is_active(context, run, wanted.drive)):
        number += 1
        if number > passed:
            yield format_event(text, name=str(json.loads(text)["kind"]), id=f"{prefix}{number}")
    # Only after the controller has recorded it: a client may resume the run as soon as it gets the end.
    while await run_in_threadpool(_is_active, context, run, wanted.drive):
        await context.store_notifier.wait_async(context.store_notifier.changes, _POLL_S)
    result = await run_in_threadpool(lambda: job.result) or {}
    if result.get("problem") is not None:
        number += 1
        if number > passed:
            yield format_event(json.dumps(result["problem"]), name="problem", id=f"{prefix}{number}")
    if result.get("record") is not None:
        record = await run_in_threadpool(context.deployer.mask, RunRecord.model_validate(result["record"]))
        ended = RunEnded(run=record.name, record=record)
        yield format_event(ended.model_dump_json(), name=ended.kind, id=f"{prefix}{number + 1}")


async def stream_operation_events(context: ServerContext, id: str, *, last: int = 0) -> AsyncIterator[bytes]:
    """Yield the events of an operation after the event ``last`` until it has ended, and then ``done`` with it."""
    operation, number = await run_in_threadpool(get_operation, context, id), 0
    masker = await run_in_threadpool(_load_masker, context, operation)
    while operation.action.state == "pending":
        await context.store_notifier.wait_async(context.store_notifier.changes, _POLL_S)
        operation = await run_in_threadpool(get_operation, context, id)
    if operation.action.state == "running":
        async for text in _follow_job_lines(context.get_operation_job(id), lambda: _has_ended(context, id)):
            number += 1
            if number > last:
                yield format_event(json.dumps(masker.mask(json.loads(text))), name="progress", id=str(number))
    while (operation := await run_in_threadpool(get_operation, context, id)).action.state in _OPEN:
        await context.store_notifier.wait_async(context.store_notifier.changes, _POLL_S)
    for text in operation.progress[number:]:
        number += 1
        if number > last:
            yield format_event(json.dumps({"text": masker.mask_text(text)}), name="progress", id=str(number))
    view = await run_in_threadpool(make_operation_view, context, operation)
    yield format_event(view.model_dump_json(), name="done", id=str(max(number, last) + 1))


def make_operation_view(context: ServerContext, row: ActionRow) -> Operation:
    """Return what is shown of a change of a service, with its application's secrets masked."""
    masker, record = _load_masker(context, row), row.record
    action = mask_action(row.action, lambda _app, _team: masker)[0]
    has_failed = action.state in {"failed", "lost", "refused"}
    reason = UsageError(action.error or action.decision.reason)
    problem = mask_problem(row.problem or build_problem(reason)[1], masker) if has_failed else None
    return Operation(
        id=row.id,
        kind=row.intent.primitive,
        service=row.intent.target.partition("/")[2],
        state="running" if action.state in _OPEN else "failed" if has_failed else "succeeded",
        progress=list(map(masker.mask_text, row.progress)),
        result=None if record is None or action.state in _OPEN else mask_service_document(record, masker),
        problem=problem,
    )


def _load_masker(context: ServerContext, operation: ActionRow) -> Masker:
    with context.store.read() as connection:
        return load_masker(connection, operation.intent.app, operation.intent.team or None)


def parse_event_number(last: str | None) -> int:
    """Return the number of the last event that a reader knows; 0: it names none, or no number."""
    return int(last) if last is not None and len(last) <= _DIGITS and last.isdecimal() else 0


def get_operation(context: ServerContext, id: str) -> ActionRow:
    """Return an action that is a change of a service, requested by a person or begun by an agent."""
    with context.store.read() as connection:
        row = intent_store.find(connection, id)
    if row is None or not (row.request is not None or (row.action.began and row.intent.target.startswith("service/"))):
        raise make_operation_not_found(id)
    if row.action.state == "running" and not row.drivers:
        return row.replace(progress=read_progress(context.get_operation_job(id)))
    return row


def make_operation_not_found(id: str) -> NotFoundError:
    return NotFoundError(f"There is no operation {id!r}. List the services: scanflow services")


async def _follow_job_lines(job: Job, is_end_noted: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the lines that a job's process writes until it has ended. ``is_end_noted``: whether the store has its end,
    as its folder may be deleted."""
    lines = Lines(job.lines)

    def look() -> tuple[bool, list[str]]:
        # Checked first: lines written until then are read after it.
        over = job.result is not None or (not job.path.exists() and is_end_noted())
        return over, list(lines.read_new())

    while True:
        over, fresh = await run_in_threadpool(look)
        for text in fresh:
            yield text
        if over:
            return
        await asyncio.sleep(_POLL_S)


def _is_active(context: ServerContext, run: str, drive: int) -> bool:
    with context.store.read() as connection:
        wanted = run_store.find(connection, run)
    return wanted is not None and wanted.active and wanted.drive == drive


def _has_ended(context: ServerContext, id: str) -> bool:
    with context.store.read() as connection:
        row = intent_store.find(connection, id)
    return row is None or row.action.state not in _OPEN


def _find_driven_run(context: ServerContext, run: str) -> RequestedRun | None:
    with context.store.read() as connection:
        wanted = run_store.find(connection, run)
    if wanted is not None and not wanted.active and context.deployer.show(run).state == "running":
        return None  # another process has resumed it
    if wanted is not None and not wanted.active and not context.get_run_job(run, wanted.drive).path.exists():
        return None  # it ended so long ago that its lines are deleted
    return wanted


async def _watch_run(context: ServerContext, run: str) -> AsyncIterator[Event]:
    before = await run_in_threadpool(context.deployer.show, run)
    for event in derive_events(None, before):
        yield event
    since = -1
    while before.state == "running":
        await asyncio.sleep(2 * _POLL_S)
        changed, since = await run_in_threadpool(context.deployer.follow, run, since)
        if changed.tasks or changed.state != "running":
            now = merge_changes(before, changed)
            for event in derive_events(before, now):
                yield event
            before = now
    yield RunEnded(run=before.name, record=await run_in_threadpool(context.deployer.show, run))


def merge_changes(before: RunRecord, changed: RunRecord) -> RunRecord:
    """Return a run updated with the tasks that changed; a step's placeholder is dropped once its tasks are there."""
    fresh = {task.task: task for task in changed.tasks}
    begun = {task.step for task in changed.tasks}
    unchanged = [task for task in before.tasks if task.state != "pending" or task.step not in begun]
    tasks = {task.task: task for task in unchanged} | fresh
    return changed.model_copy(update={"tasks": tuple(tasks.values())})


def derive_events(before: RunRecord | None, now: RunRecord) -> list[Event]:
    """Return the events between two states of a run. Pure."""
    old_tasks = {} if before is None else {task.task: task for task in before.tasks}
    width = Counter(task.step for task in now.tasks)
    remaining = Counter(task.step for task in now.tasks if task.state not in FINISHED_STATES)
    events: list[Event] = []
    if before is None:
        events.append(RunStarted(run=now.name, steps=len(width)))
    for task in now.tasks:
        old = old_tasks.get(task.task)
        if old == task or task.state == "pending":
            continue
        if task.attempts and (old is None or old.attempts < task.attempts):
            events.append(
                TaskStarted(run=now.name, task=task.task, step=task.step, width=width[task.step], attempt=task.attempts)
            )
        if task.state != "running":
            events.append(TaskEnded(run=now.name, record=task, width=width[task.step], left=remaining[task.step]))
    return events
