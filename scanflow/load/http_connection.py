"""A connection over HTTP/1.1 of the load generator: it sends one request after another."""

from __future__ import annotations

import asyncio
import select
import ssl
import time
from functools import lru_cache
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import httptools

from scanflow.errors import UsageError
from scanflow.http.client_tls import add_client_files
from scanflow.load.load_plan import LoadError

if TYPE_CHECKING:
    from scanflow.load.load_plan import LoadPlan, Sender


async def connect(run: Sender) -> HttpConnection:
    """Return an open connection to the target of a load.

    Raises:
        OSError: it was refused.
    """
    url = urlsplit(run.plan.url)
    kind = HttpConnection if run.tally is None else _TallyingConnection
    loop = asyncio.get_running_loop()
    if url.scheme == "http":
        _, connection = await loop.create_connection(lambda: kind(run), str(url.hostname), url.port or 80)
    else:
        context = build_load_context(run.plan.authority, run.plan.certificate, run.plan.key)
        _, connection = await loop.create_connection(lambda: kind(run), str(url.hostname), url.port or 443, ssl=context)
    return connection


@lru_cache(maxsize=1)
def build_load_context(authority: str, certificate: str, key: str) -> ssl.SSLContext:
    """Load the TLS context of a load's connections.

    Raises:
        LoadError: a file cannot be used.
    """
    context = ssl.create_default_context()
    try:
        add_client_files(context, authority, certificate, key)
    except UsageError as error:
        raise LoadError(str(error)) from error
    return context


def encode_request(plan: LoadPlan, body: bytes) -> bytes:
    """Return a complete request: the head, and this body."""
    url = urlsplit(plan.url)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = [f"{plan.method} {path} HTTP/1.1", f"host: {url.netloc}"]
    lines += [f"{name}: {value}" for name, value in plan.headers.items()]
    if body or plan.method not in {"GET", "HEAD"}:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class HttpConnection(asyncio.Protocol):
    def __init__(self, run: Sender) -> None:
        self._run = run
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self._tally: str | None = None
        self._begun = False
        self.due: float | None = None
        self.number = 0
        """The number of the current request."""

        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def send(self, due: float, number: int) -> None:
        self.due, self.number, self._sent = due, number, time.monotonic()
        self._begun = False
        self._body.clear()
        self._tally = None
        assert self._transport is not None
        self._transport.write(self._run.build_message(number))

    def data_received(self, data: bytes) -> None:
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        due, self.due = self.due, None
        status = self._parser.get_status_code()
        if due is None:
            return  # an answer that nobody asked for, such as a 408 to an idle connection
        body = b"".join(self._body)
        right = self._run.expect is None or self._run.expect in body
        reason = None
        if not 200 <= status < 300:
            reason = f"{status}: {body[:200].decode(errors='replace')}"
        elif not right:
            reason = f"another answer: {body[:200].decode(errors='replace')}"
        self._run.record_result(
            self.number, due, self._sent, status if right or status >= 300 else -status, reason, self._tally
        )
        if not self._parser.should_keep_alive():
            self._close()
            self._run.replace(self)
        else:
            self._run.release(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self.due is not None:
            how = "connection closed during the answer" if self._begun else "closed without an answer"
            due, self.due = self.due, None
            self._run.record_result(self.number, due, self._sent, 0, f"{how}: {exc or 'end of file'}", None)
        else:
            self._run.reconnects += 1
        self._run.replace(self)

    @property
    def closed_meanwhile(self) -> bool:
        """Whether the server has closed it while it was idle, which HTTP clients look for before they send."""
        assert self._transport is not None
        return bool(select.select([self._transport.get_extra_info("socket").fileno()], [], [], 0)[0])

    def expire(self, now: float) -> None:
        if self.due is not None and now - self._sent > self._run.plan.timeout_s:
            self._fail("timeout")

    async def close(self) -> None:
        self._close()

    def _fail(self, reason: str) -> None:
        due, self.due = self.due, None
        self._close()
        if due is not None:
            self._run.record_result(self.number, due, self._sent, 0, reason, None)
        self._run.replace(self)

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class _TallyingConnection(HttpConnection):
    """A connection that keeps a header of each answer: a call for each header of each answer costs time."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == self._run.tally:
            self._tally = value.decode("latin-1")
