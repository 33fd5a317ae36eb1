"""Logs that grow, read as they do: without a thread for each reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from scanflow.backends.port import LogPart, LogReader

_POLL_S = 0.2


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
