"""Routes of the server itself: health, readiness, metrics, status."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel
from sqlalchemy import text

from scanflow import __version__
from scanflow.deployer.remote_home import build_mlflow_url
from scanflow.errors import ScanflowError, UnavailableError, UnsupportedError
from scanflow.files.private import open_private
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.text.masking import mask_place
from scanflow_server.api_route import ApiRoute
from scanflow_server.auth import Operator, Reader
from scanflow_server.bodies import Status, TrackerStatus
from scanflow_server.control.agent_controller import describe_agent
from scanflow_server.request_problems import PROBLEMS, describe_problems
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.store import agent_store, event_store, intent_store, run_store, usage
from scanflow_server.token_roles import TokenHolder

_PROBE_BYTES = 65_536

root = APIRouter(tags=["system"], route_class=ApiRoute)
api = APIRouter(tags=["system"], responses=PROBLEMS, route_class=ApiRoute)


class _HasTeam(Protocol):
    @property
    def team(self) -> str: ...


class Health(BaseModel):
    """The state of the server."""

    status: str


@root.get("/healthz")
async def healthz() -> Health:
    """Report that the process is alive."""
    return Health(status="alive")


@root.get("/readyz", responses=describe_problems(421, 403, 503))
def readyz(context: ContextDep, request: Request) -> Health:
    """Report whether the server is ready; with a token for all teams, also why not."""
    wrong = [reason for reason in (_check_database(context), _check_home(context)) if reason]
    if wrong:
        caller: TokenHolder | None = request.state.caller
        may_know = caller is not None and caller.team is None
        raise UnavailableError(" ".join(wrong) if may_know else "The server is not ready.")
    return Health(status="ready")


@root.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **describe_problems(401, 403, 421, 503),
    },
)
def metrics(context: ContextDep, _caller: Operator, request: Request) -> Response:
    """Return the server's metrics for Prometheus; a token for all teams is required."""
    shares = context.requests
    counts = {"requests": shares.answered, "requests_waiting": shares.waiting, "requests_refused": shares.refused}
    with context.store.read() as connection:
        stored = usage.list_all(connection)
    counts |= {"streams": context.streams.open, **_count_resources(context, None)}
    body = request.app.state.meters.render(counts, stored)
    return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")


@api.get("/status")
def status(context: ContextDep, caller: Reader) -> Status:
    """Describe this server and its resources; its folders only with a token for all teams."""
    with context.store.read() as connection:
        rows = [agent for agent in agent_store.list_all(connection) if caller.can_see(agent.team)]
    has_team = caller.team is not None
    return Status(
        version=__version__,
        home="" if has_team else str(context.settings.home),
        database="" if has_team else context.store.address,
        tracker=_get_tracker_status(context),
        started=context.started,
        pid=0 if has_team else os.getpid(),
        agents=[describe_agent(context, row) for row in rows],
        counts=_count_resources(context, caller.team),
    )


def _count_resources(context: ServerContext, team: str | None) -> dict[str, int]:
    """Count the resources of a team; None: of all."""

    def count_own(rows: Iterable[_HasTeam]) -> int:
        return sum(team in {None, row.team} for row in rows)

    with context.store.read() as connection:
        counts = {
            "runs_active": run_store.count_active(connection, team=team),
            "operations_running": count_own(row.intent for row in intent_store.list_open_changes(connection)),
            "agents": count_own(agent_store.list_all(connection)),
            "events": event_store.get_newest_id(connection, team=team),
        }
    try:
        services = count_own(context.deployer.services())
    except UnsupportedError:  # the backend has no services
        services = 0
    return counts | {"services": services}


def _get_tracker_status(context: ServerContext) -> TrackerStatus:
    place = locate_tracker(context.settings.home, context.settings.library.tracker_uri)
    is_elsewhere = place.artifact_root is None and context.settings.tracker_token is None
    if is_elsewhere:
        return TrackerStatus(url=mask_place(place.tracking_uri), ready=True)
    ready = place.artifact_root is None or find_server_socket(place) is not None
    return TrackerStatus(proxied=ready, url=build_mlflow_url(context.public_url) if ready else None, ready=ready)


def _check_database(context: ServerContext) -> str:
    try:
        with context.store.read() as connection:
            connection.execute(text("SELECT 1 FROM events LIMIT 1"))
        context.store.check_writable()
    except ScanflowError as error:
        return str(error)
    return ""


def _check_home(context: ServerContext) -> str:
    """Return why the home is not writable; a full disk is detected by writing a page."""
    path = context.settings.folder / ".ready"
    try:
        with open_private(path, "wb") as file:
            file.write(bytes(_PROBE_BYTES))
        path.unlink()
    except OSError as error:
        return (
            f"The server cannot write to the folder {str(path.parent)!r}: {error.strerror}. Free disk space, or fix "
            "its permissions."
        )
    return ""
