"""Connections that say nothing while few files are left: they make room for those that have a request."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
import uvicorn
import uvloop

from scanflow.errors import UsageError
from scanflow.files import open_files
from scanflow.files.open_files import RESERVED_FILES, is_only_reserve_left
from scanflow.http import acceptor
from scanflow.http.acceptor import close_longest_silent
from scanflow.http.connections import LimitedConnection
from scanflow.http.tls_files import TlsFiles
from scanflow.http.tls_server import TlsServer
from scanflow.pki import prepare_tls
from scanflow.settings import Settings
from scanflow_server import main
from tests.waiting import PATIENCE_S

ROOM = 3
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
SLOW = REQUEST.replace(b"/ ", b"/slow ")
T = TypeVar("T")


class Limit:
    """Stands in for :mod:`resource`."""

    RLIMIT_NOFILE, RLIM_INFINITY = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self._limit, self._limit


class Served:
    """A server that acts as if it had files for :data:`ROOM` connections."""

    def __init__(self, files: TlsFiles | None, monkeypatch: pytest.MonkeyPatch) -> None:
        options: dict[str, Any] = {"lifespan": "off", "interface": "asgi3", "log_config": None}
        options |= {} if files is None else {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
        config = uvicorn.Config(self.answer, http=LimitedConnection, timeout_graceful_shutdown=1, **options)
        config.load()
        self.server = TlsServer(config)
        self.server.lifespan = config.lifespan_class(config)
        self.files = files
        self.came, self.release = asyncio.Semaphore(0), asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        monkeypatch.setattr(acceptor, "is_only_reserve_left", lambda _: self.count() >= ROOM)
        monkeypatch.setattr(acceptor, "PAUSE_S", 0.01)

    async def answer(self, scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["path"] == "/slow":
            self.came.release()
            await self.release.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    def count(self) -> int:
        (accepting,) = self.server.servers
        return len(accepting)  # type: ignore[arg-type]

    async def connect(self, sent: bytes = b"") -> asyncio.StreamReader:
        """Connect with TCP alone if nothing is sent."""
        context = None
        if sent and self.files is not None:
            context = ssl.create_default_context(cafile=self.files.authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        writer.write(sent)
        self.writers.append(writer)
        return reader

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            await self.server.startup([listener])
            try:
                return await asyncio.wait_for(work, PATIENCE_S)
            finally:
                for writer in self.writers:
                    writer.transport.abort()
                await self.server.shutdown([listener])


@pytest.fixture(params=["plain", "tls"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> TlsFiles | None:
    return prepare_tls(Settings(home=tmp_path, tls=True)) if request.param == "tls" else None


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_silent_connections_shut_nobody_out(
    files: TlsFiles | None, new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(served: Served) -> tuple[list[bytes], bytes, int]:
        silent = [await served.connect() for _ in range(4 * ROOM)]
        answered = await (await served.connect(REQUEST)).readline()
        most = served.count()
        ends = await asyncio.gather(*(reader.read() for reader in silent[: 2 * ROOM]), return_exceptions=True)
        return [end if isinstance(end, bytes) else b"" for end in ends], answered, most

    async def serve() -> tuple[list[bytes], bytes, int]:
        served = Served(files, monkeypatch)
        return await served.serve(work(served))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        closed, answered, most = runner.run(serve())
    assert set(closed) == {b""}
    assert answered == b"HTTP/1.1 204 No Content\r\n"
    assert most <= 2 * ROOM


def test_requests_in_progress_are_not_cut_off_and_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(served: Served) -> list[bytes]:
        slow = [await served.connect(SLOW) for _ in range(ROOM)]
        for _ in range(ROOM):
            await served.came.acquire()
        late = await served.connect(REQUEST)
        served.release.set()
        return [await reader.readline() for reader in [*slow, late]]

    async def serve() -> list[bytes]:
        served = Served(None, monkeypatch)
        return await served.serve(work(served))

    assert asyncio.run(serve()) == [b"HTTP/1.1 204 No Content\r\n"] * (ROOM + 1)


def test_those_go_first_that_never_sent_a_request_then_the_longest_silent() -> None:
    closed: list[str] = []
    silent = {"new": (False, 5.0), "old": (False, 1.0), "has asked": (True, 0.0)}
    assert close_longest_silent([(key, partial(closed.append, name)) for name, key in silent.items()])
    assert closed == ["old"]
    assert not close_longest_silent([])


def test_the_reserve_is_of_files_and_not_of_connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        free = os.dup(file.fileno())
        os.close(free)
        for limit, is_reached in (
            (4 * (free + RESERVED_FILES), False),
            (free + 1, True),
            (free + 1 + free // 4, True),  # a quarter of a low limit
            (resource.RLIM_INFINITY, False),
        ):
            monkeypatch.setattr(open_files, "resource", Limit(limit))
            assert is_only_reserve_left(file.fileno()) == is_reached, limit
        after = os.dup(file.fileno())
        os.close(after)
    assert after == free


def test_a_process_without_a_free_file_has_only_its_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "os", SimpleNamespace(dup=Mock(side_effect=OSError(errno.EMFILE, "full"))))
    assert is_only_reserve_left(0)


def test_the_server_raises_its_limit_of_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(main, "raise_open_file_limit", Mock(side_effect=UsageError("raised")))
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    assert main.main(["--home", str(tmp_path)]) == 2
    assert stderr.getvalue() == "raised\n"
