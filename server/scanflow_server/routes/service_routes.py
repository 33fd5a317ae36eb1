"""Routes of services: show, and change by operations that outlive the request."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from scanflow.app.application import Application
from scanflow.app.application_files import dump_document
from scanflow.app.plain_secrets import check_no_plain_secrets
from scanflow.app.workflow import Workflow
from scanflow.backends.log_reader import LogPart, LogReader
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Explanation, ServiceRecord
from scanflow.deployer import InstanceLogs
from scanflow.deployer.direct_predictions import get_explanation
from scanflow.deployer.masked_deployer import mask_log, mask_service, read_masked_tails
from scanflow.errors import InvalidError
from scanflow.text.masking import Masker
from scanflow_server.api_route import DEFINITION, ApiRoute
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.arbiter.service_requests import list_pending_changes, request_change
from scanflow_server.auth import Editor, Reader
from scanflow_server.bodies import DeployBody, Key, Name, Operation, OperationAccepted, Text
from scanflow_server.progress_events import make_operation_view, parse_event_number, stream_operation_events
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.scope import EngineDep, OwnOperation, OwnService, read_own_application
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.service_drivers import Kind, check_service_exists, make_name_conflict
from scanflow_server.store.secret_store import cache_maskers, load_masker
from scanflow_server.stream_limits import LimitedStream
from scanflow_server.streams import EVENTS, follow, make_events_response
from scanflow_server.token_roles import TokenHolder

router = APIRouter(tags=["services"], responses=PROBLEMS, route_class=ApiRoute)

_REQUEST_FIELDS = {"source", "sizing", "port"}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Lines of JSON.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}


@router.get("/services")
def services(context: ContextDep, caller: Reader) -> list[ServiceRecord]:
    """List the deployed services, sorted by name."""
    records = [record for record in context.deployer.services() if caller.can_see(record.team)]
    with context.store.read() as connection:
        maskers = cache_maskers(connection)
        return [mask_service(record, maskers(record.app, record.team)) for record in records]


@router.post("/services", status_code=202, dependencies=[DEFINITION])
def deploy(
    context: ContextDep, engine: EngineDep, caller: Editor, body: DeployBody, key: Key = None
) -> OperationAccepted:
    """Deploy an online workflow as a service; change a deployed one without downtime."""
    app = read_own_application(context, caller, body.application, body.source)
    context.check_backend(app)
    check_no_plain_secrets(app)
    workflow = Deployment(app, body.workflow).online
    request = {"application": dump_document(app), **body.model_dump(mode="json", include=_REQUEST_FIELDS)}

    def get_owner() -> tuple[str, str]:
        return _check_deployable(context, caller, app, workflow)

    return OperationAccepted(
        operation=request_change(
            context,
            engine,
            "deploy",
            workflow.name,
            get_owner=get_owner,
            request=request,
            by=caller.name,
            key=caller.scope_key(key),
            keep=None if body.is_copy else app,
        )
    )


@router.get("/services/{name}")
def service(context: ContextDep, _caller: Reader, name: OwnService) -> ServiceRecord:
    """Show one service."""
    record = context.deployer.service(name)
    return mask_service(record, _load_masker(context, record))


@router.get("/services/{name}/explain")
def explain(context: ContextDep, _caller: Reader, name: OwnService) -> Explanation:
    """Explain the number of instances of a service."""
    return get_explanation(context.deployer.service(name))


@router.get("/services/{name}/logs", response_class=StreamingResponse, responses=_LINES)
async def logs(
    context: ContextDep,
    _caller: Reader,
    name: OwnService,
    instance: Text | None = None,
    follow_on: Annotated[bool, Query(alias="follow")] = False,
) -> Response:
    """Stream the logs of instances, one line of JSON per block: ``{"who", "text"}``, the text in base64."""

    def open_log() -> LogReader:
        reader = context.deployer.log_reader(InstanceLogs(name, instance))
        return mask_log(reader, _load_masker(context, context.deployer.service(name)))

    reader = await run_in_threadpool(open_log)

    async def lines() -> AsyncIterator[bytes]:
        async for who, data in follow(reader, follow_on=follow_on):
            yield json.dumps({"who": who, "text": base64.b64encode(data).decode()}).encode() + b"\n"

    return LimitedStream(lines(), context.streams, media_type="application/x-ndjson")


def read_log_tails(context: ServerContext, record: ServiceRecord, instance: str | None, n_bytes: int) -> list[LogPart]:
    """Return the end of the log of each instance, or of one, about so many bytes, with the secrets masked."""
    with closing(context.deployer.backend.online().logs(record.name, instance)) as reader:
        return read_masked_tails(reader, _load_masker(context, record), n_bytes)


@router.patch("/services/{name}", status_code=202)
def change(
    context: ContextDep, engine: EngineDep, caller: Editor, name: Name, body: ServiceChange, key: Key = None
) -> OperationAccepted:
    """Change a service without downtime: its size, a canary, the model version, or a rollback to the previous
    version."""
    request = body.model_dump(mode="json", exclude_none=True)
    return _begin(context, engine, "change", name, request, caller=caller, key=key)


@router.delete("/services/{name}", status_code=202)
def delete(context: ContextDep, engine: EngineDep, caller: Editor, name: Name, key: Key = None) -> OperationAccepted:
    """Delete a service."""
    return _begin(context, engine, "delete", name, {}, caller=caller, key=key)


@router.get("/operations/{id}")
def operation(context: ContextDep, _caller: Reader, row: OwnOperation) -> Operation:
    """Show a change of a service in progress."""
    return make_operation_view(context, row)


@router.get("/operations/{id}/events", response_class=StreamingResponse, responses=EVENTS)
async def events(
    context: ContextDep,
    _caller: Reader,
    row: OwnOperation,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """Stream an operation's progress: ``progress`` events with a text, and finally ``done`` with the operation."""
    return make_events_response(
        context.streams, stream_operation_events(context, row.id, last=parse_event_number(last_event_id))
    )


