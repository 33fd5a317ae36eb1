"""Stopping the agents of a home: through the server, and without it where it cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from scanflow.deployer.remote_home import up_file
from scanflow.errors import ScanflowError
from scanflow.processes.daemon import Daemon
from scanflow.transport import ServerClient, path_of

_ENDED = {"stopped", "failed"}
Agent = tuple[str, str]
"""An application's name and an agent's."""


class AgentShutdown:
    """The agents of one home on their way out, and the outcome for each."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._asked: list[Agent] = []
        self._failed: list[tuple[list[Agent], str]] = []
        self._killed: dict[Agent, int] = {}
        self._services: list[str] = []

    def living(self) -> dict[Agent, Daemon]:
        """Return the agents whose processes live."""
        folders = sorted(one.parent for one in up_file(self._home).parent.glob("agents/*/*/attempts"))
        found = {(one.parts[-2], one.parts[-1]): Daemon(one) for one in folders}
        return {agent: process for agent, process in found.items() if process.alive}

    def request(self, server: ServerClient) -> None:
        """Have the server stop each agent; an error for one does not keep the others running."""
        try:
            listed = [one for one in server.get(path_of("agents")) if one.get("state") not in _ENDED]
            self._services = [one["name"] for one in server.get(path_of("services"))]
        except ScanflowError as error:
            self.server_failed(error)
            return
        for agent in ((one["app"], one["name"]) for one in listed):
            try:
                server.delete(path_of("agents", *agent))
            except ScanflowError as error:
                self._failed.append(([agent], str(error)))
            else:
                self._asked.append(agent)

    def server_failed(self, error: ScanflowError) -> None:
        """Record that no server could be asked, and why."""
        self._failed.append((list(self.living()), str(error)))

    def wait(self, timeout_s: float, *, tell: Callable[[str], None], tell_after_s: float) -> None:
        """Wait for the agents that were asked; the server kills them after a while."""
        asked = {agent: process for agent, process in self.living().items() if agent in self._asked}
        if late := _not_ended(asked, min(tell_after_s, timeout_s)):
            tell(f"Waiting for {_names(late)} to stop, for at most {timeout_s:.0f} s.")
            _not_ended(late, timeout_s - tell_after_s)

    def kill(self, timeout_s: float) -> None:
        """Stop the agents that still live, without a server; those that were not asked before get time to clean up."""
        left = self.living()
        pids = {agent: pid for agent, process in left.items() if (pid := process.pid) is not None}
        for agent, process in left.items():
            if agent in self._asked:
                process.kill()
            else:
                process.stop()
        living = _not_ended(left, timeout_s)
        self._killed = {agent: pid for agent, pid in pids.items() if agent not in living}

    @property
    def stopped(self) -> list[str]:
        """Return the agents that were stopped, in words."""
        others = {*self.living(), *self._killed}
        by_server = [_agent(one) for one in self._asked if one not in others]
        return by_server + [
            f"{_agent(one)} (process {pid}), which the server did not" for one, pid in self._killed.items()
        ]

    @property
    def left(self) -> list[str]:
        """Return what was not stopped, or not for good, in words."""
        lines = []
        for agents, why in self._failed:
            who = ", ".join(map(_agent, agents)) or "agents"
            again = any(one in self._killed for one in agents)  # the server still wants them
            then = f", so the next 'scanflow up' starts {'it' if len(agents) == 1 else 'them'} again" if again else ""
            lines.append(f"The server could not be asked to stop {who}{then}: {why}")
        lines += [
            f"The agent {name!r} of {app} still runs. Kill the process {process.pid}, then try again: scanflow down"
            for (app, name), process in self.living().items()
        ]
        if self._services:
            names = ", ".join(self._services)
            lines.append(f"Services go on serving: {names}. Delete one: scanflow delete {self._services[0]}")
        return lines

    def left_to(self, reason: str) -> list[str]:
        """Return that the living agents are not ours to stop."""
        living = self.living()
        return [f"{_names(living)} still run: {reason}"] if living else []

    @property
    def running(self) -> list[str]:
        """Return the living agents, in words."""
        return [_label(one) for one in self.living()]


def _not_ended(some: Mapping[Agent, Daemon], timeout_s: float) -> dict[Agent, Daemon]:
    """Wait until they have ended, for at most ``timeout_s``; return those that have not."""
    give_up = time.monotonic() + timeout_s
    return {agent: process for agent, process in some.items() if not process.wait(max(0.0, give_up - time.monotonic()))}


def _agent(agent: Agent) -> str:
    return f"the agent {agent[1]!r} of {agent[0]}"


def _label(agent: Agent) -> str:
    return f"{agent[1]} of {agent[0]}"


def _names(agents: Iterable[Agent]) -> str:
    return ", ".join(map(_label, agents))
