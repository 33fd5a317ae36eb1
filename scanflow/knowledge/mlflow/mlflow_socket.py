"""The socket of MLflow's server of a tracker on this machine, which is served for as long as a file stays locked.

The kernel gives the lock up when the process ends, however it does. The socket lies in the home, of mode 0600: only the
home's owner reaches MLflow by it, and all others through Scanflow's server, which asks for a token.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from scanflow.errors import AlreadyRunningError
from scanflow.files.private import create_private_folder
from scanflow.knowledge.step_environment import TrackerPlace
from scanflow.processes.shared_files import is_locked, try_lock
from scanflow.processes.unix_address import open_unix_address


def listen_as_server(place: TrackerPlace) -> socket.socket:
    """Return a listening socket for the tracker's server, which is this process for as long as it lives.

    Raises:
        AlreadyRunningError: another process serves the tracker.
    """
    path = get_server_socket(place)
    create_private_folder(path.parent)
    lock = os.open(_get_lock(place), os.O_RDWR | os.O_CREAT, 0o600)
    if not try_lock(lock, fcntl.LOCK_EX):
        os.close(lock)
        raise AlreadyRunningError(f"Another process serves the tracker at {str(path)!r} already.")
    path.unlink(missing_ok=True)  # of a server that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # nobody else may connect, not even before a chmod
    try:
        with open_unix_address(path) as address:
            listener.bind(address)
    finally:
        os.umask(mask)
    listener.listen(256)
    return listener


def find_server_socket(place: TrackerPlace) -> Path | None:
    """Return the socket of the tracker's server, which may still be starting; None: there is none."""
    return get_server_socket(place) if is_locked(_get_lock(place)) else None


def is_listening(path: Path) -> bool:
    """Return whether a server listens on a socket.

    Raises:
        OSError: that cannot be found out.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, open_unix_address(path) as address:
            peer.connect(address)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    return True


def get_server_socket(place: TrackerPlace) -> Path:
    return place.notes.with_name(f"mlflow-{place.digest}.sock")


def _get_lock(place: TrackerPlace) -> Path:
    return place.notes.with_name(f"served-{place.digest}")
