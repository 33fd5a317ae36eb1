"""The journal of a home: its runs and tasks and their states, in one SQLite file.

It records decisions; the exit of an attempt is in its own folder (see ``shim.py``). Every change is one transaction in
write-ahead mode: a process may be killed at any instant, and several may write.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scanflow.backends.run_records import RunRecord, RunState, TaskRecord
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError, UsageError, did_you_mean
from scanflow.files.disk import build_disk_error
from scanflow.files.home_paths import resolve_home_path, shorten_home_path
from scanflow.files.private import create_private_file, create_private_folder
from scanflow.names import RunName, StepName, make_run_name
from scanflow.text.failures import Failure

BUSY_TIMEOUT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    app TEXT NOT NULL,
    team TEXT NOT NULL,
    workflow TEXT NOT NULL,
    state TEXT NOT NULL,
    created REAL NOT NULL,
    seconds REAL,
    folder TEXT NOT NULL,
    source TEXT,
    definition TEXT NOT NULL,
    error TEXT,
    stop_requested INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS tasks (
    run INTEGER NOT NULL REFERENCES runs (id),
    task TEXT NOT NULL,
    step TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    began REAL,
    seconds REAL,
    exit_code INTEGER,
    cpu_s REAL,
    max_rss_bytes INTEGER,
    origin TEXT,
    failure TEXT,
    cache_note TEXT,
    devices TEXT,
    waits_for TEXT,
    change INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, task)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cache (
    key TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    folder TEXT NOT NULL,
    outputs TEXT NOT NULL,
    step TEXT NOT NULL,
    parts TEXT NOT NULL,
    created REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS created_of ON runs (created);
DROP INDEX IF EXISTS runs_of;
CREATE INDEX runs_of ON runs (app, team, workflow, created);
CREATE INDEX IF NOT EXISTS changes_of ON tasks (run, change);
CREATE INDEX IF NOT EXISTS cached_of ON cache (step, created);
PRAGMA user_version = 7;
"""
VERSION = 7
"""The version of its tables. A file of a newer one is refused."""

_CACHE_VERSION = 4
"""The version since which the cache has its keys: older keys were of another scheme."""

_NEW_COLUMNS = {"change": "INTEGER NOT NULL DEFAULT 0", "cache_note": "TEXT", "devices": "TEXT", "waits_for": "TEXT"}
"""Columns of tasks that earlier versions do not have."""

_MAX_COMPARED = 100
"""Cached outputs of a step that a new key is compared with."""

_TASK = tuple(name for name in TaskRecord.model_fields if name != "place")  # steps are on the only machine there is
_WRITE_TASK = f"""
INSERT OR REPLACE INTO tasks (run, {", ".join(_TASK)}, change) VALUES (
    :run, {", ".join(f":{name}" for name in _TASK)}, (SELECT coalesce(max(change), 0) + 1 FROM tasks WHERE run = :run)
)
"""  # noqa: S608 - our own columns' names


_COLUMNS = {
    "runs": {"id", "name", "app", "team", "workflow", "state", "created", "seconds", "folder", "source", "definition"},
    "tasks": {"run", "change", *_TASK},
    "cache": {"key", "run", "folder", "outputs", "step", "parts", "created"},
}
"""Columns without which nothing works."""

_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_NEWEST_FIRST = "ORDER BY created DESC, id DESC"
MAX_INTEGER = 2**63 - 1
"""Of SQLite."""


class DamagedJournalError(UnavailableError):
    """The journal's file is no database, or a damaged one, or its tables are missing."""


class JournalRun(NamedTuple):
    id: int
    record: RunRecord
    definition: str


class CachedOutputs(NamedTuple):
    run: RunName
    folder: Path
    digest: str
    """The digest of what the folder held when the step had ended."""


