"""The control socket of an instance: its supervisor's messages, and the replies."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.errors import InvalidError, ScanflowError
from scanflow.http.tls import create_tls
from scanflow.instance_messages import ControlMessage, DesiredInstanceState, ListenerTls, decode
from scanflow.processes import seqpacket
from scanflow_serving.instance_http import HttpServer
from scanflow_serving.instance_secrets import secrets

if TYPE_CHECKING:
    from scanflow_serving.routes import ServingApplication

_log = logging.getLogger(__name__)


class Control:
    """Listens at ``path``. Any number of peers may be connected; each gets the replies to what it sent."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        application: ServingApplication,
        http: HttpServer,
        drain: Callable[[], None],
    ) -> None:
        self._loop, self._path = loop, path
        self._application, self._http, self._drain = application, http, drain
        self._listener: socket.socket | None = None
        self._peers: dict[socket.socket, set[str]] = {}  # with the keys of the sockets that each lent
        self._tasks: set[asyncio.Task[None]] = set()
        self._applying = asyncio.Lock()

    def start(self) -> None:
        self._listener = seqpacket.listen(self._path)
        self._loop.add_reader(self._listener.fileno(), self._accept, self._listener)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for peer in list(self._peers):
            self._disconnect(peer)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer = seqpacket.accept(listener)
        except OSError as error:
            _log.warning("A connection of a supervisor could not be accepted: %s.", error)
            return
        if peer is not None:
            self._peers[peer] = set()
            self._loop.add_reader(peer.fileno(), self._read, peer)

    def _disconnect(self, peer: socket.socket) -> None:
        """Close the connection of a peer, and stop listening on the sockets that it lent."""
        lent = self._peers.pop(peer, None)
        if lent is None:
            return
        self._loop.remove_reader(peer.fileno())
        peer.close()
        for key in lent:
            self._http.ignore(key)

    def _read(self, peer: socket.socket) -> None:
        while peer in self._peers:
            try:
                received = seqpacket.receive(peer)
            except BlockingIOError:
                return
            except (ScanflowError, OSError) as error:
                _log.warning("A control message could not be read: %s", error)
                continue
            if received is None:
                self._disconnect(peer)
                return
            message, fds = received
            try:
                self._execute(peer, message, fds)
            except (ScanflowError, OSError, TypeError, ValueError) as error:
                _log.warning("The control message %r could not be carried out: %s", message.kind, error)
                self._reply(peer, message, {"error": secrets.mask(str(error))})
            finally:
                seqpacket.close_all(fds)

    def _execute(self, peer: socket.socket, message: ControlMessage, fds: list[int]) -> None:
        body: dict[str, Any] = {}
        match message.kind:
            case "apply":
                task = self._loop.create_task(self._apply(peer, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            case "state":
                others = message.body.get("others")
                body = self._application.describe_state(metrics=bool(message.body.get("metrics")), others=others)
                body |= {"connections": len(self._http), "busy_connections": self._http.busy}
                if "fair_share" in message.body:
                    self._http.balance(message.body["fair_share"])
            case "listen" if fds:
                self._listen(peer, message, fds.pop(0))
            case "ignore":
                self._peers[peer].discard(message.key)
                self._http.ignore(message.key)
            case "drain":
                self._http.drain_idle_s = float(message.body.get("idle_s", self._http.drain_idle_s))
                self._drain()
            case _:
                raise InvalidError(f"An instance does not accept {message.kind!r} with {len(fds)} files.")
        self._reply(peer, message, body)

    def _listen(self, peer: socket.socket, message: ControlMessage, fd: int) -> None:
        key, policy = message.key, decode(ListenerTls, message.body)
        try:
            listener = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            raise
        for lent in self._peers.values():
            lent.discard(key)
        self._peers[peer].add(key)
        self._application.add_alias(key)
        self._http.listen(key, listener, create_tls(policy.tls, policy.clients))

    async def _apply(self, peer: socket.socket, message: ControlMessage) -> None:
        async with self._applying:
            try:
                desired = decode(DesiredInstanceState, message.body)
                await self._application.apply(desired)
            except ScanflowError as error:
                self._reply(peer, message, {"error": secrets.mask(str(error))})
            except Exception as error:  # noqa: BLE001 - the supervisor must get a reply
                _log.exception("The desired revisions could not be served.")
                self._reply(peer, message, {"error": secrets.mask(f"{type(error).__name__}: {error}")})
            else:
                self._reply(peer, message, {"generation": desired.generation})

    def _reply(self, peer: socket.socket, message: ControlMessage, body: dict[str, Any]) -> None:
        if peer not in self._peers:
            return
        try:
            seqpacket.send(peer, ControlMessage(kind="reply", key=message.key, body=body))
        except (OSError, InvalidError) as error:  # it has disconnected, or does not read
            _log.warning("A reply to %r could not be sent: %s.", message.kind, error)
            self._disconnect(peer)
