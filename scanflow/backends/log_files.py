"""A log reader over growing files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scanflow.backends.log_reader import LogPage, LogPart
from scanflow.errors import NotFoundError
from scanflow.files.tail import Tail

Look = Callable[[], tuple[Sequence[tuple[str, Path]], bool]]
"""Returns the files, each with its source, and whether they are complete."""


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

    def close(self) -> None:
        self._tail.close()
