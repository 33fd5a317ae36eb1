"""Answers that go on while something happens: server-sent events, and logs that grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.concurrency import run_in_threadpool

from scanflow.backends.port import LogPart, LogReader
from scanflow_server.limits import LimitedStream, StreamLimit

PING_S: Final = 15.0
PING: Final = KEEPALIVE_COMMENT
_POLL_S = 0.2

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
"""The description of an answer by server-sent events."""


def event(data: str, *, name: str | None = None, id: str | None = None) -> bytes:
    return format_sse_event(data_str=data, event=name, id=id)


def events_response(slots: StreamLimit, events: AsyncIterator[bytes]) -> LimitedStream:
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return LimitedStream(pinged(events), slots, media_type="text/event-stream", headers=headers)


async def pinged(blocks: AsyncIterator[bytes], *, every_s: float = PING_S) -> AsyncIterator[bytes]:
    """Yield the blocks, and a comment whenever there was none for a while, so that nobody takes the peer for dead."""
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(blocks))
            done, _ = await asyncio.wait({coming}, timeout=every_s)
            if not done:
                yield PING
                continue
            try:
                block = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield block
    finally:
        if coming is not None:
            coming.cancel()


async def follow(reader: LogReader, *, follow_on: bool) -> AsyncIterator[LogPart]:
    """Yield what was written until now, or with ``follow_on`` until nothing more will be; close the reader."""
    try:
        while True:
            page = await run_in_threadpool(reader.read)
            for part in page.parts:
                yield part
            if page.ended or not (page.parts or follow_on):
                return
            if not page.parts:
                await asyncio.sleep(_POLL_S)
    finally:
        reader.close()
