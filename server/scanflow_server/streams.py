"""Streamed responses: server-sent events and growing logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.concurrency import run_in_threadpool

from scanflow.backends.log_reader import LogPart, LogReader
from scanflow.text.printable import make_one_line
from scanflow_server.stream_limits import TOKEN_CHECK_S, LimitedStream, StreamLimit

PING_S: Final = 15.0
PING: Final = KEEPALIVE_COMMENT
_POLL_S = 0.2

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
"""The OpenAPI description of a response of server-sent events."""


def format_event(data: str, *, name: str | None = None, id: str | None = None) -> bytes:
    return format_sse_event(data_str=data, event=None if name is None else make_one_line(name), id=id)


def make_events_response(
    slots: StreamLimit, events: AsyncIterator[bytes], *, check_s: float = TOKEN_CHECK_S
) -> LimitedStream:
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return LimitedStream(add_pings(events), slots, media_type="text/event-stream", headers=headers, check_s=check_s)


async def add_pings(blocks: AsyncIterator[bytes], *, every_s: float = PING_S) -> AsyncIterator[bytes]:
    """Yield the blocks, with a comment as keep-alive whenever there was none for a while."""
    next_block: asyncio.Future[bytes] | None = None
    try:
        while True:
            next_block = next_block or asyncio.ensure_future(anext(blocks))
            done, _ = await asyncio.wait({next_block}, timeout=every_s)
            if not done:
                yield PING
                continue
            try:
                block = next_block.result()
            except StopAsyncIteration:
                return
            next_block = None
            yield block
    finally:
        if next_block is not None:
            next_block.cancel()


async def follow(reader: LogReader, *, follow_on: bool) -> AsyncIterator[LogPart]:
    """Yield the parts of a log so far, or with ``follow_on`` until it ends; then close the reader."""
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
