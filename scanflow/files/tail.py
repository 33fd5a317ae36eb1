"""Reads growing files from where reading stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from scanflow.files.closing import Closing

BLOCK = 65_536


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
