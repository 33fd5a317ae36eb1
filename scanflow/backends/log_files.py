"""A log reader over growing files, each read from where reading stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from scanflow.backends.log_reader import LogPage, LogPart
from scanflow.errors import NotFoundError
from scanflow.files.closing import Closing

BLOCK = 65_536
Look = Callable[[], tuple[Sequence[tuple[str, Path]], bool]]
"""Returns the files, each with its source, and whether they are complete."""


class Tail(Closing):
    """Reads the data appended to files since the last read.

    A file that was replaced by a new one, or cut short, is read to its old end, and then from the new one's beginning.
    """

    def __init__(self) -> None:
        self._files: dict[Path, BinaryIO] = {}

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read(self, path: Path) -> bytes:
        file = self._files.get(path)
        if file is not None and (block := file.read(BLOCK)):
            return block
        if file is not None and _is_at(path, file):
            return b""
        try:
            fresh = path.open("rb", buffering=0)
        except FileNotFoundError:
            return b""
        if file is not None:
            file.close()
        self._files[path] = fresh
        return fresh.read(BLOCK)


def _is_at(path: Path, file: BinaryIO) -> bool:
    opened = os.fstat(file.fileno())
    try:
        current = path.stat()
    except FileNotFoundError:
        return True  # moved away, and no new one made yet
    return (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino) and opened.st_size >= file.tell()


class FileLogs:
    """Reads files as a :class:`~scanflow.backends.backend_port.LogReader`. They may not exist yet, and may be
    rotated."""

    def __init__(self, look: Look) -> None:
        self._look, self._tail, self._files = look, Tail(), look()[0]

    def read(self) -> LogPage:
        try:
            self._files, ended = self._look()
        except NotFoundError:
            ended = True
        parts = tuple(LogPart(source, block) for source, path in self._files if (block := self._tail.read(path)))
        return LogPage(parts, ended=ended and not parts)

    def read_tail(self, n_bytes: int) -> tuple[LogPart, ...]:
        """Return the last bytes of each file, so many at most."""
        return tuple(LogPart(source, data) for source, path in self._files if (data := _read_end(path, n_bytes)))

    def close(self) -> None:
        self._tail.close()


def _read_end(path: Path, n_bytes: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - n_bytes))
            return file.read(n_bytes)
    except FileNotFoundError:
        return b""
