"""httpx2 over Unix sockets, whose paths may be of any length."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx2

from scanflow.processes.unix_address import open_unix_address


class UnixTransport(httpx2.HTTPTransport):
    """Sends all requests to the server that listens on a Unix socket."""

    def __init__(self, path: Path) -> None:
        self._address = ExitStack()
        super().__init__(uds=self._address.enter_context(open_unix_address(path)))

    def close(self) -> None:
        super().close()
        self._address.close()


class AsyncUnixTransport(httpx2.AsyncHTTPTransport):
    """The same for an event loop."""

    def __init__(self, path: Path, *, limits: httpx2.Limits) -> None:
        self._address = ExitStack()
        super().__init__(uds=self._address.enter_context(open_unix_address(path)), limits=limits)

    async def aclose(self) -> None:
        await super().aclose()
        self._address.close()
