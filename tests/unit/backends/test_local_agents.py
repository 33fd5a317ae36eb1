"""Agents on this machine and in memory: what the port says of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.backends.local.agent_processes import LocalAgents
from scanflow.backends.memory import Memory
from scanflow.backends.memory.memory_backend import MemoryAgents
from scanflow.testing.agents import KEY, AgentsContract
from tests.waiting import PATIENCE_S

PROGRAM = """
import json, pathlib, sys, time
print(json.loads((pathlib.Path(sys.argv[1]) / "agent.json").read_text())["agent"], flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.processes
class TestLocalAgents(AgentsContract):
    patience_s = PATIENCE_S

    @pytest.fixture
    def agents(self, tmp_path: Path) -> Iterator[LocalAgents]:
        (tmp_path / "program.py").write_text(PROGRAM)
        agents = LocalAgents(tmp_path / "home", ended=lambda: None, program=[str(tmp_path / "program.py")], grace_s=0.2)
        yield agents
        agents.stop(*KEY)
        self.wait_until(lambda: not agents.show(*KEY).alive, "it has ended")

    def test_one_that_an_earlier_version_started_goes_on(self, agents: LocalAgents, tmp_path: Path) -> None:
        agent = self.agent()
        agents.start(agent)
        self.wait_until(lambda: agents.show(*KEY).alive, "it runs")
        [written] = (tmp_path / "home").rglob("version")
        written.rename(written.with_name("told"))
        before = agents.show(*KEY)
        assert (before.version, agents.start(agent)) == (agent.version, False)
        assert (agents.show(*KEY).alive, agents.show(*KEY).pid) == (True, before.pid)


class TestMemoryAgents(AgentsContract):
    @pytest.fixture
    def agents(self) -> MemoryAgents:
        return Memory().agents(ended=lambda: None)


def test_one_in_memory_that_crashed_is_started_again_and_says_why_it_died() -> None:
    ended: list[bool] = []
    agents = Memory().agents(ended=lambda: ended.append(True))
    agent = TestMemoryAgents().agent()
    agents.start(agent)
    agents.crash(*KEY, "boom")
    assert (ended, agents.show(*KEY).failure) == ([True], "boom")
    assert agents.start(agent), "it was started again"


@pytest.mark.processes
def test_an_agent_of_a_home_that_was_moved_learns_where_it_is_now(tmp_path: Path) -> None:
    contract = TestLocalAgents()
    (program := tmp_path / "program.py").write_text(PROGRAM)
    before, now = tmp_path / "before", tmp_path / "now"
    for home in (before, now):
        if home == now:
            before.rename(now)
        agents = LocalAgents(home, ended=lambda: None, program=[str(program)], grace_s=0.2)
        contract.start(agents, contract.agent())
        spec = json.loads((home / "server" / "agents" / "shop" / "watcher" / "host" / "agent.json").read_text())
        assert spec["home"] == str(home)
        agents.stop(*KEY)
        contract.wait_until(lambda agents=agents: not agents.show(*KEY).alive, "it has ended")  # type: ignore[misc]
