"""The ASGI application of an instance: checks and reads requests, and writes responses."""

from __future__ import annotations

import asyncio
import hmac
import zlib
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from functools import lru_cache, partial
from typing import Any, Final, Protocol

from scanflow.http.security import Refusal, read_bearer_token, refuse_request
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.instance_http import CLIENT, LINGER_S, RESPOND
from scanflow_serving.messages import Headers, Request, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_S: Final = 30.0
"""The timeout of reading a body, in seconds, plus its length at the lowest rate."""

LOWEST_RATE: Final = 16 * 1024
"""The minimum average rate of a sender, in bytes per second."""

_SINGLE_HEADERS: Final = (
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "inference-header-content-length",
)
_ALWAYS_OPEN: Final = frozenset({"/v2/health/live", "/v2/health/ready", "/healthz", "/readyz"})
_WORTH_COMPRESSING: Final = 1024
_MAX_COPIED_BYTES: Final = 64 * 1024
"""The largest body that is copied, so that one write sends head and body, in bytes."""

_BODILESS: Final = frozenset({204, 304})
_JSON: Final = "application/json"


class ServedApp(Protocol):
    async def handle(self, request: Request) -> Response: ...

    def refuse(self, problem: ProblemError) -> Response: ...


class _ClientLeftError(Exception): ...


