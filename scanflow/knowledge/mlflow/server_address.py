"""The address of the server of a tracker on this machine, in a file that its process keeps locked.

The kernel gives the lock up when the process ends, however it does; so what is locked is served.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from scanflow.files.private import create_private_folder
from scanflow.knowledge.step_environment import TrackerPlace
from scanflow.processes.files import is_locked, try_lock


def hold_server_address(place: TrackerPlace, url: str) -> bool:
    """Publish that the tracker is served at ``url`` for as long as this process lives, even after an exec; return False
    if another process serves it."""
    path = _get_file(place)
    create_private_folder(path.parent)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not try_lock(file, fcntl.LOCK_EX):
        os.close(file)
        return False
    os.truncate(file, 0)
    os.write(file, url.encode())
    os.set_inheritable(file, True)
    return True


def read_server_url(place: TrackerPlace) -> str | None:
    """Return the address of the tracker's server, which may still be starting; None: there is none."""
    path = _get_file(place)
    return path.read_text(encoding="ascii") or None if is_locked(path) else None


def _get_file(place: TrackerPlace) -> Path:
    return place.notes.with_name(f"served-{place.digest}")
