"""Logs of tasks and instances, read a part at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Stream = Literal["stdout", "stderr", "both"]


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
