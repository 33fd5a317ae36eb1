"""The agents' processes of a home folder: which of them live, by the lock that each holds, and signalling them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from scanflow.backends.local.locks import is_held
from scanflow.deployer.remote_home import up_file

__all__ = ["AgentProcess", "living_agents", "wait_until_ended"]

_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess:
    """What holds the lock of an agent's folder."""

    app: str
    name: str
    folder: Path

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return is_held(self.folder / "lock")

    @property
    def pid(self) -> int | None:
        """Its process; None: which one that is was not noted, or what was noted has no part in the lock."""
        noted = self._noted()
        return noted if noted in self._holders(noted) else None

    def signal(self, number: int) -> None:
        """Signal the agent, and what it started that keeps its lock; nothing else, whatever was noted."""
        for pid in self._holders(self._noted()):
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):  # it has just ended, or is not ours to end: looked at later
                continue

    def _noted(self) -> int | None:
        try:
            return int((self.folder / "pid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def _holders(self, group: int | None) -> list[int]:
        """Return the processes of a group that have the lock open: an agent leads a group of its own."""
        numbers = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]
        ours = [pid for pid in numbers if group is not None and _group_of(pid) == group]
        return [pid for pid in ours if _has_open(pid, self.folder / "lock")]


def living_agents(home: Path) -> list[AgentProcess]:
    """Return those that live, by application and name."""
    locks = sorted(up_file(home).parent.glob("agents/*/*/lock"))
    found = [AgentProcess(app=one.parts[-3], name=one.parts[-2], folder=one.parent) for one in locks]
    return [one for one in found if one.lives]


def wait_until_ended(some: Collection[AgentProcess], patience_s: float) -> list[AgentProcess]:
    """Wait until they have ended, but no longer than that; return those that have not."""
    give_up = time.monotonic() + patience_s
    while (living := [one for one in some if one.lives]) and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    return living


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _has_open(pid: int, path: Path) -> bool:
    try:
        wanted = path.stat()
        for one in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found = one.stat()
            except OSError:  # closed while we looked
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except OSError:  # it ended, or is another user's
        return False
    return False
