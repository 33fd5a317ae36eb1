"""What happens in a run or an operation, as it happens: read from what its process writes, or seen from outside."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

from scanflow.backends.records import Event, RunEnded, RunRecord, RunStarted, TaskEnded, TaskStarted
from scanflow.errors import NotFoundError
from scanflow.processes.jobs import Job, Lines
from scanflow_server.bodies import Operation
from scanflow_server.context import ServerContext
from scanflow_server.control.operations import progress_of
from scanflow_server.store import operations, runs
from scanflow_server.store.operations import OperationRow
from scanflow_server.store.runs import WantedRun
from scanflow_server.streams import event

_POLL_S = 0.1
_DIGITS = 18
"""No number of an event has more; one of thousands cannot even be read."""


async def run_events(context: ServerContext, run: str, *, last: str | None = None) -> AsyncIterator[bytes]:
    """Yield a run's events, from the beginning of its newest drive or from after the event ``last``."""
    known = await run_in_threadpool(_wanted, context, run)
    if known is None:
        async for one in _watched(context, run):
            yield event(one.model_dump_json(), name=one.kind)
        return
    prefix, number = f"{known.drive}-", 0
    passed = number_of(last.removeprefix(prefix)) if last is not None and last.startswith(prefix) else 0
    job = context.run_job(run, known.drive)
    async for text in _job_lines(job, lambda: not _is_active(context, run, known.drive)):
        number += 1
        if number > passed:
            yield event(text, name=str(json.loads(text)["kind"]), id=f"{prefix}{number}")
    # Not before the controller has noted it: who hears of the end may go on with the run at once.
    while await run_in_threadpool(_is_active, context, run, known.drive):
        await context.news.wait_async(context.news.changes, _POLL_S)
    result = await run_in_threadpool(lambda: job.result) or {}
    if result.get("problem") is not None:
        number += 1
        if number > passed:
            yield event(json.dumps(result["problem"]), name="problem", id=f"{prefix}{number}")
    if result.get("record") is not None:
        ended = RunEnded.model_validate({"run": run, "record": result["record"]})
        yield event(ended.model_dump_json(), name=ended.kind, id=f"{prefix}{number + 1}")


async def operation_events(context: ServerContext, id: str, *, last: int = 0) -> AsyncIterator[bytes]:
    """Yield the events of an operation after the event ``last``, until it has ended, and at last ``done`` with it."""
    one, number = await run_in_threadpool(get_operation, context, id), 0
    while one.state == "queued":
        await context.news.wait_async(context.news.changes, _POLL_S)
        one = await run_in_threadpool(get_operation, context, id)
    if one.state == "running":
        async for text in _job_lines(context.operation_job(id), lambda: _has_ended(context, id)):
            number += 1
            if number > last:
                yield event(text, name="progress", id=str(number))
    while (one := await run_in_threadpool(get_operation, context, id)).state == "running":
        await context.news.wait_async(context.news.changes, _POLL_S)
    for text in (one.progress or [])[number:]:
        number += 1
        if number > last:
            yield event(json.dumps({"text": text}), name="progress", id=str(number))
    yield event(operation_view(one).model_dump_json(), name="done", id=str(max(number, last) + 1))


def operation_view(one: OperationRow) -> Operation:
    same = one.model_dump(include={"id", "kind", "service", "result", "problem"})
    return Operation(**same, state="running" if one.state == "queued" else one.state, progress=one.progress or [])


def number_of(last: str | None) -> int:
    """Return the number of the event that a reader says it knew last; 0: none, or nothing that is a number."""
    return int(last) if last is not None and len(last) <= _DIGITS and last.isdecimal() else 0


def get_operation(context: ServerContext, id: str) -> OperationRow:
    with context.store.read() as connection:
        one = operations.get(connection, id)
    if one is None:
        raise unknown_operation(id)
    if one.state == "running":
        return one.model_copy(update={"progress": progress_of(context.operation_job(id))})
    return one


def unknown_operation(id: str) -> NotFoundError:
    return NotFoundError(f"There is no operation {id!r}. See what is deployed: scanflow services")


async def _job_lines(job: Job, noted: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the lines that a job's process writes, until it has ended; ``noted``: its end is, and was perhaps so long
    ago that its folder is gone."""
    lines = Lines(job.lines)

    def look() -> tuple[bool, list[str]]:
        # Asked first: what is written until then is read after it.
        over = job.result is not None or (not job.path.exists() and noted())
        return over, list(lines.fresh())

    while True:
        over, fresh = await run_in_threadpool(look)
        for text in fresh:
            yield text
        if over:
            return
        await asyncio.sleep(_POLL_S)


def _is_active(context: ServerContext, run: str, drive: int) -> bool:
    with context.store.read() as connection:
        known = runs.get(connection, run)
    return known is not None and known.active and known.drive == drive


def _has_ended(context: ServerContext, id: str) -> bool:
    with context.store.read() as connection:
        one = operations.get(connection, id)
    return one is None or one.state in {"succeeded", "failed"}


def _wanted(context: ServerContext, run: str) -> WantedRun | None:
    with context.store.read() as connection:
        known = runs.get(connection, run)
    if known is not None and not known.active and context.deployer.show(run).state == "running":
        return None  # somebody else goes on with it
    if known is not None and not known.active and not context.run_job(run, known.drive).path.exists():
        return None  # it ended so long ago that what its drive told is forgotten
    return known


async def _watched(context: ServerContext, run: str) -> AsyncIterator[Event]:
    before = await run_in_threadpool(context.deployer.show, run)
    for one in changes(None, before):
        yield one
    since = -1
    while before.state == "running":
        await asyncio.sleep(2 * _POLL_S)
        changed, since = await run_in_threadpool(context.deployer.batch.follow, run, since)
        if changed.tasks or changed.state != "running":
            now = merged(before, changed)
            for one in changes(before, now):
                yield one
            before = now
    yield RunEnded(run=before.name, record=await run_in_threadpool(context.deployer.show, run))


def merged(before: RunRecord, changed: RunRecord) -> RunRecord:
    """Return a run as it was, with the tasks that changed since: a step's own entry goes where its tasks are there."""
    fresh = {task.task: task for task in changed.tasks}
    begun = {task.step for task in changed.tasks}
    kept = [task for task in before.tasks if task.state != "pending" or task.step not in begun]
    tasks = {task.task: task for task in kept} | fresh
    return changed.model_copy(update={"tasks": tuple(tasks.values())})


def changes(before: RunRecord | None, now: RunRecord) -> list[Event]:
    """Return what must have happened in a run between two looks at it. Pure."""
    known = {} if before is None else {task.task: task for task in before.tasks}
    width = Counter(task.step for task in now.tasks)
    left = Counter(task.step for task in now.tasks if task.state not in {"succeeded", "skipped"})
    found: list[Event] = []
    if before is None:
        found.append(RunStarted(run=now.name, steps=len(width)))
    for task in now.tasks:
        old = known.get(task.task)
        if old == task or task.state == "pending":
            continue
        if task.attempts and (old is None or old.attempts < task.attempts):
            found.append(
                TaskStarted(run=now.name, task=task.task, step=task.step, width=width[task.step], attempt=task.attempts)
            )
        if task.state != "running":
            found.append(TaskEnded(run=now.name, record=task, width=width[task.step], left=left[task.step]))
    return found
