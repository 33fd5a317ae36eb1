"""MLflow behind this server: pages, REST API and artifacts below ``/mlflow``, for those whose token or login allows it.

MLflow itself knows no users here: it listens on a socket that only the home's user can open, or asks for a token that
this server alone has (see ``mlflow_server.py``). It is told the caller's team, and shows that team's alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from scanflow.errors import NotFoundError, ScanflowError, UnavailableError
from scanflow.http.body_limits import SEND_LESS, read_body
from scanflow.http.problems import build_problem
from scanflow.http.security import App, Receive, RequestGuard, Scope, Send, read_bearer_token
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.transport.forwarding import MAX_CONNECTIONS, ForwardedReply, Forwarder
from scanflow.transport.mlflow_api import MLFLOW_PATH, TEAM_HEADER
from scanflow_server.mlflow_access import (
    ArtifactAddresses,
    classify_request,
    explain_mlflow_refusal,
    find_body_limit,
    holds_files,
    names_location,
)
from scanflow_server.page_sessions import FindCaller, Sessions, read_session
from scanflow_server.server_context import ServerContext
from scanflow_server.stream_limits import StreamLimit
from scanflow_server.token_roles import TokenHolder

_PRIVATE_HEADERS: Final = frozenset(
    b"host authorization cookie origin referer accept-encoding set-cookie server date x-mlflow-workspace".split()
) | {TEAM_HEADER.encode()}
"""What ends at this server in either direction. Compressed answers could not be read here."""

_SAFE: Final = [(b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"SAMEORIGIN")]
_SANDBOX: Final = (b"content-security-policy", b"sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:")

_log = logging.getLogger(__name__)


class MlflowProxy:
    """Serves ``/mlflow`` and below, and passes on all other requests. ASGI middleware.

    ``callers`` returns the holder of a token; None: it is not valid.
    """

    def __init__(self, app: App, *, context: ServerContext, callers: FindCaller, sessions: Sessions) -> None:
        self._app, self._context, self._callers, self._sessions = app, context, callers, sessions
        self._place = locate_tracker(context.settings.home, context.settings.library.tracker_uri)
        self._addresses = ArtifactAddresses(self._place.artifact_root)
        self._limit = StreamLimit(MAX_CONNECTIONS, what="requests to MLflow", advice="or try again.")
        self._forwarder: Forwarder | None = None
        self._guarded = RequestGuard(self._serve, hosts=context.settings.names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                await self._close()
            return
        path = scope.get("path", "")
        here = scope["type"] == "http" and (path == MLFLOW_PATH or path.startswith(f"{MLFLOW_PATH}/"))
        await (self._guarded if here else self._app)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request, send)
        except ClientDisconnect:
            return
        except HTTPException as error:
            response = _make_refusal(error.status_code, error.detail)
        except ScanflowError as error:
            response = _make_refusal(build_problem(error)[0], str(error))
        if response is not None:
            await response(scope, receive, send)

    async def _answer(self, request: Request, send: Send) -> Response | None:
        """Send a request on and its reply back, or return the answer to one that is not sent on."""
        path: str = request.scope["path"]  # a URL's would end at a "?" that was escaped
        if path == MLFLOW_PATH:  # MLflow's pages name their parts relative to this one
            return RedirectResponse(f"{MLFLOW_PATH}/", 307)
        caller, by_page = await self._identify_caller(request)
        if caller is None:
            if (
                request.method == "GET"
                and path == f"{MLFLOW_PATH}/"
                and "text/html" in request.headers.get("accept", "")
            ):
                return RedirectResponse(f"/login?next={quote(path, safe='')}", 303)
            return _make_refusal(
                401, "A token is needed: set MLFLOW_TRACKING_TOKEN to one that this server accepts, or log in at /login"
            )
        access = classify_request(request.method, _strip_prefix(request))
        if access is None:
            raise NotFoundError(f"{request.method} {path!r:.200} of MLflow is not offered by this server.")
        names = (path, *request.query_params.values())
        reason = explain_mlflow_refusal(caller, access, by_page=by_page, names=names)
        if reason is not None:
            return _make_refusal(403, reason)
        await self._forward(request, send, caller, find_body_limit(access, _strip_prefix(request)))
        return None

    async def _identify_caller(self, request: Request) -> tuple[TokenHolder | None, bool]:
        """Return who sends a request, and whether the cookie of a page says so."""
        token = read_bearer_token(request.scope["headers"])
        if token is not None:
            return await self._callers(token), False
        return await self._sessions.find_caller(read_session(request)), True

    async def _forward(self, request: Request, send: Send, caller: TokenHolder, limit: int | None) -> None:
        path, method = _strip_prefix(request), request.method
        headers = _drop_private(request.scope["headers"])
        headers += [] if caller.team is None else [(TEAM_HEADER.encode(), caller.team.encode())]
        body: AsyncIterator[bytes] | None = request.stream()
        if limit is not None:  # read first: a body that never ends holds no connection to MLflow
            content = await read_body(request.receive, max_bytes=limit, advice=SEND_LESS)
            if names_location(method, path):
                content = self._addresses.convert_request(content)
            headers = [pair for pair in headers if pair[0] not in {b"content-length", b"transfer-encoding"}]
            headers += [(b"content-length", b"%d" % len(content))] if content else []
            body = _yield_once(content) if content else None
        query = request.scope.get("query_string", b"")
        target = quote(path, safe="/:@!$&'()*+,;=-._~").encode() + (b"?" + query if query else b"")
        started = False
        try:
            with self._limit.hold(caller):
                async with self._open().forward(method, target, headers, body) as reply:
                    started = True
                    await self._send_reply(path, reply, send)
        except UnavailableError:
            if not started:
                raise
            _log.warning("MLflow stopped answering in the midst of %s %s", method, path)

    async def _send_reply(self, path: str, reply: ForwardedReply, send: Send) -> None:
        headers = [*_drop_private(reply.headers), *_SAFE, *([_SANDBOX] if holds_files(path) else [])]
        is_json = any(name == b"content-type" and value.startswith(b"application/json") for name, value in headers)
        if is_json and self._addresses.are_local and not holds_files(path):
            content = self._addresses.convert_answer(b"".join([block async for block in reply.blocks]))
            headers = [pair for pair in headers if pair[0] != b"content-length"]
            headers.append((b"content-length", b"%d" % len(content)))
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": content})
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        async for block in reply.blocks:
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _close(self) -> None:
        if self._forwarder is not None:
            await self._forwarder.close()

    def _open(self) -> Forwarder:
        """Return the connection to MLflow.

        Raises:
            UnavailableError: no MLflow runs for this server.
        """
        token = self._context.settings.tracker_token
        if self._place.artifact_root is None and token is not None:
            secret = token.get_secret_value()
            self._forwarder = self._forwarder or Forwarder(url=self._place.tracking_uri, token=secret)
            return self._forwarder
        socket = find_server_socket(self._place)
        if socket is None:
            raise UnavailableError("No MLflow runs behind this server. Start it: scanflow up")
        self._forwarder = self._forwarder or Forwarder(socket=socket)
        return self._forwarder


def _strip_prefix(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(MLFLOW_PATH)


def _drop_private(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value)
        for name, value in headers
        if name.replace(b"_", b"-") not in _PRIVATE_HEADERS  # which are the same to WSGI
        and not name.startswith((b"sec-", b"x-frame-", b"x-content-type"))
    ]


_CODES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "ENDPOINT_NOT_FOUND",
    413: "INVALID_PARAMETER_VALUE",
    422: "INVALID_PARAMETER_VALUE",
    503: "TEMPORARILY_UNAVAILABLE",
}


def _make_refusal(status: int, detail: str) -> Response:
    """Return a refusal as MLflow's clients read them."""
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(status, {})
    body = {"error_code": _CODES.get(status, "INTERNAL_ERROR"), "message": detail}
    return Response(json.dumps(body), status, headers, media_type="application/json")


async def _yield_once(content: bytes) -> AsyncIterator[bytes]:
    yield content