def _load_masker(context: ServerContext, record: ServiceRecord) -> Masker:
    with context.store.read() as connection:
        return load_masker(connection, record.app, record.team)


def _find_service(context: ServerContext, name: str) -> ServiceRecord | None:
    return next((record for record in context.deployer.services() if record.name == name), None)


def _find_deployment_owner(context: ServerContext, name: str) -> tuple[str, str] | None:
    """Return the application and team of the deployment in progress of a service; None: there is none."""
    pending = list_pending_changes(context, name)
    deployments = [intent for intent in pending if intent.primitive in {"deploy", "deploy_workflow"}]
    return (deployments[-1].app, deployments[-1].team) if deployments else None


def _check_deployable(
    context: ServerContext, caller: TokenHolder, app: Application, workflow: Workflow
) -> tuple[str, str]:
    """Return the application and team of a new deployment; refuse a name that another one has."""
    own = (app.name, app.team)
    record = _find_service(context, workflow.name)
    owner = _find_deployment_owner(context, workflow.name) if record is None else (record.app, record.team)
    if owner is not None and not caller.can_see(owner[1]):
        raise make_name_conflict(workflow.name)
    if owner is not None and owner != own:
        raise InvalidError(
            f"The service {workflow.name!r} belongs to the application {owner[0]!r} of the team {owner[1]!r}. Service "
            "names are shared by all teams: rename this workflow, or have that service deleted: scanflow delete "
            f"{workflow.name}"
        )
    tracker = None if app.tracker is None else app.tracker.uri
    _check_models(context, workflow.name, tracker, [node.model for node in workflow.services], team=app.team)
    return own


def _check_models(
    context: ServerContext, service: str, tracker: str | None, models: Iterable[str | None], *, team: str
) -> None:
    """Refuse a model that does not exist, if the change is queued behind others."""
    if list_pending_changes(context, service):
        for model in filter(None, models):
            context.find_model(model, tracker, team=team)


def _begin(
    context: ServerContext,
    engine: ArbiterEngine,
    kind: Kind,
    name: str,
    request: dict[str, Any],
    *,
    caller: TokenHolder,
    key: str | None,
) -> OperationAccepted:
    def get_owner() -> tuple[str, str]:
        # An unknown name is refused here; a service whose deployment is in progress may be changed after it.
        services = context.deployer.services()
        record = next((candidate for candidate in services if candidate.name == name), None)
        if (
            record is None
            and (deploying := _find_deployment_owner(context, name)) is not None
            and caller.can_see(deploying[1])
        ):
            return deploying
        if caller.team is not None:
            own = [candidate for candidate in services if caller.can_see(candidate.team)]
            check_service_exists(name, own)
            if request.get("backup"):
                check_service_exists(request["backup"], own)
        record = record or context.deployer.service(name)
        _check_models(context, name, record.tracker, [request.get("model")], team=record.team)
        return record.app, record.team

    return OperationAccepted(
        operation=request_change(
            context, engine, kind, name, get_owner=get_owner, request=request, by=caller.name, key=caller.scope_key(key)
        )
    )
