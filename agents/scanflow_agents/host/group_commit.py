"""Group commit to a SQLite file, by one thread: the statements of one iteration of the event loop are one transaction.

The file is in WAL mode and not synced at each commit: committed data survives the end of the process, and the last
commits may be lost in a power failure. Idempotency keys make up for those.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from scanflow.errors import UnavailableError
from scanflow.files.private import create_private_file

Statement = tuple[str, Sequence[Any]]
_RETRY_S = 0.5
_log = logging.getLogger(__name__)


class GroupWriter:
    """The only writer of a SQLite file. All methods but ``read`` are called on the loop's thread."""

    def __init__(self, path: Path, schema: str, *, patience_s: float = 30.0) -> None:
        """``patience_s``: how long a write is retried (on a full disk) before it raises an error."""
        self._path = path
        self._patience_s = patience_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scanflow-agent-writer")
        self._collectors: list[Callable[[], Iterable[Statement]]] = []
        self._pending: list[Statement] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._writing: asyncio.Task[None] | None = None
        self._broken: UnavailableError | None = None
        self.broken = asyncio.Event()
        """Set when writing has failed for good."""

        try:
            self._connection = sqlite3.connect(
                create_private_file(path), timeout=10.0, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(schema)
        except (sqlite3.Error, OSError) as error:
            raise UnavailableError(
                f"The agent's state in {str(path)!r} cannot be opened: {error}. Is the disk full, or not writable?"
            ) from error

    def collect(self, collector: Callable[[], Iterable[Statement]]) -> None:
        self._collectors.append(collector)

    def add(self, sql: str, values: Sequence[Any]) -> None:
        self._pending.append((sql, values))
        self.touch()

    def touch(self) -> None:
        """Commit the open group at the end of this iteration of the loop."""
        if not self._scheduled and self._writing is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._close_group)

    async def flush(self) -> None:
        """Wait until everything added so far is committed, or raise ``UnavailableError``."""
        if self._broken is not None:
            raise self._broken
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.touch()
        await future

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return committed rows, on a separate connection. Callable from any thread."""
        connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=10.0)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    async def close(self) -> None:
        try:
            await self.flush()
        finally:
            self._thread.shutdown(wait=True)
            self._connection.close()

    def _close_group(self) -> None:
        self._scheduled = False
        if self._writing is None:
            group = self._pending + [statement for collector in self._collectors for statement in collector()]
            waiting, self._pending, self._waiting = self._waiting, [], []
            if group:
                self._writing = asyncio.get_running_loop().create_task(self._write(group, waiting))
            else:
                _resolve(waiting, None)

    async def _write(self, group: list[Statement], waiting: list[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience_s
        try:
            while True:
                try:
                    await loop.run_in_executor(self._thread, self._commit, group)
                    break
                except sqlite3.Error as error:
                    _log.warning("the agent's state cannot be written: %s", error)
                    if loop.time() >= give_up:
                        self._broken = UnavailableError(
                            f"The agent's state in {str(self._path)!r} cannot be written: {error}. Free disk space; "
                            "the agent restarts by itself."
                        )
                        self.broken.set()
                        _resolve([*waiting, *self._waiting], self._broken)
                        return
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._writing = None
        _resolve(waiting, None)
        self.touch()

    def _commit(self, group: list[Statement]) -> None:
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            for sql, statements in groupby(group, key=lambda statement: statement[0]):
                cursor.executemany(sql, [values for _, values in statements])
            cursor.execute("COMMIT")
        except BaseException:
            cursor.execute("ROLLBACK")
            raise


def _resolve(waiting: Iterable[asyncio.Future[None]], error: UnavailableError | None) -> None:
    for future in waiting:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
