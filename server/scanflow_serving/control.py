"""The control socket of an instance: what its supervisor says to it, and what it says back."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from scanflow.backends.local import seqpacket
from scanflow.errors import InvalidError, ScanflowError
from scanflow.wire import Desired, Exchange, decode
from scanflow_serving.connections import Connections, adopt
from scanflow_serving.http import Parcel
from scanflow_serving.keeper import memory_of

__all__ = ["Control", "Served"]

_log = logging.getLogger(__name__)


class Served(Protocol):
    """What is controlled: :class:`scanflow_serving.routes.Application`."""

    async def apply(self, desired: Desired) -> None:
        """Serve that from now on.

        Raises:
            ScanflowError: it cannot be; everything is as it was.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Tell how it is."""
        ...


class Control:
    """Listens at ``path`` and does what it is told. The newest connection is the supervisor; an older one is not."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        served: Served,
        connections: Connections,
        drain: Callable[[], None],
    ) -> None:
        self._loop, self._path = loop, path
        self._served, self._connections, self._drain = served, connections, drain
        self._door: socket.socket | None = None
        self._peer: socket.socket | None = None
        self._outbox: deque[tuple[Exchange, list[int], Parcel | None]] = deque()
        self._writing = False
        self._quiet = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def start(self) -> None:
        """Listen."""
        self._door = seqpacket.listen(self._path)
        self._loop.add_reader(self._door.fileno(), self._meet)

    def close(self) -> None:
        """Listen no more, and say nothing more."""
        for task in list(self._tasks):
            task.cancel()
        if self._door is not None:
            self._loop.remove_reader(self._door.fileno())
            self._door.close()
            self._door = None
        self._part()

    async def flushed(self, within_s: float) -> None:
        """Wait until all that was to be said is said, or for that long."""
        try:
            async with asyncio.timeout(within_s):
                while self._outbox:
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            _log.warning("The supervisor did not take all that was said to it.")

    # -- the supervisor comes and goes

    def _meet(self) -> None:
        assert self._door is not None
        try:
            peer, _ = self._door.accept()
        except OSError:
            return
        self._part()
        peer.setblocking(False)
        self._peer = peer
        self._loop.add_reader(peer.fileno(), self._hear)
        self._connections.give = self._give

    def _part(self) -> None:
        if self._peer is None:
            return
        self._connections.give = None
        self._loop.remove_reader(self._peer.fileno())
        if self._writing:
            self._loop.remove_writer(self._peer.fileno())
            self._writing = False
        self._peer.close()
        self._peer = None
        unsaid, self._outbox = self._outbox, deque()
        self._quiet.set()
        for _, fds, parcel in unsaid:
            _close(fds)
            if parcel is not None:
                parcel.stays()
                self._connections.keep(parcel)

    # -- what it says

    def _hear(self) -> None:
        while self._peer is not None:
            try:
                came = seqpacket.receive(self._peer)
            except BlockingIOError:
                return
            except (ScanflowError, OSError) as error:
                _log.warning("A message of the supervisor could not be read: %s", error)
                continue
            if came is None:
                self._part()
                return
            message, fds = came
            try:
                self._do(message, fds)
            except (ScanflowError, OSError, TypeError, ValueError) as error:
                _log.warning("The supervisor's %r could not be done: %s", message.kind, error)
                self._reply(message, {"error": str(error)})
            finally:
                _close(fds)

    def _do(self, message: Exchange, fds: list[int]) -> None:
        match message.kind:
            case "apply":
                self._later(self._apply(message))
                return
            case "state":
                self._tell(message)
                return
            case "listen" if fds:
                self._connections.listen(message.key, adopt(fds.pop(0)))
            case "ignore":
                self._connections.ignore(message.key)
            case "take" if fds:
                self._take(message, fds)
            case "share":
                self._connections.share(int(message.body.get("connections") or 0))
            case "drain":
                self._drain()
            case _:
                raise InvalidError(f"A {message.kind!r} with {len(fds)} files means nothing to an instance.")
        self._reply(message)

    def _take(self, message: Exchange, fds: list[int]) -> None:
        read = b"" if len(fds) < 2 else _content(fds[1])
        replays = int(message.body.get("replays") or 0)
        self._connections.take(adopt(fds.pop(0)), read, replays)

    async def _apply(self, message: Exchange) -> None:
        async with self._turn:
            try:
                desired = decode(Desired, message.body)
                await self._served.apply(desired)
            except ScanflowError as error:
                self._reply(message, {"error": str(error)})
            except Exception as error:  # noqa: BLE001 - the edge of what the supervisor drives: it must hear of it
                _log.exception("What is desired could not be served.")
                self._reply(message, {"error": f"{type(error).__name__}: {error}"})
            else:
                self._reply(message, {"generation": desired.generation})

    def _tell(self, message: Exchange) -> None:
        key = message.body.get("listener")
        if key is not None:
            self._reply(message, {"listener": key}, self._connections.files(str(key)))
            return
        found = self._served.state()
        listening = list(self._connections.listening)
        self._reply(message, {**found, "listeners": listening, "connections": len(self._connections), "shares": True})

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what is said back

    def _reply(self, message: Exchange, body: dict[str, Any] | None = None, fds: Sequence[int] = ()) -> None:
        self._say(Exchange(kind="reply", key=message.key, body=body or {}), list(fds), None)

    def _give(self, parcel: Parcel) -> None:
        fds = [os.dup(parcel.fd)]
        if parcel.unanswered:
            fds.append(memory_of(parcel.unanswered))
        body = {"phase": "waiting" if parcel.unanswered else "idle", "whole": True, "replays": parcel.replays}
        self._say(Exchange(kind="give", body=body), fds, parcel)

    def _say(self, message: Exchange, fds: list[int], parcel: Parcel | None) -> None:
        self._outbox.append((message, fds, parcel))
        self._write()

    def _write(self) -> None:
        while self._outbox and self._peer is not None:
            message, fds, parcel = self._outbox[0]
            if parcel is not None:
                parcel.leaving()
            try:
                seqpacket.send(self._peer, message, fds)
            except BlockingIOError:
                if parcel is not None:
                    parcel.stays()
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._peer.fileno(), self._write)
                return
            except OSError:
                self._part()
                return
            self._outbox.popleft()
            _close(fds)
            if parcel is not None:
                parcel.close()
        self._quiet.set()
        if self._writing and self._peer is not None:
            self._writing = False
            self._loop.remove_writer(self._peer.fileno())


def _content(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
