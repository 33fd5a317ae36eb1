"""Shutdown of the agents of a home: through the server, and by signals where the server cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from scanflow.deployer.remote_home import get_up_state_file
from scanflow.errors import ScanflowError
from scanflow.processes.daemon import Daemon
from scanflow.transport import ServerClient, build_path

_FINAL_STATES = {"stopped", "failed"}
Agent = tuple[str, str]
"""An application's name and an agent's."""


class AgentShutdown:
    """The shutdown of the agents of one home, with the outcome for each."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._requested: list[Agent] = []
        self._failed: list[tuple[list[Agent], str]] = []
        self._killed: dict[Agent, int] = {}
        self._services: list[str] = []

    def list_living(self) -> dict[Agent, Daemon]:
        """Return the agents whose processes live."""
        folders = sorted(path.parent for path in get_up_state_file(self._home).parent.glob("agents/*/*/attempts"))
        processes = {(folder.parts[-2], folder.parts[-1]): Daemon(folder) for folder in folders}
        return {agent: process for agent, process in processes.items() if process.alive}

    def request(self, server: ServerClient) -> None:
        """Request the server to stop each agent; an error for one does not affect the others."""
        try:
            agents = [agent for agent in server.get(build_path("agents")) if agent.get("state") not in _FINAL_STATES]
            self._services = [service["name"] for service in server.get(build_path("services"))]
        except ScanflowError as error:
            self.record_failure(error)
            return
        for agent in ((agent["app"], agent["name"]) for agent in agents):
            try:
                server.delete(build_path("agents", *agent))
            except ScanflowError as error:
                self._failed.append(([agent], str(error)))
            else:
                self._requested.append(agent)

    def record_failure(self, error: ScanflowError) -> None:
        """Record that the server could not be reached."""
        self._failed.append((list(self.list_living()), str(error)))

    def wait(self, timeout_s: float, *, tell: Callable[[str], None], tell_after_s: float) -> None:
        """Wait for the agents that were requested to stop; the server kills them after a while."""
        requested = {agent: process for agent, process in self.list_living().items() if agent in self._requested}
        if late := _wait_until_ended(requested, min(tell_after_s, timeout_s)):
            tell(f"Waiting for {_join_labels(late)} to stop, for at most {timeout_s:.0f} s.")
            _wait_until_ended(late, timeout_s - tell_after_s)

    def kill(self, timeout_s: float) -> None:
        """Kill the living agents that were requested to stop, and terminate the others gracefully, without a server."""
        remaining = self.list_living()
        pids = {agent: pid for agent, process in remaining.items() if (pid := process.pid) is not None}
        for agent, process in remaining.items():
            if agent in self._requested:
                process.kill()
            else:
                process.stop()
        living = _wait_until_ended(remaining, timeout_s)
        self._killed = {agent: pid for agent, pid in pids.items() if agent not in living}

    @property
    def stopped(self) -> list[str]:
        """Return the descriptions of the agents that were stopped."""
        others = {*self.list_living(), *self._killed}
        by_server = [_describe_agent(agent) for agent in self._requested if agent not in others]
        return by_server + [
            f"{_describe_agent(agent)} (process {pid}), which the server did not stop"
            for agent, pid in self._killed.items()
        ]

    @property
    def problems(self) -> list[str]:
        """Return messages about agents and services that were not stopped, or not permanently."""
        lines = []
        for agents, why in self._failed:
            who = ", ".join(map(_describe_agent, agents)) or "agents"
            again = any(agent in self._killed for agent in agents)  # the server still wants them
            then = f", so the next 'scanflow up' starts {'it' if len(agents) == 1 else 'them'} again" if again else ""
            lines.append(f"The server could not be asked to stop {who}{then}: {why}")
        lines += [
            f"The agent {name!r} of {app} still runs. Kill the process {process.pid}, then try again: scanflow down"
            for (app, name), process in self.list_living().items()
        ]
        if self._services:
            names = ", ".join(self._services)
            lines.append(f"Services keep serving: {names}. Delete one: scanflow delete {self._services[0]}")
        return lines

    def describe_living(self, reason: str) -> list[str]:
        """Return a message that the living agents are left running, and why."""
        living = self.list_living()
        return [f"{_join_labels(living)} still run: {reason}"] if living else []

    @property
    def running(self) -> list[str]:
        """Return the labels of the living agents."""
        return [_format_label(agent) for agent in self.list_living()]


def _wait_until_ended(agents: Mapping[Agent, Daemon], timeout_s: float) -> dict[Agent, Daemon]:
    """Wait until the agents have ended, for at most ``timeout_s``; return those that have not."""
    give_up = time.monotonic() + timeout_s
    return {
        agent: process for agent, process in agents.items() if not process.wait(max(0.0, give_up - time.monotonic()))
    }


def _describe_agent(agent: Agent) -> str:
    return f"the agent {agent[1]!r} of {agent[0]}"


def _format_label(agent: Agent) -> str:
    return f"{agent[1]} of {agent[0]}"


def _join_labels(agents: Iterable[Agent]) -> str:
    return ", ".join(map(_format_label, agents))
