"""The agents' processes of a home folder: which of them run, and waiting for their end."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from scanflow.deployer.remote_home import up_file
from scanflow.processes.daemon import Daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess:
    """One agent's process."""

    app: str
    name: str
    folder: Path

    @property
    def place(self) -> tuple[str, str]:
        """Return its application and its name."""
        return self.app, self.name

    @property
    def label(self) -> str:
        """Return ``AGENT of APP``."""
        return f"{self.name} of {self.app}"

    @property
    def daemon(self) -> Daemon:
        """The process itself."""
        return Daemon(self.folder)


def living_agents(home: Path) -> list[AgentProcess]:
    """Return the agents that run, by application and name."""
    folders = sorted(one.parent for one in up_file(home).parent.glob("agents/*/*/attempts"))
    found = [AgentProcess(app=one.parts[-2], name=one.parts[-1], folder=one) for one in folders]
    return [one for one in found if one.daemon.alive]


def wait_until_ended(some: Collection[AgentProcess], timeout_s: float) -> list[AgentProcess]:
    """Wait until they have ended, for at most ``timeout_s``; return those that have not."""
    give_up = time.monotonic() + timeout_s
    return [one for one in some if not one.daemon.wait(max(0.0, give_up - time.monotonic()))]
