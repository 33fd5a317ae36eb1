"""Keeps the audit log, and slows down who tries tokens.

A request is recorded before it is answered. What agents and steps do is recorded elsewhere, as actions and events: of
them only what was refused is here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanflow.errors import ScanflowError
from scanflow.http.security import read_bearer_token
from scanflow_server.metrics import Meters
from scanflow_server.server_context import ServerContext
from scanflow_server.store import audit_store
from scanflow_server.store.audit_store import AuditEntry

WHAT: Final = "audited"
"""The key of a request's state with what it is about, in words."""

SAME_S: Final = 10.0
"""The same refusal from one address is recorded once in this time, in seconds, with the number of those before."""

MAX_PATHS: Final = 50
"""Refusals of one caller from one address that are told apart by path in that time; more count as one."""

FREE_FAILURES: Final = 5
"""How many wrong tokens an address may send in ``FORGIVEN_S`` before its next ones are answered later."""

FORGIVEN_S: Final = 60.0
MAX_DELAY_S: Final = 2.0
MAX_WAITING: Final = 16
"""How many requests with wrong tokens wait at once for one address; more are answered 429."""

_MAX_ADDRESSES: Final = 1024
_MAX_PATH: Final = 500
_PROBED: Final = "/mlflow/health"
"""What clients ask without a token before they use a tracker: any answer tells them that there is a server."""

_CHANGES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_REGISTRY: Final = ("/registered-models/", "/model-versions/")
_HEARTBEATS: Final = ("/heartbeat", "/here")
_READING: Final = ("/search", "/get-latest-versions")
CALLBACK: Final = "/login/callback"
"""Where the provider of OpenID Connect sends browsers back to."""

BY_CODE: Final = "/login/code"
"""Where a browser begins a session by a code."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Address:
    """What is known of an address that sent wrong tokens."""

    failures: int = 0
    last: float = 0.0
    waiting: int = 0


class TokenFailures:
    """Counts wrong tokens by address, and says how long the answer to the next one waits. A valid token never waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def add(self, address: str) -> float | None:
        """Count a wrong token; return the delay of its answer in seconds, or None: too many wait already."""
        now = self._clock()
        sender = self._addresses.setdefault(address, _Address())
        self._addresses.move_to_end(address)
        if len(self._addresses) > _MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        sender.failures = sender.failures + 1 if now - sender.last < FORGIVEN_S else 1
        sender.last = now
        if sender.failures <= FREE_FAILURES:
            return 0.0
        if sender.waiting >= MAX_WAITING:
            return None
        return min(MAX_DELAY_S, 0.1 * 2.0 ** min(sender.failures - FREE_FAILURES, 10))

    async def wait(self, address: str, delay_s: float, sleep: Callable[[float], Awaitable[object]]) -> None:
        sender = self._addresses.get(address, _Address())
        sender.waiting += 1
        try:
            await sleep(delay_s)
        finally:
            sender.waiting -= 1


