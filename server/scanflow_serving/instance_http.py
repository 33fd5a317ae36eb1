"""The HTTP connections and listening sockets of an instance, on uvicorn's protocol.

uvicorn parses and writes HTTP/1.1. This module adds accepting from sockets that several processes share, timeouts for
slow clients, and closing connections without losing a request.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import ssl
import sys
import time
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from scanflow.files.open_files import is_only_reserve_left
from scanflow.http.acceptor import Handshakes, SilentConnection, close_longest_silent, list_silent
from scanflow.http.client_certificates import FORWARDED, PeerCertificate
from scanflow.http.connections import HEAD_S, MAX_HEAD_BYTES, TOO_LONG, check_head, is_head_too_large
from scanflow.http.tls import HANDSHAKE_S, ServerTls
from scanflow_serving.inference_problems import ProblemError

IDLE_S: Final = 120.0
"""The timeout of a connection without a request, in seconds; it has :data:`HEAD_S` for its first."""

WRITE_S: Final = 30.0
"""The timeout of a client that reads none of a response, in seconds."""

LINGER_S: Final = 2.0
"""How long bytes of a refused client are read and dropped, in seconds: closing at once would reset the connection."""

_FORWARDED: Final = FORWARDED.encode()
CLIENT: Final = "scanflow.client"
"""The extension of ASGI's scope that is why this client is not answered, if it is not."""

RESPOND: Final = "scanflow.respond"
"""The extension of ASGI's scope that is :meth:`HttpServer.respond` for this request."""