class HttpApi:
    def __init__(
        self, served: ServedApp, *, max_request_bytes: int, hosts: Collection[str] = (), token: str | None = None
    ) -> None:
        """``hosts``: the allowed values of ``Host`` besides loopback's names; ``token``: None if none is needed."""
        self._served = served
        self._most = max_request_bytes
        self._token = None if token is None else token.encode()
        self._refusal = lru_cache(256)(partial(_check_headers, frozenset(host.lower() for host in hosts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope["headers"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
        whole = False
        try:
            self._check(scope, headers, raw)
            length = self._get_body_length(headers)
            body: bytes | bytearray = b""
            if length:
                body = await self._read(receive, length)
            whole = True
            if "content-encoding" in headers:
                body = await self._decompress(body, headers["content-encoding"])
            query = scope["query_string"]
            request = Request(scope["method"], scope["path"], query.decode("latin-1") if query else "", headers, body)
            response = await self._served.handle(request)
            if "accept-encoding" in headers:
                response = await _negotiate_compression(response, headers["accept-encoding"])
        except ProblemError as problem:
            response = self._served.refuse(problem)
        except (_ClientLeftError, asyncio.CancelledError):  # a connection cancels the request of a client that has gone
            return
        if not (whole and _respond_at_once(response, scope["extensions"][RESPOND])):
            await _write(response, send, None if whole else receive)

    def _check(self, scope: Scope, headers: dict[str, str], raw: list[tuple[bytes, bytes]]) -> None:
        if len(headers) < len(raw):
            names = [name for name, _ in raw]
            if twice := next((name for name in _SINGLE_HEADERS if names.count(name.encode()) > 1), None):
                raise ProblemError(400, f"The request has more than one header {twice!r}.")
        version = scope["http_version"]
        if version not in {"1.1", "1.0"}:
            raise ProblemError(505, f"HTTP/{version} is not supported: use HTTP/1.1.")
        host = headers.get("host")
        if host is None and version == "1.1":
            raise ProblemError(400, "The request has no header 'Host'.")
        refusal = self._refusal(host, headers.get("origin"), headers.get("sec-fetch-site"))
        if refusal is not None:
            raise ProblemError(refusal.status, refusal.detail, title=refusal.title)
        refused = scope["extensions"].get(CLIENT)
        if refused is not None and scope["path"] not in _ALWAYS_OPEN:
            raise ProblemError(refused.status, refused.detail)
        if self._token is not None and scope["path"] not in _ALWAYS_OPEN:
            token = read_bearer_token(raw)
            if token is None or not hmac.compare_digest(token.encode("latin-1"), self._token):
                raise ProblemError(401, "This service needs a bearer token.", headers=(("www-authenticate", "Bearer"),))
        if "expect" in headers and headers["expect"].lower() != "100-continue":
            raise ProblemError(417, f"The expectation {headers['expect'][:80]!r} is not supported: use '100-continue'.")

    def _get_body_length(self, headers: dict[str, str]) -> int:
        """Return the length of the body in bytes; -1: it is chunked."""
        coding = headers.get("transfer-encoding")
        if coding is not None:
            if coding.strip().lower() != "chunked":
                raise ProblemError(501, f"The transfer coding {coding[:80]!r} is not supported: use 'chunked'.")
            return -1
        length = int(headers.get("content-length", 0))  # validated by the parser
        if length > self._most:
            raise _make_too_large(length, self._most)
        return length

    async def _read(self, receive: Receive, length: int) -> bytes | bytearray:
        empty: MutableMapping[str, Any] = {"type": "http.request", "body": b"", "more_body": True}
        message = await receive() if length > 0 else empty
        if message["type"] == "http.request" and not message["more_body"]:
            whole: bytes = message["body"]
            return whole
        loop = asyncio.get_running_loop()
        began = loop.time()
        body = bytearray(message.get("body", b""))
        try:
            async with asyncio.timeout(BODY_S) as limit:
                while message.get("more_body"):
                    message = await receive()
                    if message["type"] != "http.request":
                        break
                    body += message["body"]
                    if len(body) > self._most:
                        raise _make_too_large(len(body), self._most)
                    limit.reschedule(began + BODY_S + len(body) / LOWEST_RATE)
        except TimeoutError:
            raise ProblemError(408, "The request was not received in time.") from None
        if message["type"] != "http.request":
            raise _ClientLeftError
        return body

    async def _decompress(self, body: bytes | bytearray, coding: str) -> bytes | bytearray:
        coding = coding.strip().lower()
        if coding == "identity" or not body:
            return body
        if coding not in {"gzip", "x-gzip", "deflate"}:
            raise ProblemError(
                415, f"The body is encoded with {coding[:40]!r}. Send it as it is, or with gzip or deflate."
            )
        return await asyncio.to_thread(decompress, body, self._most)


def decompress(body: bytes | bytearray, most: int) -> bytearray:
    # "deflate" is the zlib format, but some senders omit its header.
    raw = len(body) > 1 and body[:2] != b"\x1f\x8b" and int.from_bytes(body[:2], "big") % 31 != 0
    remaining, decompressed = bytes(body), bytearray()
    try:
        while remaining:
            decoder = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)
            decompressed += decoder.decompress(remaining, most + 1 - len(decompressed))
            if len(decompressed) > most:
                raise _make_too_large(len(decompressed), most)
            if not decoder.eof:
                raise ProblemError(400, "The body's compressed data is incomplete.")
            remaining = decoder.unused_data
    except zlib.error as error:
        raise ProblemError(400, f"The body cannot be decompressed: {error}.") from None
    return decompressed


def compress(response: Response, coding: str) -> Response:
    encoder = zlib.compressobj(1, wbits=zlib.MAX_WBITS | (16 if coding == "gzip" else 0))
    parts = [response.body] if isinstance(response.body, bytes) else response.body
    body = b"".join([*(encoder.compress(part) for part in parts), encoder.flush()])
    headers = (*response.headers, ("content-encoding", coding), ("vary", "accept-encoding"))
    return Response(response.status, body, response.content_type, headers)


async def _negotiate_compression(response: Response, accepted: str) -> Response:
    """Compress a response if the client accepts it: JSON for all, tensors only for clients that accept nothing else."""
    wanted = [coding.strip().lower() for coding in accepted.split(",")]
    coding = next((coding for coding in ("gzip", "deflate") if coding in wanted), None)
    if coding is None or (response.content_type != _JSON and len(wanted) > 1):
        return response
    parts = [response.body] if isinstance(response.body, bytes) else response.body
    if sum(map(len, parts)) < _WORTH_COMPRESSING:
        return response
    return await asyncio.to_thread(compress, response, coding)


def _respond_at_once(response: Response, respond: Callable[[int, bytes, bytes], bool]) -> bool:
    body = response.body
    if not isinstance(body, bytes) or len(body) > _MAX_COPIED_BYTES or response.status in _BODILESS:
        return False
    return respond(response.status, _format_headers(response.content_type, response.headers), body)


async def _write(response: Response, send: Send, unread: Receive | None) -> None:
    """Write a response. ``unread``: the rest of a request that was not read whole, so that the connection closes."""
    body = response.body
    parts = (body,) if isinstance(body, bytes) else [_flatten(part) for part in body]
    length = sum(map(len, parts))
    headers = _encode_headers(response.content_type, response.headers)
    if response.status not in _BODILESS:
        headers = [*headers, (b"content-length", b"%d" % length)]
    if unread is not None:
        headers = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    last = parts[-1] if parts else b""
    if unread is not None:
        await send({"type": "http.response.body", "body": last, "more_body": True})
        last = b""
        await _discard_body(unread)
    await send({"type": "http.response.body", "body": last})


async def _discard_body(receive: Receive) -> None:
    """Read and drop the rest of a request for a while: closing a socket with unread bytes resets the connection."""
    try:
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body"):
                pass
    except TimeoutError:
        pass


@lru_cache(512)
def _encode_headers(content_type: str, headers: Headers) -> list[tuple[bytes, bytes]]:
    fields = ((("content-type", content_type),) if content_type else ()) + headers
    return [(_clean(name), _clean(value)) for name, value in fields]


@lru_cache(512)
def _format_headers(content_type: str, headers: Headers) -> bytes:
    return b"".join(b"%b: %b\r\n" % pair for pair in _encode_headers(content_type, headers))


def _clean(text: str) -> bytes:
    """Return a header value without line breaks, which would start another header or the body."""
    clean = text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
    return clean.encode("latin-1", "replace")


def _flatten(part: bytes | memoryview) -> bytes | memoryview:
    return part.cast("B") if isinstance(part, memoryview) and part.format != "B" else part


def _check_headers(hosts: frozenset[str], *values: str | None) -> Refusal | None:
    names = (b"host", b"origin", b"sec-fetch-site")
    return refuse_request(
        [(name, value.encode("latin-1")) for name, value in zip(names, values, strict=True) if value is not None],
        hosts=hosts,
    )


def _make_too_large(size: int, most: int) -> ProblemError:
    return ProblemError(413, f"The body has {size} bytes or more; the limit is {most}.")
