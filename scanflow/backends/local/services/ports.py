"""Which port a service listens on: the one that was asked for, or the next that is free."""

from __future__ import annotations

import socket
from collections.abc import Collection

from scanflow.backends.local.services.layout import ServicesHome
from scanflow.backends.local.services.stored import read_stored
from scanflow.errors import InvalidError, UnavailableError

__all__ = ["FIRST_PORT", "choose_port", "taken_ports"]

FIRST_PORT = 46700
_TRIED = 1000


def choose_port(asked: int | None, *, host: str, taken: Collection[int], what: str) -> int:
    """Return a port that nobody listens on. Hold the home's lock until it is written down.

    Raises:
        InvalidError: the one that was asked for is in use.
        UnavailableError: there is no free one.
    """
    if asked is not None:
        if asked in taken or not _is_free(host, asked):
            whose = "another service of this home has it" if asked in taken else "something listens there already"
            raise InvalidError(f"The port {asked} for {what} is in use: {whose}. Write another, or none.")
        return asked
    for port in range(FIRST_PORT, FIRST_PORT + _TRIED):
        if port not in taken and _is_free(host, port):
            return port
    raise UnavailableError(f"No port from {FIRST_PORT} to {FIRST_PORT + _TRIED - 1} is free. Name one.")


def taken_ports(home: ServicesHome, but: str) -> set[int]:
    """Return the ports of all services of this home but one, also of those that are not running."""
    found: set[int] = set()
    for name in home.names():
        stored = None if name == but else read_stored(home.service(name))
        if stored is not None:
            found |= {stored.port, *([stored.grpc_port] if stored.grpc_port else [])}
    return found


def _is_free(host: str, port: int) -> bool:
    # Without SO_REUSEPORT: with it, a socket of this user's would not be noticed.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, port))
        except OSError:
            return False
    return True
