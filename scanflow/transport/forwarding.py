"""Forwards requests to another HTTP server, both bodies streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from scanflow.errors import UnavailableError
from scanflow.transport.clients import CONNECT_TIMEOUT_S, build_trust_options
from scanflow.transport.unix_socket import AsyncUnixTransport

SILENCE_S = 300.0
"""Longest wait for the next byte: a server may load, or write a large file, before it answers."""

MAX_CONNECTIONS = 64

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)


@dataclass(frozen=True, slots=True)
class ForwardedReply:
    status: int
    headers: Headers
    blocks: AsyncIterator[bytes]
    """The body as it was sent."""


class Forwarder:
    """One server, by its socket or its address. It keeps its connections until :meth:`close`."""

    def __init__(self, *, url: str = "http://localhost", socket: Path | None = None, token: str | None = None) -> None:
        """
        Raises:
            UnavailableError: the folder of the socket is missing.
        """
        self._url = urlsplit(url)
        self._authorization = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=60.0)
        try:
            transport = None if socket is None else AsyncUnixTransport(socket, limits=limits)
        except OSError as error:
            raise UnavailableError(f"Nothing listens at {str(socket)!r}: {error}.") from error
        self._client = httpx2.AsyncClient(
            transport=transport,
            limits=limits,
            timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S),
            **build_trust_options(url),
        )

    @asynccontextmanager
    async def forward(
        self, method: str, path: bytes, headers: Iterable[tuple[bytes, bytes]], body: AsyncIterator[bytes] | None
    ) -> AsyncIterator[ForwardedReply]:
        """Send a request on, and yield its reply. ``path`` is percent-encoded, and has the query.

        Raises:
            UnavailableError: nobody answers, or the reply ends in the midst.
        """
        base = self._url.path.rstrip("/").encode("ascii")
        url = httpx2.URL(scheme=self._url.scheme, netloc=self._url.netloc.encode(), raw_path=base + path)
        request = self._client.build_request(
            method, url, headers=[*_select_headers(headers), *self._authorization], content=body
        )
        try:
            reply = await self._client.send(request, stream=True)
            try:
                yield ForwardedReply(reply.status_code, _select_headers(reply.headers.raw), reply.aiter_raw())
            finally:
                await reply.aclose()
        except httpx2.HTTPError as error:
            raise UnavailableError(f"No answer from {self._url.netloc}: {type(error).__name__}: {error}.") from error

    async def close(self) -> None:
        await self._client.aclose()


def _select_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {word.strip().lower() for name, value in pairs if name == b"connection" for word in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in _HOP_BY_HOP | named]
