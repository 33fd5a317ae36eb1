"""The agent's HTTP API: health, sensors, calls, events and journal."""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from scanflow.agent.records import Accepted, Event, SensorCall, SensorReport
from scanflow.errors import InvalidError, NotFoundError, UnavailableError
from scanflow.http_security import RequestGuard
from scanflow.problems import PROBLEM_JSON, problem_of
from scanflow_agents.host.agent_host import AgentHost

MOST_EVENTS = 1000
_log = logging.getLogger(__name__)
_Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=500)]


def make_api(host: AgentHost, *, tokens: Collection[str], hosts: Collection[str] = ()) -> FastAPI:
    """``tokens``: any of them lets in. ``hosts``: names beside loopback's under which it may be reached."""
    api = FastAPI(title=f"Scanflow agent {host.agent}", docs_url=None, redoc_url=None)
    api.add_exception_handler(Exception, _refuse)
    for kind in (RequestValidationError, HTTPException, InvalidError, NotFoundError, UnavailableError):
        api.add_exception_handler(kind, _refuse)

    @api.get("/healthz")
    async def healthz(request: Request) -> dict[str, Any]:
        """Return that the agent is alive, and to whoever sends its token how much waits."""
        return host.health() if request.state.caller else {"status": "alive"}

    @api.get("/sensors")
    async def sensors() -> list[SensorReport]:
        """Tell of each sensor when it fires and how it fared."""
        return host.reports()

    @api.post("/sensors/{name}", status_code=202)
    async def call(name: str, call: SensorCall, key: _Key = None) -> Accepted:
        """Call a sensor. The same idempotency key is taken once."""
        return Accepted(sample=await host.call(name, call, key=key or uuid.uuid4().hex))

    @api.post("/sensors/{name}/fire", status_code=202)
    async def fire(name: str, call: SensorCall | None = None, key: _Key = None) -> Accepted:
        """Fire a sensor now, whatever its trigger is."""
        given = call or SensorCall()
        return Accepted(sample=await host.call(name, given, key=key or uuid.uuid4().hex, anyhow=True))

    @api.post("/inbox", status_code=202)
    async def receive_events(events: list[Event]) -> dict[str, int]:
        """Take events; say how many firings they led to."""
        if len(events) > MOST_EVENTS:
            raise InvalidError(f"{len(events)} events are too many at once. Send at most {MOST_EVENTS}.")
        return {"fired": await host.events(events)}

    @api.get("/journal")
    async def journal(
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        kind: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return what happened, the oldest first: samples, intents, calls, decisions, misses, errors."""
        return await asyncio.to_thread(host.state.journal, after=after, limit=limit, kind=kind)

    async def owner(sent: str) -> str | None:
        known = [hmac.compare_digest(sent.encode(), token.encode()) for token in tokens]
        return "known" if any(known) else None

    api.add_middleware(RequestGuard, hosts=hosts, authenticate=owner, open_paths=("/healthz",), json_only=True)
    return api


class _Quiet(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program, which has more to end than its API."""
        yield


def quiet_server(api: FastAPI) -> uvicorn.Server:
    return _Quiet(
        uvicorn.Config(api, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    )


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        error = InvalidError(f"The request cannot be used: {where}: {first['msg']}.")
    elif isinstance(error, HTTPException):
        what = f"{request.method} {request.url.path}"
        error = NotFoundError(f"An agent has no {what}. It has /healthz, /sensors, /inbox and /journal.")
    status, document = problem_of(error)
    if status == 500:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse(document, status_code=status, media_type=PROBLEM_JSON)
