"""Logs in memory."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from scanflow.backends.log_reader import LogPage, LogPart


class Log(io.RawIOBase):
    def __init__(self) -> None:
        super().__init__()
        self.content = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(memoryview(data))
        self.content += content
        return len(content)

    @contextmanager
    def capture(self, errors: Log | None = None) -> Iterator[None]:
        """Capture standard output inside the context, and standard error into ``errors``, if given, else here."""
        with redirect_stdout(_Text(self)), redirect_stderr(_Text(errors or self)):
            yield


class _Text(io.TextIOBase):
    encoding = "utf-8"

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.buffer = log

    def write(self, text: str, /) -> int:
        self.buffer.write(text.encode(errors="replace"))
        return len(text)


class MemoryLogs:
    def __init__(self, look: Callable[[], tuple[Sequence[tuple[str, Log]], bool]]) -> None:
        look()
        self._look = look
        self._read: defaultdict[int, int] = defaultdict(int)

    def read(self) -> LogPage:
        logs, ended = self._look()
        parts = []
        for source, log in logs:
            data = bytes(log.content[self._read[id(log)] :])
            self._read[id(log)] += len(data)
            if data:
                parts.append(LogPart(source, data))
        return LogPage(tuple(parts), ended=ended and not parts)

    def read_tail(self, n_bytes: int) -> tuple[LogPart, ...]:
        """Return the last bytes of each source, so many at most."""
        return tuple(LogPart(source, bytes(log.content[-n_bytes:])) for source, log in self._look()[0] if log.content)

    def close(self) -> None:
        """Do nothing: nothing is open."""
