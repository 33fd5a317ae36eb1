"""Creates the SQLite database of a tracker atomically, by one process at a time.

As a program, ``python -m scanflow.knowledge.mlflow.database FILE ARTIFACTS``, it creates one and ends.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from scanflow.errors import UnavailableError, UsageError
from scanflow.files.private import create_private_file, create_private_folder, open_private, replace_by_draft

_MAKING_TAKES_S = 120.0
"""Creating a database takes MLflow seconds; a process that holds the lock for longer than this is stuck."""


def check_database(path: Path) -> None:
    """Raise if the file exists and is not a database; MLflow would retry to open it for minutes."""
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"The tracker's database {str(path)!r} cannot be read: {error}. Try again.") from error
    except sqlite3.DatabaseError as error:
        raise UsageError(
            f"The file {str(path)!r} is not a tracker's database: {error}. Move it away (a new one is then created), "
            "or restore it."
        ) from error


def make_database(path: Path, artifact_root: Path) -> None:
    """Create the database if it is missing. Safe in several processes at once.

    MLflow makes its tables in some fifty steps, each seen by other processes, and two that do it at once fail. So it is
    done beside, under a lock, and put in place when it is whole.
    """
    if path.exists():
        return
    try:
        create_private_folder(path.parent)
        with _hold_lock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                _make(path, artifact_root)
    except OSError as error:
        raise UnavailableError(
            f"The tracker's database {str(path)!r} could not be created: {error}. Free space, or choose another home."
        ) from error


def _make(path: Path, artifact_root: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    prefix = f".{path.name}.new-"
    for left_over in path.parent.glob(f"{prefix}*"):  # we hold the lock, so whoever made it was killed
        left_over.unlink()
    draft = path.with_name(f"{prefix}{os.getpid()}")
    # The client's own way would put the Default experiment's artifacts into ./mlruns of whoever came first.
    with replace_by_draft(path, draft):
        create_private_file(draft)
        store = SqlAlchemyStore(f"sqlite:///{draft}", artifact_root.as_uri())
        store.engine.dispose()


@contextmanager
def _hold_lock(lock: Path) -> Generator[None, None, None]:
    """Hold the lock file; the kernel releases it when the process dies."""
    deadline = time.monotonic() + _MAKING_TAKES_S
    with open_private(lock, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"Another process has been creating the tracker's database for {_MAKING_TAKES_S:.0f} s, and "
                        f"holds {str(lock)!r}. Stop it, then try again."
                    ) from None
                time.sleep(0.05)
        yield


if __name__ == "__main__":
    make_database(Path(sys.argv[1]), Path(sys.argv[2]))
