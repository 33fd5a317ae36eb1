"""Services: looked at, and changed by operations that go on when their caller is gone."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Explanation, ServiceRecord
from scanflow.deployer import InstanceLogs
from scanflow.deployer.service_client import explanation_of
from scanflow.errors import InvalidError
from scanflow_server import requests
from scanflow_server.access import TokenHolder
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.auth import Editor, Reader
from scanflow_server.bodies import Begun, DeployBody, Key, Name, Operation, Text
from scanflow_server.commands import check_there, name_taken
from scanflow_server.context import Given, ServerContext
from scanflow_server.limits import LimitedStream
from scanflow_server.problems import PROBLEMS
from scanflow_server.progress_events import number_of, operation_events, operation_view
from scanflow_server.scope import OwnOperation, OwnService, WithEngine, read_own_application
from scanflow_server.store.operations import Kind
from scanflow_server.streams import EVENTS, events_response, follow

router = APIRouter(tags=["services"], responses=PROBLEMS)

_WISHED = {"source", "sizing", "port"}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Lines of JSON.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}


@router.get("/services")
def services(context: Given, caller: Reader) -> list[ServiceRecord]:
    """List what is deployed, by name."""
    return [one for one in context.deployer.services() if caller.sees(one.team)]


@router.post("/services", status_code=202)
def deploy(context: Given, engine: WithEngine, caller: Editor, body: DeployBody, key: Key = None) -> Begun:
    """Have an online workflow served; where it is served already, have it changed without a gap."""
    app = read_own_application(context, caller, body.application, body.source)
    context.check_backend(app)
    workflow = Deployment(app, body.workflow).online
    request = {"application": requests.document_of(app), **body.model_dump(mode="json", include=_WISHED)}

    def of() -> tuple[str, str]:
        return _deployable(context, caller, app, workflow)

    return Begun(
        operation=requests.request_operation(
            context,
            engine,
            "deploy",
            workflow.name,
            of=of,
            request=request,
            by=caller.name,
            key=caller.key(key),
            keep=app,
        )
    )


@router.get("/services/{name}")
def service(context: Given, _caller: Reader, name: OwnService) -> ServiceRecord:
    """Show one service."""
    return context.deployer.service(name)


@router.get("/services/{name}/explain")
def explain(context: Given, _caller: Reader, name: OwnService) -> Explanation:
    """Say why a service has as many instances as it has."""
    return explanation_of(context.deployer.service(name))


@router.get("/services/{name}/logs", response_class=StreamingResponse, responses=_LINES)
async def logs(
    context: Given,
    _caller: Reader,
    name: OwnService,
    instance: Text | None = None,
    follow_on: Annotated[bool, Query(alias="follow")] = False,
) -> Response:
    """Show what instances wrote, a line of JSON a block: ``{"who", "text"}``, the text in base64."""
    reader = await run_in_threadpool(context.deployer.log_reader, InstanceLogs(name, instance))

    async def lines() -> AsyncIterator[bytes]:
        async for who, data in follow(reader, follow_on=follow_on):
            yield json.dumps({"who": who, "text": base64.b64encode(data).decode()}).encode() + b"\n"

    return LimitedStream(lines(), context.streams, media_type="application/x-ndjson")


@router.patch("/services/{name}", status_code=202)
def change(
    context: Given, engine: WithEngine, caller: Editor, name: Name, body: ServiceChange, key: Key = None
) -> Begun:
    """Change a service while it serves: its size, a canary, the model version, or back to what was served before."""
    request = body.model_dump(mode="json", exclude_none=True)
    return _begun(context, engine, "change", name, request, caller=caller, key=key)


@router.delete("/services/{name}", status_code=202)
def delete(context: Given, engine: WithEngine, caller: Editor, name: Name, key: Key = None) -> Begun:
    """Have a service ended and forgotten."""
    return _begun(context, engine, "delete", name, {}, caller=caller, key=key)


@router.get("/operations/{id}")
def operation(_caller: Reader, one: OwnOperation) -> Operation:
    """Show a change of a service on its way."""
    return operation_view(one)


@router.get("/operations/{id}/events", response_class=StreamingResponse, responses=EVENTS)
async def events(
    context: Given,
    _caller: Reader,
    one: OwnOperation,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """Tell of an operation's progress: ``progress`` events with a text, and at last ``done`` with the operation."""
    return events_response(context.streams, operation_events(context, one.id, last=number_of(last_event_id)))


def _served(context: ServerContext, name: str) -> ServiceRecord | None:
    return next((one for one in context.deployer.services() if one.name == name), None)


def _being_deployed(context: ServerContext, name: str) -> tuple[str, str] | None:
    """Return the application and team that a service is being deployed of; None: no deployment is under way."""
    found = [one for one in requests.under_way(context, name) if one.kind == "deploy"]
    return (found[-1].app, str(found[-1].request["application"].get("team", "default"))) if found else None


def _deployable(context: ServerContext, caller: TokenHolder, app: Application, workflow: Workflow) -> tuple[str, str]:
    """Return whose service a deployment makes."""
    own = (app.name, app.team)
    known = _served(context, workflow.name)
    owner = _being_deployed(context, workflow.name) if known is None else (known.app, known.team)
    if owner is not None and not caller.sees(owner[1]):
        raise name_taken(workflow.name)
    if owner is not None and owner != own:
        raise InvalidError(
            f"The service {workflow.name!r} is of the application {owner[0]!r} of the team {owner[1]!r}. Names of "
            f"services are shared by all teams: rename this workflow, or have that one deleted: scanflow delete "
            f"{workflow.name}"
        )
    tracker = None if app.tracker is None else app.tracker.uri
    _check_models(context, workflow.name, tracker, [one.model for one in workflow.services])
    return own


def _check_models(context: ServerContext, service: str, tracker: str | None, models: Iterable[str | None]) -> None:
    """Refuse a model that does not exist, where the change would find that out only when its turn comes."""
    if requests.under_way(context, service):
        for model in filter(None, models):
            context.find_model(model, tracker)


def _begun(
    context: ServerContext,
    engine: ArbiterEngine,
    kind: Kind,
    name: str,
    request: dict[str, Any],
    *,
    caller: TokenHolder,
    key: str | None,
) -> Begun:
    def of() -> tuple[str, str]:
        # A name that is not there is refused here; one whose deployment is still under way may be changed after it.
        services = context.deployer.services()
        known = next((one for one in services if one.name == name), None)
        if known is None and (deploying := _being_deployed(context, name)) is not None and caller.sees(deploying[1]):
            return deploying
        if caller.team is not None:
            own = [one for one in services if caller.sees(one.team)]
            check_there(name, own)
            if request.get("backup"):
                check_there(request["backup"], own)
        known = known or context.deployer.service(name)
        _check_models(context, name, known.tracker, [request.get("model")])
        return known.app, known.team

    return Begun(
        operation=requests.request_operation(
            context, engine, kind, name, of=of, request=request, by=caller.name, key=caller.key(key)
        )
    )
