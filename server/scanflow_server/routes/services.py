"""Services: looked at, and changed by operations that go on when their caller is gone."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi import Path as InPath
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from scanflow.backends.service_records import Explanation, ServiceRecord
from scanflow.deployer.services import online_workflow, shape_for
from scanflow.errors import UsageError
from scanflow_server import asking
from scanflow_server.bodies import (
    Begun,
    DeployBody,
    Key,
    Name,
    Operation,
    PromoteBody,
    ScaleBody,
    Text,
    TrafficBody,
    read_application,
)
from scanflow_server.context import Context, Given
from scanflow_server.following import Source, follow
from scanflow_server.problems import PROBLEMS
from scanflow_server.store.operations import StoredOperation
from scanflow_server.streams import EVENTS, event, events_response
from scanflow_server.watching import number_of, operation_events, stored_operation

__all__ = ["router", "told"]

router = APIRouter(tags=["services"], responses=PROBLEMS)

OperationId = Annotated[str, InPath(pattern=r"^[a-z]+-[0-9a-f]{12}$")]
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Lines of JSON.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}


@router.get("/services")
def services(context: Given) -> list[ServiceRecord]:
    """List what is deployed, by name."""
    return context.deployer.services()


@router.post("/services", status_code=202)
def deploy(context: Given, body: DeployBody, key: Key = None) -> Begun:
    """Have an online workflow served; where it is served already, have it changed without a gap."""
    app = read_application(body.application, body.source)
    workflow = online_workflow(app, body.workflow)
    shape_for(workflow, instances=body.instances, cores=body.cores, affinity=body.affinity)
    wish = body.model_dump(mode="json", include={"instances", "cores", "affinity", "port"})
    document = asking.document_of(app)
    request = {"application": document, "source": body.source, **wish}
    source = None if body.source is None else Path(body.source)
    operation = asking.ask_operation(
        context,
        "deploy",
        workflow.name,
        of=lambda: app.name,
        request=request,
        key=key,
        keep=(app, document, source),
    )
    return Begun(operation=operation)


@router.get("/services/{name}")
def service(context: Given, name: Name) -> ServiceRecord:
    """Show one service."""
    return context.deployer.service(name)


@router.get("/services/{name}/explain")
def explain(context: Given, name: Name) -> Explanation:
    """Say why a service has as many instances as it has."""
    return context.deployer.explain(name)


@router.get("/services/{name}/logs", response_class=StreamingResponse, responses=_LINES)
async def logs(
    context: Given,
    name: Name,
    instance: Text | None = None,
    follow_on: Annotated[bool, Query(alias="follow")] = False,
) -> Response:
    """Show what instances wrote, a line of JSON a block: ``{"who", "text"}``, the text in base64."""
    files_of = context.deployer.service_log_files
    await run_in_threadpool(files_of, name, instance=instance)

    def look() -> tuple[list[Source], bool]:
        return files_of(name, instance=instance), not follow_on

    async def lines() -> AsyncIterator[bytes]:
        async for who, block in follow(look):
            yield json.dumps({"who": who, "text": base64.b64encode(block).decode()}).encode() + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.post("/services/{name}/scale", status_code=202)
def scale(context: Given, name: Name, body: ScaleBody, key: Key = None) -> Begun:
    """Have a service cut into other instances while it serves."""
    request = body.model_dump(mode="json", exclude_none=True)
    if not request:
        raise UsageError("Nothing was given to change. Say how many instances, or their cores, or their affinity.")
    return _begun(context, "scale", name, request, key)


@router.post("/services/{name}/traffic", status_code=202)
def traffic(context: Given, name: Name, body: TrafficBody, key: Key = None) -> Begun:
    """Have another version of a model tried on a share of the requests, or on a copy of each."""
    return _begun(context, "traffic", name, body.model_dump(mode="json", exclude_none=True), key)


@router.post("/services/{name}/promote", status_code=202)
def promote(context: Given, name: Name, body: PromoteBody | None = None, key: Key = None) -> Begun:
    """Have the version that is tried, or the given one, answer everything."""
    given = body or PromoteBody()
    return _begun(context, "promote", name, given.model_dump(mode="json", exclude_none=True), key)


@router.post("/services/{name}/rollback", status_code=202)
def rollback(context: Given, name: Name, key: Key = None) -> Begun:
    """Have the version that is tried taken back, or what was served before served again."""
    return _begun(context, "rollback", name, {}, key)


@router.delete("/services/{name}", status_code=202)
def delete(context: Given, name: Name, key: Key = None) -> Begun:
    """Have a service ended and forgotten."""
    return _begun(context, "delete", name, {}, key)


@router.get("/operations/{id}")
def operation(context: Given, id: OperationId) -> Operation:
    """Show a change of a service on its way."""
    return told(stored_operation(context, id))


@router.get("/operations/{id}/events", response_class=StreamingResponse, responses=EVENTS)
async def events(
    context: Given, id: OperationId, last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None
) -> Response:
    """Tell of an operation's progress: ``progress`` events with a text, and at last ``done`` with the operation."""
    await run_in_threadpool(stored_operation, context, id)
    last = number_of(last_event_id)

    async def blocks() -> AsyncIterator[bytes]:
        number = 0
        async for name, place, text in operation_events(context, id, last=last):
            number = int(place)
            yield event(text, name=name, id=place)
        done = told(await run_in_threadpool(stored_operation, context, id))
        yield event(done.model_dump_json(), name="done", id=str(max(number, last) + 1))

    return events_response(blocks())


def told(one: StoredOperation) -> Operation:
    """Return an operation as it is told."""
    return Operation(
        id=one.id,
        kind=one.kind,
        service=one.service,
        state=one.state,
        progress=one.progress or [],
        result=one.result,
        problem=one.problem,
    )


def _begun(context: Context, kind: Any, name: str, request: dict[str, Any], key: str | None) -> Begun:
    def of() -> str:
        # A name that is not there is refused here; one whose deployment is still under way may be changed after it.
        known = next((one for one in context.deployer.services() if one.name == name), None)
        if known is None and not asking.is_being_deployed(context, name):
            context.deployer.service(name)
        return "" if known is None else known.app

    return Begun(operation=asking.ask_operation(context, kind, name, of=of, request=request, key=key))
