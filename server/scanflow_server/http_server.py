"""uvicorn's server, woken by what comes: left to itself it looks ten times a second whether it shall end."""

from __future__ import annotations

import asyncio
from types import FrameType

import uvicorn

_DATE_S = 1.0
"""Until the header ``Date`` is written anew."""


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        self._ending = loop, ending
        while not await self.on_tick(0):
            loop.call_later(_DATE_S, ending.set)
            await ending.wait()
            ending.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._ending is not None:
            loop, ending = self._ending
            loop.call_soon_threadsafe(ending.set)
