"""Logs of tasks and instances, read a part at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

Stream = Literal["stdout", "stderr", "both"]


MAX_WAIT_S: Final = 1.0
"""How long the end of a log that can only be read from its beginning is waited for, in seconds."""

_POLL_S: Final = 0.05


class LogPart(NamedTuple):
    """Consecutive bytes of one source."""

    source: str
    """``stdout`` or ``stderr`` of a task; the name of a service's instance."""

    data: bytes


@dataclass(frozen=True, slots=True)
class LogPage:
    """The log since the last read."""

    parts: tuple[LogPart, ...]
    """Empty: everything written until now has been read."""

    ended: bool
    """Whether the log is complete."""


class LogReader(Protocol):
    """Reads logs incrementally from their beginning. Must be closed."""

    def read(self) -> LogPage:
        """Return the next page, without blocking."""
        ...

    def close(self) -> None:
        """Release the log's resources."""
        ...


@runtime_checkable
class TailReader(Protocol):
    """A :class:`LogReader` that can read the end of a log without what precedes it."""

    def read_tail(self, n_bytes: int) -> tuple[LogPart, ...]:
        """Return the last bytes of each source, so many at most, whatever was read before."""
        ...


def read_tail(reader: LogReader, n_bytes: int, *, sleep: Callable[[float], None] = time.sleep) -> tuple[LogPart, ...]:
    """Return the last bytes that each source of a log has written, so many at most.

    A reader that cannot begin there reads all of the log, for which it is given a second after its last page.
    """
    if isinstance(reader, TailReader):
        return reader.read_tail(n_bytes)
    tails: dict[str, bytes] = {}
    waited_s, page = 0.0, reader.read()
    while not page.ended and (page.parts or waited_s < MAX_WAIT_S):
        for source, data in page.parts:
            tails[source] = (tails.get(source, b"") + data)[-n_bytes:]
        if not page.parts:
            waited_s += _POLL_S
            sleep(_POLL_S)
        page = reader.read()
    return tuple(LogPart(source, data) for source, data in tails.items())


class WholeLinesReader:
    """Reads a log of several sources, such as standard output and standard error.

    An incomplete line waits for its rest while there is more to read. Then it is shown, as a prompt is, and what
    another source writes after it begins on a line of its own.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._rests: dict[str, bytes] = {}
        """By source: an incomplete line that was not shown."""

        self._open = ""
        """The source whose incomplete line was shown last; empty: none."""

    def read(self) -> LogPage:
        page = self._reader.read()
        parts = [LogPart(part.source, self._take_lines(part)) for part in page.parts]
        if page.ended or not page.parts:
            parts += [LogPart(source, self._rests.pop(source)) for source in list(self._rests)]
        shown = tuple(self._separate(part) for part in parts if part.data)
        # What is held back counts as read: a page without parts means that there is no more for now.
        return LogPage(shown or tuple(parts[:1]), page.ended)

    def close(self) -> None:
        self._reader.close()

    def _take_lines(self, part: LogPart) -> bytes:
        lines, newline, rest = (self._rests.pop(part.source, b"") + part.data).rpartition(b"\n")
        if rest:
            self._rests[part.source] = rest
        return lines + newline

    def _separate(self, part: LogPart) -> LogPart:
        interrupts = self._open not in {"", part.source}
        self._open = "" if part.data.endswith(b"\n") else part.source
        return LogPart(part.source, b"\n" + part.data) if interrupts else part
