"""One driver a run: a lock that the kernel drops when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanflow.errors import AlreadyRunningError
from scanflow.private import open_private

PATIENCE_S = 1.0  # somebody who only looks (``is_locked``) holds the lock for an instant


@contextmanager
def only_driver(path: Path, run: str) -> Iterator[None]:
    """Hold the lock while inside.

    Raises:
        AlreadyRunningError: another process has it.
    """
    with open_private(path, "a+", encoding="ascii") as file:
        give_up = time.monotonic() + PATIENCE_S
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise AlreadyRunningError(
                    f"The run {run!r} is driven by the process {holder} already. Watch it: scanflow show {run}"
                )
            time.sleep(0.02)
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


def try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
