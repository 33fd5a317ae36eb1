"""Which port a process listens on: the one that was asked for, or the next that is free."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from scanflow.errors import InvalidError, UnavailableError
from scanflow.processes.files import locked, write_atomically

FIRST_PORT = 46700
_TRIED = 1000
_PAST_LAST = 65536
_NOTED_S = 30.0


def choose_port(asked: int | None, *, host: str, taken: Collection[int], what: str) -> int:
    """Return a port that nobody listens on. Hold the home's lock until it is written down.

    Other homes on this machine do not choose it meanwhile either.

    Raises:
        InvalidError: the one that was asked for is in use.
        UnavailableError: there is no free one.
    """
    if asked is not None:
        if asked in taken or not is_free(host, asked):
            whose = "another service of this home has it" if asked in taken else "something listens there already"
            raise InvalidError(f"The port {asked} for {what} is in use: {whose}. Write another, or none.")
        return asked
    found = next_port(FIRST_PORT, tried=_TRIED, host=host, taken=taken)
    if found is not None:
        return found
    raise UnavailableError(f"No port from {FIRST_PORT} to {FIRST_PORT + _TRIED - 1} is free. Name one.")


def next_port(
    first: int, *, tried: int, host: str, taken: Collection[int] = (), whose: Path | None = None
) -> int | None:
    """Return the first of ``tried`` ports that nobody listens on, and no other home is about to; None: there is none.

    It is noted for some seconds as the home's, ``whose``, which may choose it again; None: as nobody's.
    """
    with locked(_notes().with_suffix(".lock")):
        noted = _noted()
        others = {int(port) for port, (_, home) in noted.items() if whose is None or home != str(whose)}
        for port in range(first, min(first + tried, _PAST_LAST)):
            if port not in taken and port not in others and is_free(host, port):
                own = (time.time(), "" if whose is None else str(whose))
                write_atomically(_notes(), json.dumps({**noted, str(port): own}).encode())
                return port
    return None


def forget_ports(whose: Path) -> None:
    """Let others choose at once what was noted for a home."""
    with locked(_notes().with_suffix(".lock")):
        noted = _noted()
        kept = {port: note for port, note in noted.items() if note[1] != str(whose)}
        if kept != noted:
            write_atomically(_notes(), json.dumps(kept).encode())


def _notes() -> Path:
    """Where this user's homes note the ports they are about to listen on: it takes a moment until they do."""
    return Path(tempfile.gettempdir()) / f"scanflow-{os.getuid()}-ports.json"


def _noted() -> dict[str, tuple[float, str]]:
    try:
        found = {
            str(int(port)): (float(at), str(home)) for port, (at, home) in json.loads(_notes().read_bytes()).items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return {port: (at, home) for port, (at, home) in found.items() if 0 <= time.time() - at < _NOTED_S}


def is_free(host: str, port: int) -> bool:
    """Say whether nobody listens there; what was closed a moment ago counts as free."""
    # Without SO_REUSEPORT: with it, a socket of this user's would not be noticed.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, port))
            made.listen(1)  # as who gets it will: of two sockets that are bound to it, one may
        except OSError:
            return False
    return True
