"""Routes of runs: start, resume, stop, show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi import Path as InPath
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from scanflow.app.plan import Plan
from scanflow.backends.log_reader import Stream
from scanflow.backends.run_records import RunRecord, StepFile
from scanflow.deployer import RunRequest, TaskLog
from scanflow.deployer.deployer_port import LATEST
from scanflow_server import run_requests
from scanflow_server.api_route import DEFINITION, ApiRoute
from scanflow_server.auth import Editor, Reader
from scanflow_server.bodies import Key, Named, ResumeBody, RunBody, SpinBody
from scanflow_server.output_values import dump_values, show_outputs
from scanflow_server.progress_events import stream_run_events
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.scope import OwnRun, read_own_application, restrict_team
from scanflow_server.server_context import ContextDep
from scanflow_server.stream_limits import LimitedStream
from scanflow_server.streams import EVENTS, follow, make_events_response

router = APIRouter(prefix="/runs", tags=["runs"], responses=PROBLEMS, route_class=ApiRoute)

# With what only a function's name has, so that one is answered as without a server: did you mean 'mean-age'?
_TASK = r"^[A-Za-z0-9_][-A-Za-z0-9_]*(\.[0-9]{1,9})?$"
Task = Annotated[str, InPath(pattern=_TASK, max_length=80)]
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "What was written.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", status_code=201, dependencies=[DEFINITION])
def run(context: ContextDep, caller: Editor, body: RunBody, key: Key = None) -> RunRecord:
    """Check a workflow and run it, in a process of its own."""
    app = read_own_application(context, caller, body.application, body.source)
    source = None if body.source is None else Path(body.source)
    return run_requests.request_run(
        context,
        RunRequest(
            app,
            body.workflow,
            parameters=body.parameters,
            source=source,
            functions=body.functions,
            refresh_cache=body.refresh_cache,
        ),
        key=caller.scope_key(key),
        by=caller.name,
    )


@router.post("/plan", dependencies=[DEFINITION])
def plan(context: ContextDep, caller: Editor, body: RunBody) -> Plan:
    """Check a workflow and show what a run of it would do."""
    app = read_own_application(context, caller, body.application, body.source)
    context.check_backend(app)
    return context.deployer.plan(RunRequest(app, body.workflow, parameters=body.parameters))


@router.get("")
def runs(
    context: ContextDep,
    caller: Reader,
    app: Named = None,
    team: Named = None,
    workflow: Named = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 20,
) -> list[RunRecord]:
    """List runs, the newest first, without their tasks; optionally of one application, team or workflow."""
    return run_requests.list_runs(context, limit=limit, app=app, team=restrict_team(caller, team), workflow=workflow)


@router.get("/{run}")
def show(context: ContextDep, _caller: Reader, run: OwnRun) -> RunRecord:
    """Show a run with its tasks; ``@latest`` is the newest, ``@latest-1`` the one before."""
    return run_requests.show_run(context, run)


@router.post("/{run}/resume", dependencies=[DEFINITION])
def resume(
    context: ContextDep, caller: Editor, run: OwnRun, body: ResumeBody | None = None, key: Key = None
) -> RunRecord:
    """Resume a run; finished tasks are kept."""
    request = body or ResumeBody()
    app = (
        None
        if request.application is None
        else read_own_application(context, caller, request.application, request.source)
    )
    return run_requests.request_resume(
        context, run, app=app, functions=request.functions, key=caller.scope_key(key), by=caller.name
    )


@router.post("/{run}/spin", status_code=201, dependencies=[DEFINITION])
def spin(
    context: ContextDep, caller: Editor, run: OwnRun, body: SpinBody, request: Request, key: Key = None
) -> RunRecord:
    """Run one step again on the inputs it had in a past run, as a run of its own.

    For ``@latest``, that is the newest run of the whole workflow, which is no spin itself.
    """
    app = None
    if body.application is not None:
        app = read_own_application(context, caller, body.application, body.source)
    return run_requests.request_spin(
        context,
        RunRequest(app, parameters=body.parameters, texts=body.texts, run=run, step=body.step),
        latest=request.path_params["run"] == LATEST,
        key=caller.scope_key(key),
        by=caller.name,
    )


@router.post("/{run}/stop")
def stop(context: ContextDep, _caller: Editor, run: OwnRun) -> RunRecord:
    """Request that a run stop; it can be resumed later."""
    return run_requests.request_stop(context, run)


@router.post("/{run}/tasks/{task}/stop")
def stop_task(context: ContextDep, _caller: Editor, run: OwnRun, task: Task) -> RunRecord:
    """Request that one task, or all running ones of a step, stop; tasks that do not depend on it continue."""
    return run_requests.request_task_stop(context, run, task)


@router.get("/{run}/events", response_class=StreamingResponse, responses=EVENTS)
async def events(
    context: ContextDep,
    _caller: Reader,
    run: OwnRun,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """Stream the events of a run, from the beginning of its newest drive to its end.

    Each event is numbered, and holds one of the backend's records as JSON. ``problem`` events hold a problem document:
    the run could not be driven at all. Another drive begins its own numbers with ``DRIVE-``.
    """
    record = await run_in_threadpool(run_requests.show_run, context, run)
    return make_events_response(context.streams, stream_run_events(context, record.name, last=last_event_id))


@router.get("/{run}/steps/{step}/outputs")
def outputs(context: ContextDep, _caller: Reader, run: OwnRun, step: Task) -> dict[str, Any] | list[dict[str, Any]]:
    """Show the outputs of a step as JSON. Of a value that JSON cannot hold it has a text that says so; see ``/values``.

    The run's secrets are masked, and so are texts under names that look secret.
    """
    shown = show_outputs(context.deployer.batch.output_files(run, step))
    masked: dict[str, Any] | list[dict[str, Any]] = context.deployer.load_masker(run).mask_outputs(shown)
    return masked


@router.get("/{run}/steps/{step}/values", response_class=StreamingResponse, responses=_BYTES)
async def values(context: ContextDep, _caller: Reader, run: OwnRun, step: Task) -> Response:
    """Send the outputs of a step as they are kept, for Scanflow's own client, which reads exact values of them.

    The first line is JSON that says what follows: texts, and Python's pickles, which run code where they are loaded.
    Outputs that hold a secret are refused.
    """
    content = await run_in_threadpool(dump_values, context, run, step)

    async def blocks() -> AsyncIterator[bytes]:
        for block in content:
            yield block

    return LimitedStream(blocks(), context.streams, media_type="application/octet-stream")


@router.get("/{run}/files")
def files(
    context: ContextDep,
    _caller: Reader,
    run: OwnRun,
    step: Annotated[str | None, Query(pattern=_TASK, max_length=80)] = None,
) -> list[StepFile]:
    """List the files that the steps of a run left, or one step or task, with the run's secrets masked."""
    masker = context.deployer.load_masker(run)
    return [
        file.model_copy(update={"name": masker.mask_text(file.name), "path": masker.mask_text(file.path)})
        for file in context.deployer.files(run, step)
    ]


@router.get("/{run}/tasks/{task}/logs", response_class=StreamingResponse, responses=_BYTES)
async def logs(
    context: ContextDep,
    _caller: Reader,
    run: OwnRun,
    task: Task,
    stream: Stream = "stdout",
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    follow_on: Annotated[bool, Query(alias="follow")] = False,
) -> Response:
    """Show the log of a task; with ``follow``, until it has ended."""
    reader = await run_in_threadpool(context.deployer.log_reader, TaskLog(run, task, stream, attempt))

    async def blocks() -> AsyncIterator[bytes]:
        async for part in follow(reader, follow_on=follow_on):
            yield part.data

    return LimitedStream(blocks(), context.streams, media_type="application/octet-stream")
