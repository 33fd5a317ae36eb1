"""Accepting connections as long as files are left: at the limit those that are silent for longest make room."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, Final, Protocol

from scanflow.files.open_files import is_only_reserve_left

PAUSE_S: Final = 0.5
"""How long nothing is accepted where no connection can make room, in seconds."""

SilentConnection = tuple[tuple[bool, float], Callable[[], object]]
"""A connection without a request in progress: whether it has ever sent one, when it was last heard of, in seconds, and
what closes it."""

_SHARE: Final = 16
"""The part of the silent connections that is closed at once, so that they are not sorted for each new one."""

_log = logging.getLogger(__name__)


def close_longest_silent(connections: Iterable[SilentConnection]) -> bool:
    """Close those connections first that never sent a request, and are silent for longest; return whether there were
    any."""
    ordered = sorted(connections, key=itemgetter(0))
    for _, close in ordered[: 1 + len(ordered) // _SHARE]:
        close()
    return bool(ordered)


class OpenedConnection(Protocol):
    """What a connection on uvicorn's protocol has, beside ``cycle``: its newest request, or None."""

    cycle: Any
    transport: Any
    heard_at: float

    def close_idle(self) -> None: ...


def list_silent(connections: Iterable[OpenedConnection]) -> list[SilentConnection]:
    """Return the connections that have no request in progress."""
    return [
        ((connection.cycle is not None, connection.heard_at), connection.close_idle)
        for connection in connections
        if (connection.cycle is None or connection.cycle.response_complete)
        and not connection.transport.is_closing()
        and not connection.transport.get_write_buffer_size()
    ]


class Handshakes:
    """Accepted sockets whose connections are not made yet."""

    def __init__(self) -> None:
        self._sockets: dict[asyncio.Task[None], tuple[float, socket.socket]] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        """Add one, until its task is done."""
        self._sockets[task] = time.monotonic(), sock
        task.add_done_callback(lambda ended: self._sockets.pop(ended, None))

    def list_silent(self) -> list[SilentConnection]:
        return [((False, began), partial(self._end, task)) for task, (began, _) in self._sockets.items()]

    def close(self) -> None:
        for task in list(self._sockets):
            self._end(task)

    def _end(self, task: asyncio.Task[None]) -> None:
        """End a connection whose handshake may go on: what reads from its socket then closes it."""
        _, sock = self._sockets.pop(task)
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("A connection was lost before it was ended: %s.", error)


class Acceptor:
    """Accepts from one listening socket, as :class:`asyncio.Server` does, but leaves files to the process itself."""

    def __init__(
        self,
        listener: socket.socket,
        make_connection: Callable[[], asyncio.Protocol],
        connections: Collection[OpenedConnection],
        **options: Any,
    ) -> None:
        """Start to accept.

        Args:
            listener: The socket, which its owner closes.
            make_connection: Makes the protocol of a connection.
            connections: Those that are made, as they come and go.
            options: Those of :meth:`asyncio.loop.connect_accepted_socket`, which does the TLS handshake.
        """
        self._loop = asyncio.get_running_loop()
        self._listener, self._make_connection, self._connections = listener, make_connection, connections
        self._options = options
        self._handshakes = Handshakes()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def __len__(self) -> int:
        return len(self._connections) + len(self._handshakes)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        self._handshakes.close()

    async def wait_closed(self) -> None:
        """Return at once: nothing goes on after :meth:`close`."""

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _pause_accepting(self, why: object) -> None:
        _log.warning("No connections are accepted for now: %s.", why)
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(PAUSE_S, self._resume)

    def _accept(self) -> None:
        if is_only_reserve_left(self._listener.fileno()) and not close_longest_silent(self._list_silent()):
            self._pause_accepting("too many files are open, and all connections are at work")
            return
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause_accepting(error)
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._handshakes.add(self._loop.create_task(self._open(sock)), sock)

    def _list_silent(self) -> list[SilentConnection]:
        return [*self._handshakes.list_silent(), *list_silent(self._connections)]

    async def _open(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_connection, sock, **self._options)
        except OSError as error:  # its client has gone, or speaks no TLS
            _log.debug("A connection was lost before it was served: %s.", error)
            sock.close()
