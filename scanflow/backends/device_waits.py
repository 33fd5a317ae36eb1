"""Who waits for GPUs of a home, in the order in which they came: one file, changed under the lock of its claims.

A wait ends with the process that drives its run; one that is suspended keeps nobody waiting.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from scanflow.placement.device_grants import DeviceDemand
from scanflow.placement.device_reservations import DeviceRequest
from scanflow.processes.identity import is_suspended, read_start_time
from scanflow.processes.shared_files import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWait:
    """An attempt that is to start once there are devices for it."""

    holder: str
    """Its folder, below the home."""

    who: str
    pid: int
    birth: str
    """The process that drives its run."""

    since: float
    """When it came, by the machine's monotonic clock."""

    demand: DeviceDemand


@cache
def _build_adapter() -> TypeAdapter[tuple[DeviceWait, ...]]:
    return TypeAdapter(tuple[DeviceWait, ...])


class DeviceWaits:
    """The file of waits. Whoever changes it holds the lock of the claims."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def list_ahead(self, holder: str, since: float | None) -> list[DeviceRequest]:
        """Return who came before an attempt (``since`` None: all who wait), those who came first first."""
        waits = [
            wait
            for wait in self._read()
            if wait.holder != holder and (since is None or wait.since < since) and not is_suspended(wait.pid)
        ]
        return [
            DeviceRequest(who=wait.who, demand=wait.demand)
            for wait in sorted(waits, key=lambda wait: (wait.since, wait.holder))
        ]

    def add(self, holder: str, who: str, demand: DeviceDemand, since: float) -> None:
        waits = self._read()
        if all(wait.holder != holder for wait in waits):
            birth = read_start_time(os.getpid())
            wait = DeviceWait(holder=holder, who=who, pid=os.getpid(), birth=birth, since=since, demand=demand)
            self._write([*waits, wait])

    def remove(self, holder: str) -> None:
        waits = self._read()
        if any(wait.holder == holder for wait in waits):
            self._write([wait for wait in waits if wait.holder != holder])

    def _read(self) -> list[DeviceWait]:
        try:
            waits = _build_adapter().validate_json(self._file.read_bytes())
        except (OSError, ValidationError):  # without it nobody's device is given twice: only an order is lost
            return []
        return [wait for wait in waits if read_start_time(wait.pid) == wait.birth]

    def _write(self, waits: Sequence[DeviceWait]) -> None:
        write_atomically(self._file, _build_adapter().dump_json(tuple(waits)))