class RepeatedRefusals:
    """Leaves out refusals that repeat within ``SAME_S``, and counts them for the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recorded: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._left_out = Counter[tuple[object, ...]]()

    def count(self, *sender: object, path: str = "") -> int | None:
        """Return how many like this were left out since the last one recorded; None: this one is, too."""
        now = self._clock()
        about = (*sender, path)
        if not self._is_recent(about, now) and self._count_recent(sender, now) >= MAX_PATHS:
            about = (*sender, "")
        if self._is_recent(about, now):
            self._left_out[about] += 1
            return None
        self._recorded[about] = now
        self._recorded.move_to_end(about)
        if len(self._recorded) > _MAX_ADDRESSES:
            forgotten, _ = self._recorded.popitem(last=False)
            del self._left_out[forgotten]
        return self._left_out.pop(about, 0)

    def _is_recent(self, about: tuple[object, ...], now: float) -> bool:
        return now - self._recorded.get(about, float("-inf")) < SAME_S

    def _count_recent(self, sender: tuple[object, ...], now: float) -> int:
        return sum(about[:-1] == sender and self._is_recent(about, now) for about in self._recorded)


class AuditLog:
    """Records changes, refusals and logins, each before it is answered. ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        context: ServerContext,
        meters: Meters,
        failures: TokenFailures | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._app, self._context, self._meters, self._sleep = app, context, meters, sleep
        self._failures, self._repeated = failures or TokenFailures(), RepeatedRefusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        is_replaced = False

        async def record_and_send(message: Message) -> None:
            nonlocal is_replaced
            if message["type"] == "http.response.start":
                if scope["path"] == CALLBACK:
                    self._meters.count_sign_in(message["status"])
                if is_wrong_token(scope, message["status"]) and not await self._delay(scope):
                    is_replaced = True
                    message = {**message, "status": 429, "headers": _TOO_MANY_HEADERS}
                if should_record(scope, message["status"], state.get("caller")):
                    await self._record(scope, message["status"])
            elif is_replaced:
                message = {"type": "http.response.body", "body": _TOO_MANY}
            await send(message)

        await self._app(scope, receive, record_and_send)

    async def _delay(self, scope: Scope) -> bool:
        """Wait before a wrong token is answered; return whether it may be."""
        address = get_address(scope)
        self._meters.wrong_tokens.inc()
        delay_s = self._failures.add(address)
        if delay_s:
            await self._failures.wait(address, delay_s, self._sleep)
        return delay_s is not None

    async def _record(self, scope: Scope, status: int) -> None:
        caller, what = scope["state"].get("caller"), str(scope["state"].get(WHAT, ""))
        who = "" if caller is None else caller.name
        if status >= 400:
            path = scope["path"] if who else ""  # somebody without a token may try any number of them
            before = self._repeated.count(get_address(scope), status, who, scope["method"], path=path)
            if before is None:
                return
            what = "; ".join(filter(None, [what, f"and {before} like it before" if before else ""]))
        entry = AuditEntry(
            at=self._context.clock(),
            who=who,
            role="" if caller is None else caller.role,
            team=None if caller is None else caller.team,
            address=get_address(scope),
            method=scope["method"],
            path=scope["path"][:_MAX_PATH].replace("\0", ""),
            status=status,
            what=what[:_MAX_PATH],
        )
        try:
            await run_in_threadpool(self._write, entry)
        except ScanflowError as error:  # the request's own write will have failed, too, or has been made
            _log.error("The audit log could not be written: %s", error)

    def _write(self, entry: AuditEntry) -> None:
        with self._context.store.write() as connection:
            audit_store.add(connection, entry)


def get_address(scope: Scope) -> str:
    """Return the client's address; empty: it is not known, as over a Unix socket."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def is_wrong_token(scope: Scope, status: int) -> bool:
    """Return whether a request was refused for a token that it sent, also by the form of the login page, or for a
    login code, or is a sign-in that failed."""
    if scope["path"] == CALLBACK:
        return status >= 400
    is_login = scope["path"] in {"/login", BY_CODE} and scope["method"] == "POST"
    return status == 401 and (is_login or read_bearer_token(scope["headers"]) is not None)


def should_record(scope: Scope, status: int, caller: Any) -> bool:
    """Return whether a request is for the audit log."""
    if status == 401 and scope["path"] == _PROBED and read_bearer_token(scope["headers"]) is None:
        return False
    if status in {401, 403, 429} or scope["path"] == CALLBACK:
        return True
    is_program = caller is not None and caller.role in {"agent", "step"}
    if scope["method"] not in _CHANGES or (is_program and status != 404):
        return False
    path: str = scope["path"]
    if path.endswith(_HEARTBEATS):
        return False
    if status == 404:  # what another team has is answered so
        return caller is not None
    if path.startswith("/mlflow/"):  # what is logged there is in MLflow; what its registry serves is not
        return any(part in path for part in _REGISTRY) and not path.endswith(_READING)
    return status != 405


def _make_too_many() -> tuple[bytes, Iterable[tuple[bytes, bytes]]]:
    detail = (
        "Too many requests with a wrong token, or sign-ins that failed, came from this address. Wait, and correct "
        "SCANFLOW_TOKEN."
    )
    document = {"type": "about:blank", "title": "Too many wrong tokens", "status": 429, "detail": detail}
    body = json.dumps(document).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    return body, [*headers, (b"retry-after", b"60")]


_TOO_MANY, _TOO_MANY_HEADERS = _make_too_many()