class Journal:
    """A connection to the journal. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        create_private_folder(path.parent)
        self._path = path
        with _translate_errors(path):
            self._db = sqlite3.connect(create_private_file(path), timeout=BUSY_TIMEOUT_S, isolation_level=None)
            try:
                self._prepare()
            except (sqlite3.Error, ScanflowError):
                self._db.close()
                raise

    def _prepare(self) -> None:
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        if (version := self._read_version()) > VERSION:
            raise UsageError(
                f"{str(self._path)!r} was written by a newer Scanflow: its version is {version}, and this one reads up "
                f"to {VERSION}. Install that version, or use another home: SCANFLOW_HOME=..."
            )
        if version < VERSION:
            with self.transaction():
                columns = {row["name"] for row in self._db.execute("PRAGMA table_info(tasks)")}
                for name in _NEW_COLUMNS.keys() - columns if columns else ():
                    self._db.execute(f"ALTER TABLE tasks ADD COLUMN {name} {_NEW_COLUMNS[name]}")
                if version < _CACHE_VERSION:
                    self._db.execute("DROP TABLE IF EXISTS cache")
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
        for table, columns in _COLUMNS.items():
            if missing := columns - {row["name"] for row in self._db.execute(f"PRAGMA table_info({table})")}:
                raise DamagedJournalError(
                    f"{str(self._path)!r} cannot be used: its table {table!r} has lost {', '.join(sorted(missing))}."
                )

    def check(self) -> None:
        """Look at all pages of the file.

        Raises:
            DamagedJournalError: one is damaged.
        """
        problem = self._select("PRAGMA quick_check(1)")[0][0]
        if problem != "ok":
            raise DamagedJournalError(f"{str(self._path)!r} is damaged: {problem}.")

    def _read_version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def close(self) -> None:
        self._db.close()

    def _select(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        with _translate_errors(self._path):
            return self._db.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the context in one transaction, which is rolled back if it raises."""
        with _translate_errors(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def create_run(
        self,
        *,
        app: str,
        team: str,
        workflow: str,
        parent: Path,
        source: str | None,
        definition: str,
        rng: random.Random,
        name: RunName | None = None,
        tasks: Sequence[TaskRecord] = (),
        created: float | None = None,
    ) -> JournalRun:
        """Insert a new run with its initial tasks, under a unique name. Idempotent by name.

        ``created``: when it was, in seconds since the epoch. None: now.

        Raises:
            InvalidError: another run has that name.
        """
        with self.transaction():
            if name is not None and (row := self._find_row(name)) is not None:
                if (row["definition"], row["source"]) != (definition, source):
                    raise InvalidError(f"A run {name!r} already exists. Choose another name.")
                return JournalRun(row["id"], self._read_run_record(row), row["definition"])
            run_name = name or self.free_name(rng)
            cursor = self._db.execute(
                "INSERT INTO runs (name, app, team, workflow, state, created, folder, source, definition)"
                " VALUES (?, ?, ?, ?, 'running', ?, ?, ?, ?)",
                (
                    run_name,
                    app,
                    team,
                    workflow,
                    created or time.time(),
                    self._shorten(parent / run_name),
                    source,
                    definition,
                ),
            )
            for record in tasks:
                self._db.execute(_WRITE_TASK, _build_task_row(cursor.lastrowid, record))
        return self.run(run_name)

    def insert_run(self, record: RunRecord, definition: str, *, parent: Path) -> bool:
        """Insert a run with its tasks as they were recorded elsewhere; return whether there was none of its name."""
        with self.transaction():
            if self._find_row(record.name) is not None:
                return False
            cursor = self._db.execute(
                "INSERT INTO runs"
                " (name, app, team, workflow, state, created, seconds, folder, source, definition, error)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(record.name, record.app, record.team, record.workflow, record.state, record.created),
                    *(record.seconds, self._shorten(parent / record.name), record.source, definition, record.error),
                ),
            )
            for task in record.tasks:
                self._db.execute(_WRITE_TASK, _build_task_row(cursor.lastrowid, task))
        return True

    def free_name(self, rng: random.Random) -> RunName:
        name = make_run_name(rng)
        while self._find_row(name) is not None:
            name = RunName(f"{make_run_name(rng)}-{rng.randrange(10**6)}")
        return name

    def run(self, name: str) -> JournalRun:
        """Return a run; ``@latest`` is the newest, ``@latest-1`` the one before.

        Raises:
            NotFoundError: there is none of that name.
        """
        with _translate_errors(self._path):
            row = self._find_latest(name) if name.startswith("@latest") else self._find_row(name)
            if row is None:
                newest = self._db.execute(f"SELECT name FROM runs {_NEWEST_FIRST} LIMIT 200")  # noqa: S608 - ours
                names = [row["name"] for row in newest]
                if not names:
                    raise NotFoundError("There is no run yet. Start one: scanflow run app.py")
                hint = did_you_mean(name, names) if len(names) > 12 else f" Runs: {', '.join(names)}."
                raise NotFoundError(f"There is no run {name!r}.{hint} See them all: scanflow runs")
        return JournalRun(row["id"], self._read_run_record(row), row["definition"])

    def find_run(self, name: str) -> JournalRun | None:
        """Return the run of exactly that name; None: there is none."""
        with _translate_errors(self._path):
            row = self._find_row(name)
        return None if row is None else JournalRun(row["id"], self._read_run_record(row), row["definition"])

    def list_environments(self) -> list[tuple[str, str]]:
        """Return the applications that have runs, each with its team."""
        return [(row["app"], row["team"]) for row in self._select("SELECT DISTINCT app, team FROM runs")]

    def runs(self, *, limit: int, offset: int = 0, **named: str | None) -> list[RunRecord]:
        """Return the newest runs first, without their tasks.

        ``named``: their application (``app``), ``team``, ``workflow`` or ``state``, where they are not None.
        """
        filters = {column: value for column, value in named.items() if value is not None}
        where = f" WHERE {' AND '.join(f'{column} = :{column}' for column in filters)}" if filters else ""
        query = f"SELECT * FROM runs{where} {_NEWEST_FIRST} LIMIT :limit OFFSET :offset"  # noqa: S608 - our own columns' names
        return [
            self._read_run_record(row) for row in self._select(query, {**filters, "limit": limit, "offset": offset})
        ]

    def set_run(
        self, run: JournalRun, state: RunState, *, seconds: float | None = None, error: str | None = None
    ) -> None:
        """Update a run's state; the state running also clears a request to stop."""
        self._select(
            "UPDATE runs SET state = ?, seconds = ?, error = ?,"
            " stop_requested = CASE WHEN ? = 'running' THEN 0 ELSE stop_requested END WHERE id = ?",
            (state, seconds, error, state, run.id),
        )

    def redefine(self, run: JournalRun, definition: str) -> None:
        self._select("UPDATE runs SET definition = ? WHERE id = ?", (definition, run.id))

    def iterate_definitions(self) -> Iterator[str]:
        """Yield the definitions, as JSON, that name a function stored by value."""
        with _translate_errors(self._path):
            rows = self._db.execute("SELECT definition FROM runs WHERE definition LIKE '%.pickle:%'")
            yield from (str(row["definition"]) for row in rows)

    def request_stop(self, run: JournalRun) -> None:
        self._select("UPDATE runs SET stop_requested = 1 WHERE id = ?", (run.id,))

    def is_stop_requested(self, run: JournalRun) -> bool:
        return bool(self._select("SELECT stop_requested FROM runs WHERE id = ?", (run.id,))[0][0])

    def set_task(self, run: JournalRun, record: TaskRecord) -> None:
        self._select(_WRITE_TASK, _build_task_row(run.id, record))

    def delete_task(self, run: JournalRun, task: StepName) -> None:
        self._select("DELETE FROM tasks WHERE run = ? AND task = ?", (run.id, task))

    def replace_tasks(self, run: JournalRun, tasks: Iterable[TaskRecord]) -> None:
        """Make these the tasks of a run; only those that differ are changed."""
        before, after = self.read_tasks(run), {record.task: record for record in tasks}
        with self.transaction():
            for name, record in after.items():
                if before.get(name) != record:
                    self._db.execute(_WRITE_TASK, _build_task_row(run.id, record))
            for name in before.keys() - after.keys():
                self._db.execute("DELETE FROM tasks WHERE run = ? AND task = ?", (run.id, name))

    def read_tasks(self, run: JournalRun) -> dict[StepName, TaskRecord]:
        rows = self._select("SELECT * FROM tasks WHERE run = ?", (run.id,))
        return {StepName(row["task"]): _parse_task_record(row) for row in rows}

    def read_task(self, run: JournalRun, name: str) -> TaskRecord | None:
        rows = self._select("SELECT * FROM tasks WHERE run = ? AND task = ?", (run.id, name))
        return _parse_task_record(rows[0]) if rows else None

    def read_changed_tasks(self, run: JournalRun, since: int) -> tuple[list[TaskRecord], int]:
        """Return the tasks changed after ``since``, in the order of their last changes, and the next ``since``."""
        rows = self._select("SELECT * FROM tasks WHERE run = ? AND change > ? ORDER BY change", (run.id, since))
        return [_parse_task_record(row) for row in rows], rows[-1]["change"] if rows else since

    def find_cached_outputs(self, key: str) -> CachedOutputs | None:
        """Return the outputs under a key."""
        rows = self._select("SELECT run, folder, outputs FROM cache WHERE key = ?", (key,))
        return CachedOutputs(rows[0]["run"], self._locate(rows[0]["folder"]), rows[0]["outputs"]) if rows else None

    def remember(self, key: str, outputs: CachedOutputs, *, step: str, parts: Mapping[str, str]) -> None:
        """Record outputs under a key, with the digests of its parts."""
        self._select(
            "INSERT OR REPLACE INTO cache (key, run, folder, outputs, step, parts, created)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (key, outputs.run, self._shorten(outputs.folder), outputs.digest, step, json.dumps(parts), time.time()),
        )

    def read_cached_parts(self, step: str, *, except_run: RunName) -> list[dict[str, str]]:
        """Return the parts of a step's newest keys, those of one run left out."""
        rows = self._select(
            "SELECT parts FROM cache WHERE step = ? AND run != ? ORDER BY created DESC LIMIT ?",
            (step, except_run, _MAX_COMPARED),
        )
        return [json.loads(row["parts"]) for row in rows]

    def _read_run_record(self, row: sqlite3.Row) -> RunRecord:
        # Without its definition, which holds what its steps need to know: their secrets, too.
        values = {name: row[name] for name in row.keys() if name != "definition"}  # noqa: SIM118
        return RunRecord.model_validate({**values, "folder": str(self._locate(row["folder"]))})

    def _locate(self, folder: str) -> Path:
        """Return where a recorded folder is now: those of this home move with it."""
        return resolve_home_path(self._path.parent, folder)

    def _shorten(self, folder: Path) -> str:
        """Return a folder as it is recorded: relative to this home's where it lies in it."""
        return shorten_home_path(self._path.parent, folder)

    def _find_latest(self, name: str) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(
            f"SELECT * FROM runs {_NEWEST_FIRST} LIMIT 1 OFFSET ?",  # noqa: S608 - ours
            (min(parse_latest(name), MAX_INTEGER),),
        ).fetchone()
        return row

    def _find_row(self, name: str) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute("SELECT * FROM runs WHERE name = ?", (name,)).fetchone()
        return row


