"""Files that several processes read and write: replaced as a whole, under locks that the kernel releases."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanflow.disk import disk_error
from scanflow.errors import UnavailableError
from scanflow.private import open_private, private_folder
from scanflow.processes.locks import try_lock

PATIENCE_S = 10.0
_POLL_S = 0.01


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file while inside.

    Raises:
        UnavailableError: another process holds it for too long, or the disk cannot be written.
    """
    give_up = time.monotonic() + PATIENCE_S
    try:
        private_folder(path.parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_error(error, path) from error
    try:
        while not try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise UnavailableError(f"{str(path)!r} is locked by another process. Try again.")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(file)


def write_atomically(path: Path, content: bytes, *, safely: bool = False) -> None:
    """Replace a file: readers see the old or the new one. ``safely``: also after a power cut.

    Raises:
        UnavailableError: the disk cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open_private(unfinished, "wb") as file:
            file.write(content)
            if safely:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise disk_error(error, path) from error
