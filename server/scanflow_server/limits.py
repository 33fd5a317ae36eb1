"""What one client can take of the server: how large a body is, how many streams there are, how long one may stall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanflow.errors import UnavailableError

MAX_BODY_BYTES: Final = 32 * 2**20
"""The largest body of a request: an application of 10,000 steps takes a tenth of it."""

STALLED_S: Final = 30.0
"""After so long without a byte taken by its client a stream is closed; a client that is well opens it again."""


class StreamLimit:
    def __init__(self, most: int) -> None:
        self._most = most
        self.open = 0

    def take(self) -> None:
        if self.open >= self._most:
            raise UnavailableError(
                f"{self.open} streams are open, which is the most. Close some, or raise SCANFLOW_MAX_STREAMS."
            )
        self.open += 1

    def give_back(self) -> None:
        self.open -= 1


class LimitedStream(StreamingResponse):
    """A streamed response that takes a slot for as long as it lasts, and ends when its client stops reading, or before
    it would tell something to a token that is not valid any more."""

    def __init__(
        self,
        blocks: AsyncIterator[bytes],
        slots: StreamLimit,
        *,
        media_type: str,
        headers: dict[str, str] | None = None,
        stalled_s: float = STALLED_S,
    ) -> None:
        slots.take()
        super().__init__(blocks, media_type=media_type, headers=headers)
        self._slots, self._stalled_s = slots, stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        still = scope.get("state", {}).get("still")

        async def sent(message: Message) -> None:
            if still is not None and not await still():
                raise ClientDisconnect
            async with asyncio.timeout(self._stalled_s):
                await send(message)

        try:
            await super().__call__(scope, receive, sent)
        except (TimeoutError, ClientDisconnect):  # the connection is closed without the end of the response
            return
        finally:
            self._slots.give_back()


class BodyLimit:
    """Refuses bodies that are too large, also where their length is not said. ASGI middleware."""

    def __init__(self, app: ASGIApp, *, most: int = MAX_BODY_BYTES) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise HTTPException(413, f"The body has more than {self._most} bytes, which is the most. Send less.")
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)
