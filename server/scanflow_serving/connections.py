"""All connections of an instance, and the listening sockets they come from: given and taken while it runs."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from scanflow.wire import Limits
from scanflow_serving.answers import date_line
from scanflow_serving.http import Connection, Parcel
from scanflow_serving.inbox import Inbox
from scanflow_serving.messages import Reply, Request
from scanflow_serving.slots import REGION_BYTES, Table, counters

__all__ = ["IDLE_S", "Connections"]

IDLE_S: Final = 120.0
"""Longest that a connection may be there without a request."""

_SWEEP_S: Final = 1.0
_AT_ONCE: Final = 64  # connections accepted before those that are there get their turn
_PAUSE_S: Final = 0.5  # without accepting, when this process may open no more files
_NO_MORE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SCRATCH_BYTES: Final = 64 * 1024

_log = logging.getLogger(__name__)


class Connections:
    """The set of them. Everything here is called on the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handle: Callable[[Request, Reply], None], limits: Limits, table: Table
    ) -> None:
        """``handle`` answers a request, now or later. Listening begins with :meth:`listen`."""
        self.loop = loop
        self.handle = handle
        self.most = limits.max_request_bytes
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.give: Callable[[Parcel], None] | None = None
        """What takes a connection that is to go elsewhere; None: nobody is there to take it."""

        self._age_s = limits.connection_age_s
        self._table = table
        self._live: set[Connection] = set()
        self._listeners: dict[str, socket.socket] = {}
        self._opening: dict[asyncio.Task[None], Connection] = {}
        self._fewer = asyncio.Event()
        self._leaving = False
        self._tick()
        self._timer = loop.call_later(_SWEEP_S, self._sweep)

    def __len__(self) -> int:
        return len(self._live) + sum(connection not in self._live for connection in self._opening.values())

    @property
    def listening(self) -> tuple[str, ...]:
        """The keys of what is listened on."""
        return tuple(self._listeners)

    # -- listeners

    def listen(self, key: str, listener: socket.socket) -> None:
        """Accept on that socket too, which is ours from now on; a second one of the same key replaces the first."""
        self.ignore(key)
        listener.setblocking(False)
        self._listeners[key] = listener
        self._table.serves(listener.getsockname()[1])
        self.loop.add_reader(listener.fileno(), self._accept, key, listener)

    def files(self, key: str) -> list[int]:
        """Return a copy of a listening socket's open file, the caller's to close; none where there is no such one."""
        listener = self._listeners.get(key)
        return [] if listener is None else [os.dup(listener.fileno())]

    def ignore(self, key: str) -> None:
        """Accept there no longer. What waits in its queue stays there, for whoever has the same socket."""
        listener = self._listeners.pop(key, None)
        if listener is not None:
            self.loop.remove_reader(listener.fileno())
            listener.close()

    def _accept(self, key: str, listener: socket.socket) -> None:
        # Whoever else has this socket shares the flag too: one careless dup() there, and all would wait here.
        os.set_blocking(listener.fileno(), False)
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_MORE:
                    _log.exception("Listener %r cannot be accepted on any longer.", key)
                    self.ignore(key)
                    return
                _log.warning("No more connections for now: %s.", error)
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(_PAUSE_S, self._accept_again, key, listener)
                return
            self.take(sock)

    def _accept_again(self, key: str, listener: socket.socket) -> None:
        if self._listeners.get(key) is listener:
            self.loop.add_reader(listener.fileno(), self._accept, key, listener)

    # -- connections

    def take(self, sock: socket.socket, read: bytes = b"", replays: int = 0) -> None:
        """Serve a connection, which is ours from now on; ``read`` is what another process read of it already."""
        try:
            connection = self._connect(sock, read, replays)
        except OSError as error:  # it went away before it came
            _log.debug("A connection was gone before it was served: %s.", error)
            sock.close()
            return
        task = self.loop.create_task(self._open(connection, sock))
        self._opening[task] = connection
        task.add_done_callback(self._opened)

    def keep(self, parcel: Parcel) -> None:
        """Serve a connection after all that was to go elsewhere; close it when this process is to end."""
        if not self._leaving or parcel.unanswered:
            self.take(adopt(os.dup(parcel.fd)), parcel.unanswered, parcel.replays)
        parcel.close()

    def _connect(self, sock: socket.socket, read: bytes, replays: int) -> Connection:
        if len(read) > REGION_BYTES:
            raise OSError("More was read of a connection than is ever kept.")
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        slot = self._table.take()
        position, sent = _counted(sock)
        position = max(position - len(read), 0)
        slot.area[: len(read)] = read
        try:
            slot.open(sock, position, replays)
        except OSError:
            slot.release()
            raise
        inbox = Inbox(slot, position, self.most, ahead=len(read), replays=replays)
        return Connection(self, sock, slot, inbox, sent)

    def _opened(self, task: asyncio.Task[None]) -> None:
        del self._opening[task]
        self._fewer.set()

    async def _open(self, connection: Connection, sock: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:
            _log.debug("A connection was gone before it was served: %s.", error)
            connection.connection_lost(error)
            sock.close()

    def made(self, connection: Connection) -> None:
        """Note a connection that is served from now on."""
        self._live.add(connection)
        if self._leaving:  # it may have begun to come before
            connection.going = True
            connection.last = self.give is None

    def lost(self, connection: Connection) -> None:
        """Forget a connection, which is closed."""
        self._live.discard(connection)
        self._fewer.set()

    def between(self, connection: Connection) -> None:
        """Let a connection go, of which nothing is being answered: to another process, or for good."""
        if self.give is not None:
            parcel = connection.detach()
            if parcel is not None:
                self.give(parcel)
        elif self._leaving and connection.idle:
            connection.part()

    def share(self, count: int) -> None:
        """Let so many connections go to other instances, each between two requests; the idle ones first."""
        if self.give is None:
            return
        staying = [connection for connection in self._live if not connection.going]
        for connection in sorted(staying, key=lambda connection: not connection.idle)[:count]:
            connection.going = True
            if connection.idle:
                self.between(connection)

    # -- the end

    def leave(self) -> None:
        """Accept no more, and let every connection go as soon as its request is answered."""
        self._leaving = True
        for key in self.listening:
            self.ignore(key)
        for connection in list(self._live):
            connection.going = True
            connection.last = self.give is None
            if not connection.busy:
                self.between(connection)

    async def gone(self, within_s: float) -> bool:
        """Wait until no connection is left; return whether that was in time."""
        try:
            async with asyncio.timeout(within_s):
                while len(self):
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close what is left."""
        self._timer.cancel()
        for key in self.listening:
            self.ignore(key)
        for connection in list(self._live):
            connection.part()

    # -- time

    def _tick(self) -> None:
        self.now = time.monotonic()
        self.date = date_line(time.time())

    def _sweep(self) -> None:
        """Look after the slow, the idle and the old, once a second."""
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep)
        self._tick()
        now = self.now
        for connection in list(self._live):
            if not connection.idle:
                connection.expire(now)
            elif now > connection.since + IDLE_S:
                connection.part()
                continue
            if self._age_s and now > connection.opened + self._age_s and not connection.going:
                self._age(connection)

    def _age(self, connection: Connection) -> None:
        """Let an old connection go: elsewhere, or with its next answer when nobody is there to take it."""
        if self.give is None:
            connection.last = True
            return
        connection.going = True
        if connection.idle:
            self.between(connection)


def _counted(sock: socket.socket) -> tuple[int, int]:
    """Return what was read and written so far; a connection that nobody counts cannot be saved, but served."""
    try:
        return counters(sock)
    except OSError:
        return 0, 0


def adopt(fd: int) -> socket.socket:
    """Return the socket that came as an open file.

    Raises:
        OSError: it is no socket; the file is closed.
    """
    try:
        return socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
