"""The sockets of a service: bound once, inherited by all of its processes, closed when the service ends.

Instances accept from the one for HTTP, so that connections wait in one queue whoever comes and goes. The supervisor
looks at the queue to wake a sleeping service, and answers 503 where nobody else will. For gRPC each instance binds a
socket of its own to the same port: the service's own keeps it from others while no instance is there.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from scanflow.errors import UnavailableError

LISTEN_FD = 50  # the descriptor under which all processes of a service have the listening socket ...
GRPC_FD = 51  # ... and the one that reserves its port for gRPC
_BACKLOG = 4096
_RETRY_AFTER_S = 5
_LINGER_S = 2.0
_MOST_AT_ONCE = 64
_MOST_OPEN = 256


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, non-blocking."""
    return _bound_socket(host, port, listens=True)


def reserving_socket(host: str, port: int) -> socket.socket:
    """Return a socket that does not listen there, and leaves that to sockets with ``SO_REUSEPORT`` alone."""
    made = _bound_socket(host, port, listens=False)
    # Needed to bind what was closed a moment ago; kept, it would let anybody listen.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return made


def _bound_socket(host: str, port: int, *, listens: bool) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, not listens)
        made.bind((host, port))
        if listens:
            made.listen(_BACKLOG)  # of two sockets that are bound to a port, only one may
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise UnavailableError(
            f"The port {port} of {host} cannot be listened on: {error.strerror}. Who has it: ss -ltnp 'sport = {port}'"
        ) from error
    return made


class SharedSocket:
    """A socket of one service under its number, as its supervisor has it."""

    def __init__(self, number: int, make: Callable[[str, int], socket.socket]) -> None:
        self.number, self._make = number, make
        self.sock: socket.socket | None = None
        try:
            self.sock = socket.socket(fileno=number)
        except OSError:
            return
        self.sock.setblocking(False)

    def open(self, host: str, port: int) -> bool:
        """Bind it there; say whether the socket is a new one."""
        if self.sock is not None and self.sock.getsockname()[1] == port:
            return False
        self.close()
        with self._make(host, port) as made:
            os.dup2(made.fileno(), self.number, inheritable=False)
        self.sock = socket.socket(fileno=self.number)
        return True

    @property
    def waiting(self) -> bool:
        """Whether a client waits to be accepted."""
        return self.sock is not None and bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        """Let go of the socket; it stays bound in the processes that have it."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None


@dataclass(slots=True)
class _Refused:
    sock: socket.socket
    until: float
    answered: bool = False


class Refuser:
    """Accepts in place of the instances, and answers 503, while none of them will."""

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
        self._open: list[_Refused] = []

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def accept(self, listener: socket.socket, now: float) -> None:
        for _ in range(_MOST_AT_ONCE):
            if len(self._open) >= _MOST_OPEN:
                return
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            self._open.append(_Refused(sock, now + _LINGER_S))

    def serve(self, now: float) -> None:
        """Answer what was asked, and close what has been read to its end: unread bytes would reset the answer."""
        kept = []
        for one in self._open:
            if self._serve(one) and now < one.until:
                kept.append(one)
            else:
                one.sock.close()
        self._open = kept

    def _serve(self, one: _Refused) -> bool:
        try:
            while came := one.sock.recv(65536):
                if not one.answered and came:
                    one.answered = True
                    one.sock.sendall(self._response)
                    one.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        for one in self._open:
            one.sock.close()
        self._open = []
