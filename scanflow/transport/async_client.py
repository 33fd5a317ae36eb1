"""Requests and streams from an event loop: to the server, and to agents."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx2

from scanflow.errors import UnavailableError
from scanflow.transport.clients import CONNECT_TIMEOUT_S, build_client_options, read_reply
from scanflow.transport.sse import Message, Parser

TIMEOUT_S = 10.0
KEEP_ALIVE_S = 60.0
"""How long an idle connection is kept for the next request."""

SILENCE_S = 40.0
"""After this long without a byte a stream counts as dead: an idle server sends a keep-alive every 15 s."""


class AsyncClient:
    """One server or agent, by its address. It keeps its connections until :meth:`close`; callers retry."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        limits = httpx2.Limits(keepalive_expiry=KEEP_ALIVE_S)
        self._client = httpx2.AsyncClient(
            transport=transport, limits=limits, **build_client_options(self.url, token, timeout_s)
        )

    async def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """Send a request; return its reply's content. ``body``: text is JSON already; ``key``: the idempotency key."""
        headers = {"content-type": "application/json"} | ({} if key is None else {"idempotency-key": key})
        content = None if body is None else body if isinstance(body, str) else json.dumps(body)
        try:
            reply = await self._client.request(method, path, content=content, headers=headers)
        except httpx2.HTTPError as error:
            raise self._build_unreachable_error(error) from error
        return read_reply(reply, self.url)

    async def stream(
        self, path: str, parameters: Mapping[str, str | int | Sequence[str]], *, silence_s: float = SILENCE_S
    ) -> AsyncGenerator[list[Message], None]:
        """Yield the server-sent events at ``path`` until the server ends the stream: an empty list once it is open, and
        one list for each block that arrives.

        Raises:
            UnavailableError: nobody answers, or no more.
            ScanflowError: what was answered, if that is a refusal.
        """
        parser, timeout = Parser(), httpx2.Timeout(silence_s, connect=CONNECT_TIMEOUT_S)
        headers = {"accept": "text/event-stream"}
        try:
            async with self._client.stream(
                "GET", path, params=dict(parameters), headers=headers, timeout=timeout
            ) as reply:
                if reply.status_code >= 300:
                    await reply.aread()
                    read_reply(reply, self.url)
                yield []
                async for block in reply.aiter_bytes():
                    yield parser.feed(block)
        except httpx2.HTTPError as error:
            raise self._build_unreachable_error(error) from error

    async def close(self) -> None:
        await self._client.aclose()

    def _build_unreachable_error(self, error: httpx2.HTTPError) -> UnavailableError:
        return UnavailableError(
            f"{self.url} cannot be reached ({type(error).__name__}: {error}). Is it running? See: scanflow status"
        )
