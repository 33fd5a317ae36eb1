"""Limits on clients: the size of a body, the number of streams, how long a stream may stall."""

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
"""The largest request body: an application of 10,000 steps takes a tenth of it."""

STALLED_S: Final = 30.0
"""After how long without a byte read by its client a stream is closed, in seconds; a healthy client reopens it."""


class StreamLimit:
    def __init__(self, most: int) -> None:
        self._most = most
        self.open = 0

    def take(self) -> None:
        if self.open >= self._most:
            raise UnavailableError(
                f"{self.open} streams are open, the maximum. Close some, or raise SCANFLOW_MAX_STREAMS."
            )
        self.open += 1

    def release(self) -> None:
        self.open -= 1


class LimitedStream(StreamingResponse):
    """A streamed response that takes a slot while it lasts, and ends when its client stops reading or its token is no
    longer valid."""

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
        is_still_valid = scope.get("state", {}).get("still")

        async def send_within_limits(message: Message) -> None:
            if is_still_valid is not None and not await is_still_valid():
                raise ClientDisconnect
            async with asyncio.timeout(self._stalled_s):
                await send(message)

        try:
            await super().__call__(scope, receive, send_within_limits)
        except (TimeoutError, ClientDisconnect):  # the connection is closed without the end of the response
            return
        finally:
            self._slots.release()


class BodyLimit:
    """Refuses bodies that are too large, also without a Content-Length. ASGI middleware."""

    def __init__(self, app: ASGIApp, *, most: int = MAX_BODY_BYTES) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def count_received() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most:
                raise HTTPException(413, f"The body has more than {self._most} bytes, the maximum. Send less.")
            return message

        await self._app(scope, count_received if scope["type"] == "http" else receive, send)
