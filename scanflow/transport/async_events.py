"""Hear what a server streams, from an event loop: server-sent events as they come, in the blocks they came in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

import httpx

from scanflow.errors import UnavailableError
from scanflow.transport.predictions import CONNECT_TIMEOUT_S, is_loopback
from scanflow.transport.problems import error_of
from scanflow.transport.sse import Message, Parser

__all__ = ["AsyncEvents"]

SILENCE_S = 40.0
"""After so long without a byte a stream is held to be dead: a server that has nothing to say says so every 15 s."""


class AsyncEvents:
    """The streams of one server. It keeps its connections until :meth:`close`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        silence_s: float = SILENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Hear who is at ``url``, such as ``http://127.0.0.1:46666``."""
        self.url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(silence_s, connect=CONNECT_TIMEOUT_S),
            transport=transport,
            headers={"accept": "text/event-stream"} | ({} if token is None else {"authorization": f"Bearer {token}"}),
            # A proxy that the environment names cannot reach this machine's own address.
            trust_env=not is_loopback(self.url),
        )

    async def stream(
        self, path: str, parameters: Mapping[str, str | int | Sequence[str]]
    ) -> AsyncGenerator[list[Message], None]:
        """Yield what the stream at ``path`` tells, until the server ends it: an empty list once it has begun, and one
        for each block that came.

        Raises:
            UnavailableError: nobody answers, or no more.
            ScanflowError: what was answered, if that is a refusal.
        """
        parser = Parser()
        try:
            async with self._client.stream("GET", path, params=dict(parameters)) as reply:
                if reply.status_code >= 300:
                    raise error_of(reply.status_code, await reply.aread(), who=self.url)
                yield []
                async for block in reply.aiter_bytes():
                    yield parser.feed(block)
        except httpx.HTTPError as error:
            raise UnavailableError(
                f"{self.url} cannot be heard ({type(error).__name__}: {error}). Is it up? See: scanflow status"
            ) from error

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()
