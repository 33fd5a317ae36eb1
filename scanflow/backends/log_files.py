"""Logs as they are here: files that grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scanflow.backends.port import LogPage, LogPart
from scanflow.errors import NotFoundError
from scanflow.tail import Tail

Look = Callable[[], tuple[Sequence[tuple[str, Path]], bool]]
"""Returns the files there are, each with its source, and whether no more will be written to them."""


class FileLogs:
    """See :class:`~scanflow.backends.port.LogReader`. Files may not exist yet, and may be rotated."""

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
