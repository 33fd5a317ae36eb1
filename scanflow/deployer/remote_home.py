"""Which server of a home folder is up: the note that ``scanflow up`` leaves, and whether what it says still lives."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.backends.local import shim
from scanflow.backends.local.births import birth_of

__all__ = ["Up", "UpProcess", "forget_up", "read_up", "up_file", "write_up"]

_POLL_S = 0.02


class UpProcess(BaseModel):
    """One process that ``scanflow up`` started."""

    model_config = ConfigDict(frozen=True)

    pid: int
    birth: str
    """When it began, in the kernel's clock: with its id, this names one process for ever."""

    port: int
    url: str
    log: str
    """The file that it writes to."""

    def is_alive(self) -> bool:
        """Say whether that very process still runs."""
        return bool(self.birth) and birth_of(self.pid) == self.birth

    def end(
        self,
        *,
        grace_s: float,
        group: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> bool:
        """Ask it to end, make it end after ``grace_s``, and say whether there was anything to end.

        ``group``: the processes it started with it.
        """
        if not self.is_alive():
            return False
        group_id = os.getpgid(self.pid) if group else 0
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
            self._signal(number, group_id)
            give_up = clock() + patience_s
            while self.is_alive() and clock() < give_up:
                sleep(_POLL_S)
            if not self.is_alive():
                break
        if group:
            shim.signal_group(group_id, signal.SIGKILL)  # what it left running
        return True

    def _signal(self, number: int, group_id: int) -> None:
        if group_id:
            shim.signal_group(group_id, number)
        elif self.is_alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:  # it ended on its own at this moment
                return


class Up(BaseModel):
    """What ``scanflow up`` started."""

    model_config = ConfigDict(frozen=True)

    server: UpProcess
    tracker: UpProcess | None = None
    """MLflow's own server; None: it was not wanted, is elsewhere, or is not installed."""

    started: float
    """Seconds since the epoch."""


def up_file(home: Path) -> Path:
    """Return where the note is."""
    return home.expanduser().absolute() / "server" / "up.json"


def read_up(home: Path) -> Up | None:
    """Return the note of a home folder, whether or not what it names lives; None: there is none."""
    try:
        return Up.model_validate_json(up_file(home).read_bytes())
    except (OSError, ValidationError):
        return None


def write_up(home: Path, up: Up) -> None:
    """Write the note, whole or not at all.

    Raises:
        UnavailableError: it cannot be written.
    """
    from scanflow.backends.local.services.stored import write_atomically

    path = up_file(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, up.model_dump_json(indent=2).encode())


def forget_up(home: Path) -> None:
    """Remove the note."""
    up_file(home).unlink(missing_ok=True)
