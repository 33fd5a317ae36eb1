"""The agent's HTTP API: health, sensors, calls, events and journal.

Starlette without FastAPI, which takes 7 MiB of each agent's process.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from scanflow.agent.agent_records import Event, SampleAccepted, SensorCall
from scanflow.errors import InvalidError, NotFoundError, ScanflowError
from scanflow.http.body_limits import MAX_BODY_BYTES, check_declared_length, read_body
from scanflow.http.connections import LimitedConnection
from scanflow.http.problems import PROBLEM_JSON, build_problem
from scanflow.http.security import RequestGuard
from scanflow.http.tls_files import TlsFiles
from scanflow.http.tls_server import TlsServer
from scanflow.text.masking import mask_secrets
from scanflow_agents.host.agent_host import AgentHost

MAX_EVENTS = 1000
_MAX_KEY_LENGTH = 500
_log = logging.getLogger(__name__)
_EVENTS = TypeAdapter(list[Event])

T = TypeVar("T")


class JournalQuery(BaseModel):
    model_config = ConfigDict(extra="ignore")

    after: int = Field(default=0, ge=0)
    limit: int = Field(default=1000, ge=1, le=10_000)
    kind: str | None = None
    before: int | None = Field(default=None, ge=0)
    """The newest with a lower number, in place of the oldest."""


def make_api(host: AgentHost, *, tokens: Collection[str], hosts: Collection[str]) -> Starlette:
    """``tokens``: the accepted tokens. ``hosts``: the accepted host names besides loopback's."""
    endpoints = _Endpoints(host)
    api = Starlette(
        routes=[
            Route("/healthz", endpoints.healthz),
            Route("/sensors", endpoints.sensors),
            Route("/sensors/{name}", endpoints.call, methods=["POST"]),
            Route("/sensors/{name}/fire", endpoints.fire, methods=["POST"]),
            Route("/inbox", endpoints.receive_events, methods=["POST"]),
            Route("/journal", endpoints.journal),
        ],
        exception_handlers={Exception: _refuse, HTTPException: _refuse, ScanflowError: _refuse},
    )

    async def authenticate(token: str) -> str | None:
        matches = [hmac.compare_digest(token.encode(), accepted.encode()) for accepted in tokens]
        return "known" if any(matches) else None

    api.add_middleware(RequestGuard, hosts=hosts, authenticate=authenticate, open_paths=("/healthz",), json_only=True)
    return api


class _Endpoints:
    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def healthz(self, request: Request) -> JSONResponse:
        """Report that the agent is alive; with a token, return its whole health document."""
        return JSONResponse(self._host.describe_health() if request.state.caller else {"status": "alive"})

    async def sensors(self, request: Request) -> JSONResponse:  # noqa: ARG002
        """Return the reports of the sensors."""
        return JSONResponse([report.model_dump(mode="json") for report in self._host.build_reports()])

    async def call(self, request: Request) -> JSONResponse:
        """Call a sensor, once for each idempotency key."""
        return await self._call_sensor(request, _parse(TypeAdapter(SensorCall), await _read_body(request), "body"))

    async def fire(self, request: Request) -> JSONResponse:
        """Fire a sensor now, whatever its trigger."""
        call = _parse(TypeAdapter(SensorCall | None), await _read_body(request) or b"null", "body")
        return await self._call_sensor(request, call or SensorCall(), anyhow=True)

    async def receive_events(self, request: Request) -> JSONResponse:
        """Accept events; return the number of their firings."""
        events = _parse(_EVENTS, await _read_body(request), "body")
        if len(events) > MAX_EVENTS:
            raise InvalidError(f"{len(events)} events are too many at once. Send at most {MAX_EVENTS}.")
        return JSONResponse({"fired": await self._host.receive_events(events)}, status_code=202)

    async def journal(self, request: Request) -> JSONResponse:
        """Return journal entries, the oldest first: samples, intents, calls, decisions, misses, errors. What looks like
        a secret is masked."""
        query = _parse(TypeAdapter(JournalQuery), dict(request.query_params), "query")
        entries = await asyncio.to_thread(self._host.state.journal, **query.model_dump())
        return JSONResponse(mask_secrets(entries))

    async def _call_sensor(self, request: Request, call: SensorCall, *, anyhow: bool = False) -> JSONResponse:
        key = request.headers.get("idempotency-key") or uuid.uuid4().hex
        if len(key) > _MAX_KEY_LENGTH:
            raise InvalidError(f"An idempotency key has at most {_MAX_KEY_LENGTH} characters; this one has {len(key)}.")
        sample = await self._host.call(request.path_params["name"], call, key=key, anyhow=anyhow)
        return JSONResponse(SampleAccepted(sample=sample).model_dump(mode="json"), status_code=202)


async def _read_body(request: Request) -> bytes:
    advice = "Store what is large elsewhere, and send its address."
    check_declared_length(request.scope["headers"], max_bytes=MAX_BODY_BYTES, advice=advice)
    return await read_body(request.receive, max_bytes=MAX_BODY_BYTES, advice=advice)


def _parse(adapter: TypeAdapter[T], data: bytes | dict[str, str], where: Literal["body", "query"]) -> T:
    try:
        return adapter.validate_json(data) if isinstance(data, bytes) else adapter.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join((where, *map(str, first["loc"])))
        raise InvalidError(f"The request is invalid: {place}: {first['msg']}.") from error


class QuietServer(TlsServer):
    """A server that wakes for requests only, and not ten times a second to check whether it should exit."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        await self._ending.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program, which must stop more than its API."""
        yield


def build_quiet_server(api: Starlette, tls: TlsFiles | None = None) -> QuietServer:
    """``tls``: None to serve without."""
    return QuietServer(
        uvicorn.Config(
            api,
            http=LimitedConnection,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            date_header=False,  # its time is updated by the loop that is left out above
            ws="none",
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
    )


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        what = f"{request.method} {request.url.path}"
        error = NotFoundError(f"An agent has no {what}. It has /healthz, /sensors, /inbox and /journal.")
    status, document = build_problem(error)
    if status == 500:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse(document, status_code=status, media_type=PROBLEM_JSON)
