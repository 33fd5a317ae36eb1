"""Moves the addresses of artifacts along with a home: MLflow's database holds the absolute address of each file.

Without MLflow, whose import takes seconds; the columns are those of its schema, and missing ones are passed over.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from scanflow.errors import UnavailableError

_ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
)
TIMEOUT_S = 30.0


def move_artifact_addresses(path: Path, root: Path) -> bool:
    """Make the addresses in a home's own tracker those of this home, and return whether they were another's.

    A tracker elsewhere (``SCANFLOW_TRACKER_URI``) is left as it is: it did not move.

    Args:
        path: The tracker's SQLite file.
        root: The folder of artifacts, which lies beside it if the tracker is the home's own.

    Raises:
        UnavailableError: the database cannot be written.
    """
    if path.parent != root.parent or not path.is_file():
        return False
    try:
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=TIMEOUT_S)) as connection:
                if not _list_other_roots(connection, root):
                    return False
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            return False  # it is damaged, which whoever uses it says
        with closing(sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for other in _list_other_roots(connection, root):
                _move(connection, other, root.as_uri())
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise UnavailableError(
            f"The tracker's database {str(path)!r}, which was made in another home, cannot be changed for this one: "
            f"{error}. Try again."
        ) from error
    return True


def _list_other_roots(connection: sqlite3.Connection, root: Path) -> list[str]:
    """Return the addresses of the folders where the home's artifacts were.

    They are known by the experiments that Scanflow and MLflow itself made: ``<folder>/<name>``, and ``<folder>/0``.
    """
    try:
        rows = connection.execute(
            "SELECT artifact_location, experiment_id, name FROM experiments e WHERE experiment_id = 0 OR EXISTS"
            " (SELECT 1 FROM experiment_tags t WHERE t.experiment_id = e.experiment_id AND t.key = 'scanflow.app')"
        ).fetchall()
    except sqlite3.OperationalError as error:
        if "no such" in str(error):  # it has no tables yet, or others
            return []
        raise
    roots = set()
    for location, identity, name in rows:
        parent, _, last = str(location).rstrip("/").rpartition("/")
        is_own = last in {str(identity), str(name)} and parent.startswith("file://")
        if is_own and parent.endswith(f"/{root.parent.name}/{root.name}"):
            roots.add(parent)
    return [other for other in sorted(roots) if other != root.as_uri() and not _is_same(other, root)]


def _is_same(address: str, root: Path) -> bool:
    """Return whether an address and a path lead to one folder, as through a symbolic link."""
    folder = Path(url2pathname(urlsplit(address).path))
    return folder.exists() and root.exists() and folder.samefile(root)


def _move(connection: sqlite3.Connection, other: str, root: str) -> None:
    for table, column in _ADDRESSES:
        if column in {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}:
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?)"  # noqa: S608  our own list
                f" WHERE substr({column}, 1, ?) = ?",
                (root, len(other) + 1, len(other) + 1, f"{other}/"),
            )
