"""Files shared by processes: atomic replacement, and locks that the kernel releases when their holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanflow.errors import AlreadyRunningError, UnavailableError
from scanflow.files.disk import build_disk_error
from scanflow.files.private import create_private_folder, open_private, replace_by_draft

PATIENCE_S = 10.0
_POLL_S = 0.01
_DRIVER_PATIENCE_S = 1.0  # ``is_locked`` holds the lock for an instant


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file inside the context.

    Raises:
        UnavailableError: another process holds it for too long, or the disk cannot be written.
    """
    try:
        create_private_folder(path.parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise build_disk_error(error, path) from error
    try:
        if not take_lock(file, PATIENCE_S):
            raise UnavailableError(f"{str(path)!r} is locked by another process. Try again.")
        yield
    finally:
        os.close(file)


def write_atomically(path: Path, content: bytes, *, safely: bool = False) -> None:
    """Replace a file atomically: readers see the old or the new content. ``safely``: also after a power cut.

    Raises:
        UnavailableError: the disk cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with replace_by_draft(path, unfinished), open_private(unfinished, "wb") as file:
            file.write(content)
            if safely:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise build_disk_error(error, path) from error


@contextmanager
def hold_driver_lock(path: Path, run: str) -> Iterator[None]:
    """Hold a run's driver lock inside the context.

    Raises:
        AlreadyRunningError: another process holds it.
    """
    with open_private(path, "a+", encoding="ascii") as file:
        if not take_lock(file.fileno(), _DRIVER_PATIENCE_S):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise AlreadyRunningError(
                f"The run {run!r} is already driven by the process {holder}. Watch it: scanflow show {run}"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not try_lock(file.fileno(), fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def take_lock(file: int, patience_s: float) -> bool:
    """Take the exclusive lock of an open file, and return whether it became free within ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while not try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
