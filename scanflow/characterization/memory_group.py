"""A control group that limits the memory of one program and its children. Supports cgroup v1 and v2; needs root, or a
delegated group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from scanflow.errors import UnsupportedError
from scanflow.placement.available_cpus import CGROUP, PROC, find_memory_group_folder, read_as


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    folder: Path
    second: bool
    """Whether it is a cgroup v2 group."""

    @property
    def members(self) -> Path:
        return self.folder / "cgroup.procs"

    @property
    def peak_bytes(self) -> int | None:
        return read_as(int, self.folder / ("memory.peak" if self.second else "memory.max_usage_in_bytes"))

    @property
    def kills(self) -> int:
        """The number of its processes that were killed because memory ran out."""
        file = self.folder / ("memory.events" if self.second else "memory.oom_control")
        with suppress(OSError):
            for line in file.read_text(encoding="ascii").splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        return 0


@contextmanager
def open_memory_group(limit_bytes: int | None, *, root: Path = CGROUP, proc: Path = PROC) -> Iterator[MemoryGroup]:
    """Create a group below this process' own, and remove it afterwards; ``limit_bytes`` None: it only counts.

    Raises:
        UnsupportedError: this machine lets us make none, and why.
    """
    own = find_memory_group_folder(root, proc)
    if own is None:
        raise UnsupportedError("This machine has no control groups for memory.")
    parent, second = own
    folder = parent / f"scanflow-{os.getpid()}-{os.urandom(3).hex()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise UnsupportedError(
            f"No memory control group can be created in {str(parent)!r}: {error.strerror}."
        ) from error
    try:
        if limit_bytes is not None:
            _set_limit(folder, second, limit_bytes)
        yield MemoryGroup(folder, second)
    finally:
        with suppress(OSError):  # a process that is not to be ended keeps it
            folder.rmdir()


def _set_limit(folder: Path, second: bool, limit_bytes: int) -> None:
    names = ("memory.max", "memory.swap.max") if second else ("memory.limit_in_bytes", "memory.swappiness")
    try:
        (folder / names[0]).write_text(str(limit_bytes), encoding="ascii")
    except OSError as error:
        raise UnsupportedError(f"The memory of {str(folder)!r} cannot be limited: {error.strerror}.") from error
    with suppress(OSError):  # what is not killed would be swapped; where there is no swap, neither is
        (folder / names[1]).write_text("0", encoding="ascii")
