"""Agents whose state is simulated; no process is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from scanflow.backends.agent_hosting import AgentProcess, HostedAgent, ignore_message
from scanflow.backends.memory.memory_logs import Log, MemoryLogs
from scanflow.errors import NotFoundError

_Key: TypeAlias = tuple[str, str, str]


class MemoryAgents:
    """See :class:`~scanflow.backends.agent_hosting.AgentBackend`. For tests of callers."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        """Called when an agent has ended."""

        self._agents: dict[_Key, AgentProcess] = {}
        self._logs: dict[_Key, Log] = {}

    def start(self, agent: HostedAgent, *, observe: Callable[[str], object] = ignore_message) -> bool:  # noqa: ARG002
        key = (agent.app, agent.team, agent.name)
        now = self.show(*key)
        if now.alive:
            if now.version != agent.version:
                self.stop(*key)
            return False
        again = now.version == agent.version
        self._agents[key] = AgentProcess(*key, alive=True, started=True, version=agent.version, code=agent.code)
        self._logs.setdefault(key, Log()).write(f"agent {agent.name} of {agent.app}\n".encode())
        return again

    def stop(self, app: str, team: str, name: str) -> None:
        self.crash(app, team, name, None)

    def crash(self, app: str, team: str, name: str, why: str | None) -> None:
        """Simulate the crash of an agent; ``why``: its failure."""
        now = self.show(app, team, name)
        if now.alive:
            self._agents[app, team, name] = replace(now, alive=False, started=False, failure=why)
            for listener in self.listeners:
                listener()

    def show(self, app: str, team: str, name: str) -> AgentProcess:
        return self._agents.get((app, team, name), AgentProcess(app, team, name))

    def agents(self) -> list[AgentProcess]:
        return [self._agents[key] for key in sorted(self._agents) if self._agents[key].alive]

    def logs(self, app: str, team: str, name: str) -> MemoryLogs:
        key = (app, team, name)
        if key not in self._logs:
            raise NotFoundError(f"The agent {app}/{name} was never started here. Start it: scanflow agents --start")
        return MemoryLogs(lambda: ([(name, self._logs[key])], not self.show(*key).alive))
