"""Looks at the database before the server uses it: whether it is whole, and the one that the home had."""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.exc import DatabaseError, OperationalError

from scanflow.errors import UnavailableError, UsageError
from scanflow.processes.shared_files import write_atomically
from scanflow_server.store.base import Store, translate_errors
from scanflow_server.store.tables import metadata, tokens

__all__ = ["check_content", "check_pages", "record_store"]

MARKER = "store.json"
"""The file in the server's folder that names the database which this home has used."""

_RESTORE = "Restore a backup: scanflow restore FILE --to HOME"


def check_pages(store: Store) -> None:
    """Look at all pages of a SQLite file, before anything is written to it.

    Raises:
        UnavailableError: it is damaged, or no database.
    """
    if store.file is None or not Path(store.file).exists() or not Path(store.file).stat().st_size:
        return
    try:
        with store.engine.connect() as connection:
            problem = str(connection.execute(text("PRAGMA quick_check(1)")).scalar_one())
    except OperationalError:  # it is locked, or cannot be read
        with translate_errors(store.engine):
            raise
    except DatabaseError as error:
        problem = str(error.orig)
    if problem != "ok":
        raise UnavailableError(f"The database {store.address!r} is damaged: {problem}. {_RESTORE}")


def check_content(store: Store, folder: Path, *, is_migrated: bool) -> None:
    """Look at the tables, before the migration and after it.

    Args:
        store: The database.
        folder: The server's folder.
        is_migrated: Whether all tables must be there.

    Raises:
        UsageError: tables are missing, or it is empty, and this home had another.
    """
    with store.read() as connection:
        names = set(inspect(connection).get_table_names())
        if not names & metadata.tables.keys() or _is_empty(connection, names):
            _check_marker(store, folder)
    missing = metadata.tables.keys() - names
    if is_migrated and missing:
        raise UsageError(f"The database {store.address!r} has lost its tables {', '.join(sorted(missing))}. {_RESTORE}")


def record_store(store: Store, folder: Path) -> None:
    """Record that the home has used a database, so that it is missed when it is emptied."""
    document = json.dumps({"database": _name_store(store, folder)})
    if _read_marker(folder) != document:
        write_atomically(folder / MARKER, document.encode())


def _is_empty(connection: Connection, names: set[str]) -> bool:
    """Return whether there is no token, not even the home's own, which each start of a server puts there."""
    return tokens.name in names and not connection.execute(select(func.count()).select_from(tokens)).scalar_one()


def _check_marker(store: Store, folder: Path) -> None:
    if _read_marker(folder) == json.dumps({"database": _name_store(store, folder)}):
        raise UsageError(
            f"The database {store.address!r} is empty, and this home has used it: its tokens, labels, intents and "
            f"events are gone. {_RESTORE}. To begin anew without them, delete {str(folder / MARKER)!r}"
        )


def _name_store(store: Store, folder: Path) -> str:
    """Return what identifies a database; one in the home moves with it."""
    file = store.file
    return Path(file).name if file is not None and Path(file).parent == folder else store.address


def _read_marker(folder: Path) -> str | None:
    try:
        return (folder / MARKER).read_text(encoding="utf-8")
    except OSError:
        return None