def parse_latest(name: str) -> int:
    """Return how many runs before the newest one a name means: 0 for ``@latest``, 1 for ``@latest-1``.

    Raises:
        NotFoundError: it means none.
    """
    back = name.removeprefix("@latest").removeprefix("-") or "0"
    if not back.isdecimal():
        raise NotFoundError(f"The run {name!r} cannot be read. Write '@latest', '@latest-1' or a run's name.")
    return int(back)


def _build_task_row(run: int | None, record: TaskRecord) -> dict[str, Any]:
    failure = None if record.failure is None else record.failure.model_dump_json()
    devices = json.dumps([device.model_dump() for device in record.devices]) if record.devices else None
    return {**dict(record), "run": run, "failure": failure, "devices": devices}


def _parse_task_record(row: sqlite3.Row) -> TaskRecord:
    failure, devices = row["failure"], row["devices"]
    return TaskRecord.model_validate(
        {
            **dict(row),
            "failure": Failure.model_validate_json(failure) if failure else None,
            "devices": json.loads(devices) if devices else (),
        }
    )


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Translate SQLite's errors (a full disk, a lock, a damaged file) into ours."""
    try:
        yield
    except sqlite3.Error as error:
        translated = build_disk_error(error, path)
        if (getattr(error, "sqlite_errorname", "") or "").startswith(_DAMAGE):
            raise DamagedJournalError(str(translated)) from error
        raise translated from error