_USUAL_HEAD_BYTES: Final = 4096
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_SWEEP_S: Final = 0.5
PAUSE_S: Final = 0.5  # without accepting, when the limit of open files is reached
_BUSY_S: Final = 1.0  # a connection without a request for longer than this is not busy
_DEFER_S: Final = 0.005  # the head start of the other instances before one with its share accepts more
BALANCE_INTERVAL_S: Final = 1.0  # how long an instance has too many connections before it closes some
_SHORT_LIVED: Final = 8  # more lost connections between two sweeps than open ones: clients do not keep them alive
_NO_MORE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class Connection(HttpToolsProtocol):
    """A uvicorn connection with timeouts for slow clients and a maximum age."""

    cycle: Any  # None before the first request
    scope: Any

    def __init__(self, server: HttpServer, key: str, sock: socket.socket, tls: ServerTls | None) -> None:
        super().__init__(server.config, server.state, {}, server.loop)
        self.key = key
        """The listening socket that it came from."""

        self._socket = sock
        self._tls = tls
        self._peer: PeerCertificate | None = None

        self.closing = False
        """Whether its next response is its last."""

        self.refused = False
        self._server = server
        self._opened = self.heard_at = server.now
        self._head_since: float | None = None
        self._head_bytes = 0
        self._unsent = 0
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False

    @property
    def idle(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self._reading_head

    @property
    def _reading_head(self) -> bool:
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._tls is not None and self._tls.clients is not None:
            self._peer = PeerCertificate.from_ssl(transport.get_extra_info("ssl_object").getpeercert())

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._server.now
        if self.refused:
            return
        if data.find(b"pgrade:", 0, _USUAL_HEAD_BYTES) > 0 and self.idle:
            data = _remove_upgrade(data)
        super().data_received(data)
        if not self._reading_head:
            self._head_since = None
            return
        if self._head_since is None:
            self._head_since, self._head_bytes = self.heard_at, 0
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.refused:
            self._refuse(ProblemError(431, TOO_LONG))

    def is_busy(self, now: float) -> bool:
        return not self.closing and (not self.idle or now - self.heard_at < _BUSY_S)

    def on_headers_complete(self) -> None:
        check_head(self.url, self.headers)
        super().on_headers_complete()
        server = self._server
        if self.closing or (server.age_s and server.now - self._opened > server.age_s):
            self.cycle.keep_alive = False
        self.scope["extensions"] = {RESPOND: partial(server.respond, self.cycle)}
        if self._tls is not None:
            self.scope["extensions"][CLIENT] = self._tls.refuse(self._peer, self._read_forwarded())

    def _read_forwarded(self) -> list[str]:
        return [value.decode("latin-1") for name, value in self.scope["headers"] if name == _FORWARDED]

    def on_response_complete(self) -> None:
        """Continue as uvicorn does, but without a timer for each response: :meth:`expire` closes idle connections."""
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Return whether the client, which has finished sending, still gets a response."""
        cycle = self.cycle
        if self._tls is not None or cycle is None or cycle.response_complete or cycle.more_body:
            return None  # TLS has no half-closed connections
        cycle.keep_alive = False
        self._has_ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in progress: its client has gone."""
        super().connection_lost(exc)
        self._server.count_lost()
        if self._task is not None and not (self._task.done() or self.cycle.response_started):
            self._task.cancel()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._task = self.loop.create_task(cycle.run_asgi(app))

    def _probe_client(self) -> None:
        """Send an interim response to a client that has finished sending: if it has gone, the connection is lost.

        Nothing else tells a client that has closed its socket from one that waits for the response.
        """
        cycle = self.cycle
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def close_soon(self) -> None:
        """Close after the current response, or after the next one if the current head was sent already."""
        self.closing = True
        self.heard_at = self._server.now
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def expire(self, now: float, idle_s: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent != self._unsent:
            self.heard_at = now
        self._unsent = unsent
        silent_s = now - self.heard_at
        if self.refused:
            if silent_s > LINGER_S or now - self._opened > IDLE_S:
                self.transport.abort()
        elif unsent:
            if silent_s > WRITE_S:
                self.transport.abort()
        elif self._head_since is not None:
            if now - self._head_since > HEAD_S:
                self._refuse(ProblemError(408, "The request was not received in time."))
        elif not self.idle:
            self.heard_at = now
            if self._has_ended:
                self._probe_client()
        elif silent_s > idle_s or (self.scope is None and now - self._opened > HEAD_S):
            self.close_idle()

    def close_idle(self) -> None:
        """Close the connection unless a request has arrived that the loop has not read yet: that would be lost.

        The socket is shut down here, not in the loop's next turn, so that the client sends none in between.
        """
        try:
            if self._is_request_waiting():
                return
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            _log.debug("An idle connection was lost before it was closed: %s.", error)
        if self._tls is None:
            self.transport.close()
        else:
            self.transport.abort()  # there is no more sending, of the end of TLS neither

    def _is_request_waiting(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed (uvicorn calls this while it handles the parser's error)."""
        self._refuse(_make_unreadable_problem(sys.exception(), msg))

    def _refuse(self, problem: ProblemError) -> None:
        """Answer a request that cannot be parsed, and stop reading: the start of the next one is unknown."""
        self.refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body or cycle.response_started:  # an earlier request is answered first
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
        response = problem.build_response()
        body = response.join_body()
        lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
        lines += [f"content-type: {response.content_type}", f"content-length: {len(body)}", "connection: close"]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()


class HttpServer:
    """All connections of an instance. Everything here is called on the loop's thread."""

    def __init__(self, app: Any, *, age_s: float, drain_idle_s: float) -> None:
        """``age_s``: the maximum age of a connection, which closes with its next response; 0: none."""
        self.loop = asyncio.get_running_loop()
        self.config = Config(
            app,
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            access_log=False,
            log_config=None,
        )
        self.config.load()
        self.state = ServerState()
        self.age_s = age_s
        self.now = 0.0
        """The monotonic clock, as of the last sweep."""

        self.leaving = False
        """Whether each connection, also a new one, closes with its next response."""

        self.drain_idle_s = drain_idle_s
        """How long a connection that closes with its next response waits for a request."""

        self.fair_share: int | None = None
        """The busy connections per instance of the service if evenly spread; None: there is no other instance."""

        self.busy = 0
        """The number of connections that are new or had a recent request: as of the last sweep, plus changes since."""

        self._unbalanced_since: float | None = None
        self._lost = 0  # connections since the last sweep
        self._short_lived = False
        self._listeners: dict[str, socket.socket] = {}
        self._tls: dict[str, ServerTls] = {}
        self._opening = Handshakes()
        self._fewer = asyncio.Event()
        self.sweep()

    def __len__(self) -> int:
        return len(self.state.connections) + len(self._opening)

    def respond(self, cycle: Any, status: int, head: bytes, body: bytes) -> bool:
        """Write a whole response at once, in place of ASGI's two messages; return whether that was possible.

        ``head``: the header lines with their ends, without content-length and connection.
        """
        if cycle.flow.write_paused or cycle.response_started or cycle.disconnected:
            return False
        last = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        length = b"content-length: %d\r\n" % len(body)
        sent = b"" if cycle.scope["method"] == "HEAD" else body
        cycle.response_started = cycle.response_complete = True
        cycle.transport.write(b"".join((STATUS_LINE[status], self._head, head, length, last, sent)))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True

    # -- listening sockets

    def listen(self, key: str, listener: socket.socket, tls: ServerTls | None = None) -> None:
        """Accept on a socket and own it; it replaces one of the same key. ``tls``: None if it speaks none."""
        self._stop_listening(key)
        if tls is not None:
            self._tls[key] = tls
        listener.setblocking(False)
        self._listeners[key] = listener
        self.loop.add_reader(listener.fileno(), self._accept, key, listener)

    def ignore(self, key: str) -> None:
        """Stop accepting on a socket, and close the connections from it.

        The backlog is accepted by another process that shares the socket.
        """
        self._stop_listening(key)
        for connection in self._list_connections():
            if connection.key == key:
                connection.close_soon()

    def _stop_listening(self, key: str) -> None:
        self._tls.pop(key, None)
        listener = self._listeners.pop(key, None)
        if listener is not None:
            self.loop.remove_reader(listener.fileno())
            listener.close()

    def _accept(self, key: str, listener: socket.socket) -> None:
        """Accept a connection, but later if this instance has its share, so that others can take it first."""
        if self.fair_share is None or self.busy < max(self.fair_share, 1) or self._short_lived:
            self._accept_one(key, listener)
            return
        # What no other instance takes is then accepted in batches, so that a burst is soon accepted.
        self._pause_accepting(key, listener, _DEFER_S, batch=1 + self.busy // 8)

    def _accept_one(self, key: str, listener: socket.socket) -> bool:
        """Accept one connection; return whether there was one."""
        if is_only_reserve_left(listener.fileno()) and not close_longest_silent(self._list_silent()):
            _log.warning("No connections are accepted for now: too many files are open, and all are at work.")
            self._pause_accepting(key, listener, PAUSE_S)
            return False
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            if error.errno not in _NO_MORE:
                _log.exception("The listener %r failed and accepts no more connections.", key)
                self._stop_listening(key)
                return False
            _log.warning("No connections are accepted for now: %s.", error)
            self._pause_accepting(key, listener, PAUSE_S)
            return False
        self.busy += 1
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self.loop.create_task(self._open(key, sock, self._tls.get(key)))
        self._opening.add(task, sock)
        task.add_done_callback(self._finish_opening)
        return True

    def _pause_accepting(self, key: str, listener: socket.socket, pause_s: float, *, batch: int = 0) -> None:
        """Leave the socket to other processes for a while; then accept up to ``batch`` connections at once."""
        self.loop.remove_reader(listener.fileno())
        self.loop.call_later(pause_s, self._resume_accepting, key, listener, batch)

    def _resume_accepting(self, key: str, listener: socket.socket, batch: int) -> None:
        if self._listeners.get(key) is not listener:
            return
        self.loop.add_reader(listener.fileno(), self._accept, key, listener)
        for _ in range(batch):
            if not self._accept_one(key, listener):
                return

    async def _open(self, key: str, sock: socket.socket, tls: ServerTls | None) -> None:
        options: dict[str, Any] = {}
        if tls is not None:
            context = tls.get_context()
            options = {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": LINGER_S}
        try:
            _, connection = await self.loop.connect_accepted_socket(
                lambda: Connection(self, key, sock, tls), sock, **options
            )
        except ssl.SSLCertVerificationError as error:
            _log.info("The certificate of a client is refused: %s.", error.verify_message)
            sock.close()
            return
        except OSError as error:  # its client has gone, or speaks no TLS
            _log.debug("A connection was lost before it was served: %s.", error)
            sock.close()
            return
        if self.leaving or key not in self._listeners:
            connection.close_soon()

    def _finish_opening(self, _task: asyncio.Task[None]) -> None:
        self._fewer.set()

    # -- shutdown

    def leave(self) -> None:
        """Keep accepting, but close each connection with its next response, so that clients move elsewhere."""
        self.leaving = True
        for connection in self._list_connections():
            connection.close_soon()

    async def drain(self, within_s: float) -> bool:
        """Stop accepting, and close each connection with its next response; return whether all did in time."""
        for key in list(self._listeners):
            self.ignore(key)
        try:
            async with asyncio.timeout(within_s):
                while len(self):
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._timer.cancel()
        for key in list(self._listeners):
            self._stop_listening(key)
        for connection in self._list_connections():
            connection.transport.abort()

    def count_lost(self) -> None:
        self._lost += 1
        self.busy = max(0, self.busy - 1)
        self._fewer.set()

    # -- sharing connections with the other instances

    def balance(self, fair_share: int | None) -> None:
        """Close busy connections beyond the share with their next response, so that their clients reconnect.

        So an added instance gets work at once, and not when connections are ``age_s`` old. A small surplus stays, and
        so does any until it has lasted a second: the share is computed from numbers up to a second old.
        """
        self.fair_share = fair_share
        if fair_share is None or self._short_lived:
            self._unbalanced_since = None
            return
        busy = [connection for connection in self._list_connections() if connection.is_busy(self.now)]
        if (len(busy) - fair_share) * 8 <= fair_share:
            self._unbalanced_since = None
        elif self._unbalanced_since is None:
            self._unbalanced_since = self.now
        elif self.now - self._unbalanced_since >= BALANCE_INTERVAL_S:
            self._unbalanced_since = None
            for connection in busy[fair_share:]:
                connection.close_soon()

    # -- time

    def _list_connections(self) -> list[Connection]:
        return [connection for connection in self.state.connections if isinstance(connection, Connection)]

    def _list_silent(self) -> list[SilentConnection]:
        return [*self._opening.list_silent(), *list_silent(self._list_connections())]

    def sweep(self) -> None:
        """Expire connections that are slow, idle or closing, twice a second."""
        self._timer = self.loop.call_later(_SWEEP_S, self.sweep)
        self.now = now = time.monotonic()
        date = formatdate(time.time(), usegmt=True).encode()
        self.state.default_headers = [(b"date", date), (b"server", b"scanflow")]
        self._head = b"date: %b\r\nserver: scanflow\r\n" % date
        connections = self._list_connections()
        self._short_lived, self._lost = self._lost > len(connections) + _SHORT_LIVED, 0
        for connection in connections:
            connection.expire(now, self.drain_idle_s if connection.closing else IDLE_S)
        self.busy = len(self._opening) + sum(connection.is_busy(now) for connection in connections)


def _remove_upgrade(data: bytes) -> bytes:
    """Return a request without its Upgrade header (h2c), after which the parser would read no body."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head, count=1) + end + rest


def _make_unreadable_problem(error: BaseException | None, words: str) -> ProblemError:
    if is_head_too_large(error):
        return ProblemError(431, TOO_LONG)
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return ProblemError(501, "There is no such HTTP method.")
    return ProblemError(400, f"The request is not valid HTTP/1.1: {str(error or words).rstrip('.')}.")
