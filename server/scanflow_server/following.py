"""Files that grow, read as they do: without a thread for each of those who look on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

from starlette.concurrency import run_in_threadpool

from scanflow.errors import NotFoundError

__all__ = ["Source", "follow"]

Source: TypeAlias = tuple[str, Path]
"""Whose words, and the file that holds them."""

_POLL_S = 0.2
_BLOCK = 65_536


async def follow(look: Callable[[], tuple[list[Source], bool]]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield whose words and what is written, until nothing more will be.

    ``look`` returns the files there are, and whether no more will be written to them; it is asked before they are read,
    so that what is written until the end is read after it. A look that finds nothing any more ends it too.
    """
    positions: dict[Path, int] = {}
    while True:
        try:
            files, ended = await run_in_threadpool(look)
        except NotFoundError:
            return
        for who, path in files:
            while block := await run_in_threadpool(_read, path, positions.get(path, 0)):
                positions[path] = positions.get(path, 0) + len(block)
                yield who, block
        if ended:
            return
        await asyncio.sleep(_POLL_S)


def _read(path: Path, position: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(_BLOCK)
    except FileNotFoundError:
        return b""
