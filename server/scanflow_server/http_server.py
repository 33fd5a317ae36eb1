"""uvicorn's server without its polling loop, which checks ten times a second whether to exit."""

from __future__ import annotations

import asyncio
import gc
import time
from email.utils import formatdate
from types import FrameType

import uvicorn
from uvicorn.server import ServerState

from scanflow.http.tls_server import TlsServer

Headers = list[tuple[bytes, bytes]]


class _State(ServerState):
    """uvicorn's state, with the ``Date`` header computed per response and not once a second."""

    _at = 0
    _headers: Headers = []  # noqa: RUF012 - replaced, never changed

    @property
    def default_headers(self) -> Headers:
        if (now := int(time.time())) != self._at:
            self._at, self._headers = now, [(b"date", formatdate(now, usegmt=True).encode())]
        return self._headers

    @default_headers.setter
    def default_headers(self, _none: Headers) -> None: ...  # pyright: ignore[reportIncompatibleVariableOverride]


class Server(TlsServer):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _State()
        self._ending: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        self._ending = loop, ending
        gc.collect()
        gc.freeze()  # what was loaded stays: to go through it stops all requests for 70 ms
        if not self.should_exit:
            await ending.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._ending is not None:
            loop, ending = self._ending
            loop.call_soon_threadsafe(ending.set)
