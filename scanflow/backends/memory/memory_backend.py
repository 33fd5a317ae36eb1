"""This process as a backend. Its state is lost when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from scanflow.backends.agent_hosting import AgentProcess, HostedAgent, ignore_message
from scanflow.backends.backend_base import BackendBase
from scanflow.backends.backend_port import OpenModels
from scanflow.backends.memory.memory_batch import MemoryBatch
from scanflow.backends.memory.memory_logs import Log, MemoryLogs
from scanflow.backends.memory.memory_online import MemoryOnline
from scanflow.errors import NotFoundError
from scanflow.settings import Settings

_Key: TypeAlias = tuple[str, str, str]


class Memory(BackendBase):
    """See :class:`~scanflow.backends.backend_port.Backend`.

    Batch workflows run in the thread that drives them, one task after the other; steps are functions. Requests to
    online workflows are answered in the caller's thread. Limits (cores, memory, time-outs, affinity) are not enforced.
    """

    name = "memory"

    def __init__(
        self,
        settings: Settings | None = None,
        open_models: OpenModels | None = None,  # noqa: ARG002  registered models are given as objects
        *,
        models: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create an empty backend.

        Args:
            settings: Only the widest fan-out is used.
            open_models: Not used.
            models: Objects with a method ``predict``, by their address: ``{"models:/cnn/3": Stub()}``.
            clock: Seconds since the epoch.
            sleep: Waits before a retry; tests may advance their clock instead.
        """
        self._batch = MemoryBatch(settings or Settings(), clock=clock, sleep=sleep)
        self._online = MemoryOnline(models or {}, clock=clock)
        self._agents = MemoryAgents()
        self._leases: dict[str, tuple[str, float]] = {}
        self._clock = clock

    def batch(self) -> MemoryBatch:
        """Return the part that runs batch workflows."""
        return self._batch

    def online(self, tracker: str | None = None) -> MemoryOnline:  # noqa: ARG002
        """Return the part that serves online workflows."""
        return self._online

    def agents(self, *, ended: Callable[[], None]) -> MemoryAgents:
        """Return the part that runs agents; ``ended`` is called when an agent ends."""
        self._agents.listeners.append(ended)
        return self._agents

    def lease(self, name: str, *, holder: str, duration_s: float) -> MemoryLease:
        """Return a lease that its holder keeps for ``duration_s`` seconds."""
        return MemoryLease(self._leases, name, holder, duration_s, self._clock)


class MemoryLease:
    """See :class:`~scanflow.backends.backend_port.Lease`."""

    def __init__(
        self,
        holders: dict[str, tuple[str, float]],
        name: str,
        holder: str,
        duration_s: float,
        clock: Callable[[], float],
    ) -> None:
        """``holders``: holder and expiry time of each lease by name, shared by all leases of one backend."""
        self._holders, self._name, self._holder = holders, name, holder
        self._duration_s, self._clock = duration_s, clock

    def take(self) -> bool:
        holder, until = self._holders.get(self._name, ("", 0.0))
        if holder not in {"", self._holder} and self._clock() < until:
            return False
        self._holders[self._name] = (self._holder, self._clock() + self._duration_s)
        return True

    def release(self) -> None:
        if self._holders.get(self._name, ("", 0.0))[0] == self._holder:
            del self._holders[self._name]


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
