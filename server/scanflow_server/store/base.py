"""The database: SQLite in a file, or PostgreSQL by its address; both behave alike.

:meth:`Store.write` is one transaction, and writers are serialized: what is read in it holds until the commit, and
events become visible in the order of their numbers.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, Engine, Select, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from scanflow.errors import InvalidError, UnavailableError
from scanflow.files.disk import explain_sqlite_error, find_full_disk
from scanflow.files.private import create_private_file, create_private_folder

BUSY_TIMEOUT_S = 30.0
CONNECTIONS = 50
SLICE_S: Final = 0.02
"""How long one transaction of many writes lasts, in seconds, before others have their turn."""

_TURN_S: Final = 0.005
_CHANGED: Final = "scanflow_changed"
"""In what SQLAlchemy keeps of a connection: its transaction has changed a row."""

T = TypeVar("T")
R = TypeVar("R")
_WRITERS = 4_666_601
"""The advisory lock of PostgreSQL that one writer at a time holds."""


class Row(BaseModel):
    """A row of a table, by its columns' names."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def load_all(cls, connection: Connection, query: Select[Any]) -> list[Self]:
        return [cls.model_validate(dict(row)) for row in connection.execute(query).mappings()]

    @classmethod
    def load_first(cls, connection: Connection, query: Select[Any]) -> Self | None:
        row = connection.execute(query).mappings().first()
        return None if row is None else cls.model_validate(dict(row))


class Store:
    """One server's database. May be used by several threads."""

    def __init__(self, engine: Engine, *, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called after each transaction that changed a row."""
        self.engine = engine
        event.listen(engine, "after_cursor_execute", _mark_change)
        self.on_change = on_change
        # SQLite has waiting writers ask again and again, at last ten times a second: those of this process take turns.
        self._turn = threading.Lock() if engine.dialect.name == "sqlite" else nullcontext()

    @property
    def address(self) -> str:
        """Its URL without password and options, which may hold one too."""
        return _mask_password(self.engine.url)

    @property
    def file(self) -> str | None:
        """The absolute path of its file; None: it has none."""
        url = self.engine.url
        return str(Path(url.database).absolute()) if self.engine.dialect.name == "sqlite" and url.database else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with translate_errors(self.engine), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction: all or nothing is committed. UnavailableError: the database is full or down."""
        with self._turn, translate_errors(self.engine), self.engine.connect() as plain:
            connection = plain.execution_options(scanflow_writes=True)
            with connection.begin():
                if self.engine.dialect.name == "postgresql":
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_WRITERS})"))
                connection.info.pop(_CHANGED, None)
                yield connection
                has_changed = connection.info.pop(_CHANGED, False)
        if has_changed:
            self.on_change()

    def write_in_slices(
        self,
        items: Iterable[T],
        write_item: Callable[[Connection, T], R],
        *,
        finish: Callable[[Connection, list[R]], None] = lambda _connection, _written: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[R]:
        """Write many items in transactions of ``SLICE_S`` at most, so that no other write waits longer.

        What ends this midway leaves the items until then written, each with what ``finish`` adds for its transaction:
        ``write_item`` has to do nothing for an item that was written already.
        """
        waiting, results = deque(items), list[R]()
        while waiting:
            written = list[R]()
            with self.write() as connection:
                until = clock() + SLICE_S
                while waiting and (not written or clock() < until):
                    written.append(write_item(connection, waiting[0]))
                    waiting.popleft()
                finish(connection, written)
            results += written
            if waiting:
                sleep(_TURN_S)
        return results

    def check_writable(self) -> None:
        with translate_errors(self.engine), self.engine.connect() as plain:
            connection = plain.execution_options(scanflow_writes=True)
            connection.execute(text("SELECT 1"))
            connection.rollback()

    def close(self) -> None:
        self.engine.dispose()


def split(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in parts: databases limit the number of bound values, and one statement is to be short."""
    return (items[start : start + size] for start in range(0, len(items), size))


def open_store(address: str, *, on_change: Callable[[], None] = lambda: None) -> Store:
    """Return the database at ``address``, without connecting yet."""
    url = _parse_url(address)
    if url.drivername.startswith("sqlite"):
        if url.database is None or url.database in {"", ":memory:"}:
            raise InvalidError(
                "A database in memory would be lost when the server stops. Use a file: sqlite:////a/file.db"
            )
        create_private_folder(Path(url.database).parent)
        create_private_file(Path(url.database))
        # All are kept: to open a file anew for each request beyond a few costs more than the request.
        options: dict[str, Any] = {
            "pool_size": CONNECTIONS,
            "max_overflow": 0,
            "connect_args": {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        }
    else:
        options = {
            "pool_size": 5,
            "max_overflow": CONNECTIONS - 5,
            "pool_pre_ping": True,
            "connect_args": {"connect_timeout": 5},
        }
    engine = create_engine(url, pool_timeout=BUSY_TIMEOUT_S, **options)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_connection)
        event.listen(engine, "begin", _begin_transaction)
    return Store(engine, on_change=on_change)


def _parse_url(address: str) -> URL:
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise InvalidError(
            "SCANFLOW_DATABASE_URL is not a database URL. Write sqlite:////a/file.db or "
            "postgresql://user:password@host/database."
        ) from error
    if "@" in (url.host or ""):  # it would be shown as part of the host
        raise InvalidError(
            "SCANFLOW_DATABASE_URL has more than one @ before its host. An @ in a password is written %40."
        )
    if url.drivername in {"postgres", "postgresql", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in {"sqlite", "sqlite+pysqlite"}:
        return url
    raise InvalidError(
        f"The database of kind {url.drivername!r} is not supported. Write sqlite:////a/file.db or "
        "postgresql://user:password@host/database."
    )


def _configure_connection(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_transaction(connection: Connection) -> None:
    # A write transaction takes the lock at once: one that began by reading could not upgrade.
    writes = connection.get_execution_options().get("scanflow_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _mark_change(
    connection: Connection, cursor: Any, _statement: str, _parameters: object, context: Any, _many: bool
) -> None:
    # Of a statement that returns rows the drivers count none before these are fetched.
    is_change = context.isinsert or context.isupdate or context.isdelete
    if is_change and (cursor.rowcount != 0 or cursor.description is not None):
        connection.info[_CHANGED] = True


@contextmanager
def translate_errors(engine: Engine) -> Iterator[None]:
    """Translate database errors into ours: a full disk, a lock, a server that is down."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError) as error:
        original = getattr(error, "orig", None)
        message = str(original or error).strip().partition("\n")[0]
        if isinstance(original, sqlite3.Error) and find_full_disk(engine.url.database) is not None:
            message = explain_sqlite_error(original, engine.url.database).removesuffix(". Free space")
        raise UnavailableError(
            f"The database {_mask_password(engine.url)!r} cannot be used: {_mask_secrets(message, engine.url)}. "
            "Check that it runs and that its disk has space."
        ) from error


def _mask_password(url: URL) -> str:
    return url.set(query={}).render_as_string(hide_password=True)


def _mask_secrets(text: str, url: URL) -> str:
    """Return a driver's message with passwords replaced by stars."""
    passwords = [url.query[name] for name in url.query if "pass" in name.lower()]
    secrets = [
        url.password,
        *(secret for value in passwords for secret in ([value] if isinstance(value, str) else value)),
    ]
    for secret in filter(None, secrets):
        text = re.sub(rf"(?<!\w){re.escape(str(secret))}(?!\w)", "***", text)
    return text
