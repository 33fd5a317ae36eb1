"""Caches reads that depend on a SQLite database, until another process writes to it.

Agents look at the tracker and at the server again and again, and mostly nothing happened; to ask takes milliseconds of
CPU. SQLite tells it in microseconds: ``PRAGMA data_version`` is another number, on a connection that stays
open, after every commit of another one (https://www.sqlite.org/pragma.html#pragma_data_version).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MAX_ENTRIES = 64
"""Number of cached results; when it is exceeded, the cache is cleared."""

_Version = tuple[int, int]
"""The number of a connection, and its version: versions of two connections cannot be compared."""


class UnchangedReads:
    """Thread-safe. If the file's version is unknown, everything is read."""

    def __init__(self, path: Path | None) -> None:
        """``path``: the database that all results come from. None: they come from elsewhere, and are not cached."""
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened = 0
        self._file: tuple[int, int] | None = None
        self._version: _Version | None = None
        self._kept: dict[Hashable, object] = {}

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the cached result of ``read`` for ``key`` if the database is unchanged, else call it."""
        with self._lock:
            version = self._read_version()
            if version != self._version or len(self._kept) >= MAX_ENTRIES:
                self._kept.clear()
                self._version = version
            if version is not None and key in self._kept:
                return self._kept[key]  # type: ignore[return-value]  # what this key's ``read`` returned
        answer = read()
        with self._lock:
            if version is not None and version == self._version:  # else it may be older than what others keep
                self._kept[key] = answer
        return answer

    def _read_version(self) -> _Version | None:
        """Return the current version; None if it is unknown."""
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
            if self._connection is None or self._file != (stat.st_dev, stat.st_ino):
                self._close()
                self._connection = sqlite3.connect(
                    f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.0, check_same_thread=False
                )
                self._file, self._opened = (stat.st_dev, stat.st_ino), self._opened + 1
            (number,) = self._connection.execute("PRAGMA data_version").fetchone()
        except (OSError, sqlite3.Error):  # it is not there yet, or cannot be read
            self._close()
            return None
        return self._opened, int(number)

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None
