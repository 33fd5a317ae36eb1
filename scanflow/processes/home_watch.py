"""Ends a process of a home that vanished: it was deleted, or moved, and whoever uses it there starts another."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

__all__ = ["end_with_home", "is_same_file"]

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""The pause between two looks, which take microseconds."""


def is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether what is open is still at its path. True, if that cannot be found out."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a network file system that does not answer
        return True


def end_with_home(folder: Path) -> None:
    """Watch a folder of the home, in a thread, and ask this process to end (SIGTERM) once it is not there any more."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    clock = threading.Event()

    def watch() -> None:
        while is_same_file(folder, descriptor):
            clock.wait(INTERVAL_S)
        _log.error("%s is gone: the home was moved or deleted. This process ends.", folder)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="home-watch", daemon=True).start()
