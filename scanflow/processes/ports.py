"""Selection of listening ports: the requested one, or the next that is free."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from scanflow.errors import InvalidError, UnavailableError
from scanflow.processes.shared_files import hold_lock, write_atomically

FIRST_PORT = 46700
_MAX_TRIES = 1000
_PAST_LAST = 65536
_RESERVATION_S = 30.0
_HOME_RESERVATION_S = 300.0  # a home's server may take that long to listen, on a machine that is busy


def choose_port(requested: int | None, *, host: str, taken: Collection[int], what: str) -> int:
    """Return a free port. The caller holds the home's lock until the port is recorded.

    It is reserved for some seconds against other homes on this machine.

    Raises:
        InvalidError: the requested port is in use.
        UnavailableError: no port is free.
    """
    if requested is not None:
        if requested in taken or not is_free(host, requested):
            holder = "another service of this home uses it" if requested in taken else "another process listens on it"
            raise InvalidError(
                f"The port {requested} for {what} is in use: {holder}. Choose another port, or leave it out."
            )
        return requested
    port = reserve_port(FIRST_PORT, tried=_MAX_TRIES, host=host, taken=taken)
    if port is not None:
        return port
    raise UnavailableError(
        f"No port from {FIRST_PORT} to {FIRST_PORT + _MAX_TRIES - 1} is free. Choose a port explicitly."
    )


def reserve_port(
    first: int, *, tried: int, host: str, taken: Collection[int] = (), whose: Path | None = None
) -> int | None:
    """Reserve the first of ``tried`` ports that is free and not reserved by another home; None: there is none.

    The reservation is the home's, ``whose``, which may choose the port again, and lasts some minutes; None: it is
    nobody's, and lasts some seconds.
    """
    with hold_lock(_get_notes_file().with_suffix(".lock")):
        notes = _read_notes()
        others = {int(port) for port, (_, home) in notes.items() if whose is None or home != str(whose)}
        for port in range(first, min(first + tried, _PAST_LAST)):
            if port not in taken and port not in others and is_free(host, port):
                own = (time.time(), "" if whose is None else str(whose))
                write_atomically(_get_notes_file(), json.dumps({**notes, str(port): own}).encode())
                return port
    return None


def forget_ports(whose: Path) -> None:
    """Release a home's port reservations."""
    with hold_lock(_get_notes_file().with_suffix(".lock")):
        notes = _read_notes()
        remaining = {port: note for port, note in notes.items() if note[1] != str(whose)}
        if remaining != notes:
            write_atomically(_get_notes_file(), json.dumps(remaining).encode())


def _get_notes_file() -> Path:
    """Return the file in which this user's homes reserve ports until they listen on them."""
    return Path(tempfile.gettempdir()) / f"scanflow-{os.getuid()}-ports.json"


def _read_notes() -> dict[str, tuple[float, str]]:
    try:
        notes = {
            str(int(port)): (float(at), str(home))
            for port, (at, home) in json.loads(_get_notes_file().read_bytes()).items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    now = time.time()
    return {
        port: (at, home)
        for port, (at, home) in notes.items()
        if 0 <= now - at < (_HOME_RESERVATION_S if home else _RESERVATION_S)
    }


def is_free(host: str, port: int) -> bool:
    """Return whether nothing listens on the port; one that was closed a moment ago counts as free."""
    # Without SO_REUSEPORT: with it, this user's own sockets would not be noticed.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # two sockets may be bound to the port, only one may listen
        except OSError:
            return False
    return True
