"""The contract of agent backends: subclass :class:`AgentsContract`, and provide a backend."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import pytest

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.application_files import dump_document
from scanflow.backends.agent_hosting import AgentBackend, AgentProcess, HostedAgent
from scanflow.errors import NotFoundError

__all__ = ["AgentsContract"]

KEY = ("shop", "red", "watcher")


class AgentsContract(ABC):
    """The contract of :class:`~scanflow.backends.agent_hosting.AgentBackend`."""

    patience_s = 30.0

    @abstractmethod
    @pytest.fixture
    def agents(self) -> AgentBackend:
        """Return a backend that hosts none of the contract's agents yet."""

    def agent(self, version: str = "1 http://server") -> HostedAgent:
        """Return the agent to host. Its program prints its name and runs until it is stopped."""

        app = Application(name="shop", team="red", agents=[Agent(name="watcher", template="tracker")])
        document = dump_document(app)
        return HostedAgent(*KEY, document=document, version=version, code="c0de", environment={"PATH": "/usr/bin"})

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        give_up = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < give_up, f"Timed out waiting until {what}."
            time.sleep(0.05)

    def start(self, agents: AgentBackend, agent: HostedAgent) -> AgentProcess:
        """Start an agent, and wait until it runs in the requested version."""

        def runs() -> bool:
            agents.start(agent)
            now = agents.show(*KEY)
            return now.started and now.version == agent.version

        self.wait_until(runs, "it runs")
        return agents.show(*KEY)

    def test_one_that_never_was_is_not_alive_and_has_no_log(self, agents: AgentBackend) -> None:
        assert agents.show(*KEY) == AgentProcess(*KEY)
        with pytest.raises(NotFoundError, match="never started"):
            agents.logs(*KEY)

    def test_one_that_is_wanted_runs_once_and_is_listed(self, agents: AgentBackend) -> None:
        first = self.start(agents, self.agent())
        assert (first.alive, first.version, first.code, first.failure) == (True, "1 http://server", "c0de", None)
        assert not agents.start(self.agent())
        assert agents.show(*KEY).pid == first.pid
        assert [(process.app, process.team, process.name) for process in agents.agents()] == [KEY]
        reader = agents.logs(*KEY)
        try:
            self.wait_until(lambda: any(b"watcher" in part.data for part in reader.read().parts), "it wrote its name")
        finally:
            reader.close()

    def test_another_version_replaces_the_one_that_runs(self, agents: AgentBackend) -> None:
        self.start(agents, self.agent())
        second = self.start(agents, replace(self.agent(), version="2 http://server", code="0ther"))
        assert (second.version, second.code) == ("2 http://server", "0ther")

    def test_one_that_is_stopped_ends_and_may_be_started_again(self, agents: AgentBackend) -> None:
        self.start(agents, self.agent())
        agents.stop(*KEY)
        self.wait_until(lambda: not agents.show(*KEY).alive, "it has ended")
        assert agents.agents() == []
        agents.stop(*KEY)
        self.start(agents, self.agent())
