"""The sockets of a service: bound once, inherited by all its processes, closed when the service ends.

Instances accept from the HTTP socket, so that connections wait in one queue while instances come and go. The supervisor
watches the queue to wake a service that is scaled to zero, and answers 503 if no instance does. For gRPC each instance
binds its own socket to the same port, which the service's own socket reserves while there is no instance.
"""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from scanflow.errors import UnavailableError
from scanflow.http.tls import ServerTls
from scanflow.http.tls_files import TlsFiles

HTTP_FD = 50  # the descriptor of the listening socket in all processes of a service ...
GRPC_FD = 51  # ... and of the socket that reserves its port for gRPC
_BACKLOG = 4096
_RETRY_AFTER_S = 5
_LINGER_S = 2.0
_MAX_ACCEPTS = 64
_MAX_OPEN = 256


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Return a non-blocking listening socket."""
    return _bind_socket(host, port, listens=True)


def open_reserving_socket(host: str, port: int) -> socket.socket:
    """Return a socket that reserves the port for listening sockets with ``SO_REUSEPORT``."""
    sock = _bind_socket(host, port, listens=False)
    # Needed to bind a port that was closed a moment ago; if it stayed set, any socket could listen.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return sock


def _bind_socket(host: str, port: int, *, listens: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, not listens)
        sock.bind((host, port))
        if listens:
            sock.listen(_BACKLOG)  # two sockets may be bound to the port, only one may listen
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise UnavailableError(
            f"The port {port} of {host} cannot be bound: {error.strerror}. See which process uses it: ss -ltnp 'sport "
            f"= {port}'"
        ) from error
    return sock


class SharedSocket:
    """A socket of one service in its supervisor, under a fixed descriptor."""

    def __init__(self, number: int, make: Callable[[str, int], socket.socket]) -> None:
        self.number, self._make = number, make
        self.sock: socket.socket | None = None
        try:
            self.sock = socket.socket(fileno=number)
        except OSError:
            return
        self.sock.setblocking(False)

    def open(self, host: str, port: int) -> bool:
        """Bind the socket; return whether it is a new one."""
        if self.sock is not None and self.sock.getsockname()[1] == port:
            return False
        self.close()
        sock = self._make(host, port)
        if sock.fileno() != self.number:  # which may be the next free one; dup3 refuses to copy one to itself
            with sock:
                os.dup2(sock.fileno(), self.number, inheritable=False)
            sock = socket.socket(fileno=self.number)
        self.sock = sock
        return True

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits to be accepted."""
        return self.sock is not None and bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        """Close the socket; it stays bound in processes that inherited it."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    deadline: float
    answered: bool = False


class UnavailableResponder:
    """Accepts connections and answers 503 while no instance does."""

    def __init__(self, service: str) -> None:
        body = json.dumps(
            {
                "type": "about:blank",
                "title": "Service Unavailable",
                "status": 503,
                "detail": f"No instance of {service!r} is ready. See: scanflow services {service}",
            }
        ).encode()
        self._response = (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
            b"Retry-After: %d\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (_RETRY_AFTER_S, len(body), body)
        )
        self._open: list[_Connection] = []
        self._tls: ServerTls | None = None

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def accept(self, listener: socket.socket, now: float, tls: TlsFiles | None = None) -> None:
        """Accept what waits. ``tls``: what the service serves TLS with."""
        context = None if tls is None else self._get_context(tls)
        for _ in range(_MAX_ACCEPTS):
            if len(self._open) >= _MAX_OPEN:
                return
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            if context is not None:
                sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self._open.append(_Connection(sock, now + _LINGER_S))

    def serve(self, now: float) -> None:
        """Answer requests, and close connections that were read to their end: unread bytes would reset the answer."""
        remaining = []
        for connection in self._open:
            if self._serve(connection) and now < connection.deadline:
                remaining.append(connection)
            else:
                connection.sock.close()
        self._open = remaining

    def _serve(self, connection: _Connection) -> bool:
        try:
            while data := connection.sock.recv(65536):
                if not connection.answered and data:
                    connection.answered = True
                    connection.sock.sendall(self._response)
                    connection.sock.shutdown(socket.SHUT_WR)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except OSError:
            pass
        return False

    def _get_context(self, tls: TlsFiles) -> ssl.SSLContext:
        if self._tls is None or self._tls.files != tls:
            self._tls = ServerTls(tls)  # whoever it is gets the same answer
        return self._tls.get_context()

    def close(self) -> None:
        for connection in self._open:
            connection.sock.close()
        self._open = []
