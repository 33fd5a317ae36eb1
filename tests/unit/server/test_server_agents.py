"""The controller of agents, with a stand-in for the program that hosts one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow_server.context import Context
from scanflow_server.control.agents import GRACE_S, SILENT_S, AgentsController, view_of
from scanflow_server.store import agents, events
from scanflow_server.store.agents import StoredAgent
from tests.waiting import until

HOST = """
import json, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
if (folder / "stubborn").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / "hosted").write_text(json.loads((folder / "agent.json").read_text())["agent"])
while True:
    time.sleep(1)
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def controller(context: Context, tmp_path: Path, clock: Clock) -> Iterator[AgentsController]:
    (tmp_path / "host.py").write_text(HOST)
    yield AgentsController(context, program=[str(tmp_path / "host.py")], clock=clock)
    if (pid := context.agent_job("a", "tracker").pid) is not None:
        os.kill(pid, signal.SIGKILL)


def want(context: Context, version: int = 1) -> None:
    with context.store.write() as connection:
        agents.put(connection, app="a", name="tracker", team="t", document={"v": version}, source="/x/app.py")


def known(context: Context) -> StoredAgent:
    with context.store.read() as connection:
        found = agents.get(connection, "a", "tracker")
    assert found is not None
    return found


def hosted(context: Context, controller: AgentsController) -> int:
    """Wait until the agent is there, and return its process."""
    folder = context.agent_job("a", "tracker").path / "host"

    def there() -> bool:
        controller.tick()
        return (folder / "hosted").exists()

    until(there, "the agent is hosted")
    pid = context.agent_job("a", "tracker").pid
    assert pid is not None
    (folder / "hosted").unlink()
    return pid


def gone(context: Context, controller: AgentsController) -> bool:
    controller.tick()
    return not context.agent_job("a", "tracker").alive


def test_an_agent_that_is_wanted_is_hosted_once_and_told_where_it_belongs(
    context: Context, controller: AgentsController
) -> None:
    want(context)
    pid = hosted(context, controller)
    controller.tick()
    AgentsController(context, program=["/no/such/program"]).tick()  # as a server would that was started anew
    assert context.agent_job("a", "tracker").pid == pid
    spec = json.loads((context.agent_job("a", "tracker").path / "host" / "agent.json").read_text())
    assert (spec["agent"], spec["source"], spec["application"]) == ("tracker", "/x/app.py", {"v": 1})
    assert spec["home"] == str(context.settings.home)
    assert view_of(context, known(context)).state == "starting"


def test_an_agent_that_is_killed_is_hosted_again_and_that_is_counted(
    context: Context, controller: AgentsController
) -> None:
    want(context)
    pid = hosted(context, controller)
    os.kill(pid, signal.SIGKILL)
    controller._processes.forget(context.agent_job("a", "tracker"))  # as if the pause were over
    assert hosted(context, controller) != pid
    assert known(context).restarts == 1


def test_an_agent_with_another_application_is_hosted_anew(context: Context, controller: AgentsController) -> None:
    want(context)
    pid = hosted(context, controller)
    want(context, version=2)
    assert hosted(context, controller) != pid
    assert known(context).restarts == 0


def test_an_agent_that_is_wanted_no_more_is_ended(context: Context, controller: AgentsController) -> None:
    want(context)
    hosted(context, controller)
    with context.store.write() as connection:
        agents.unwant(connection, "a", "tracker")
    assert view_of(context, known(context)).state == "stopping"
    until(lambda: gone(context, controller), "it has ended")
    assert view_of(context, known(context)).state == "stopped"


def test_an_agent_that_does_not_end_when_asked_is_made_to(
    context: Context, controller: AgentsController, clock: Clock
) -> None:
    want(context)
    folder = context.agent_job("a", "tracker").path / "host"
    folder.mkdir(parents=True)
    (folder / "stubborn").touch()
    hosted(context, controller)
    with context.store.write() as connection:
        agents.unwant(connection, "a", "tracker")
    controller.tick()
    assert not gone(context, controller)
    clock.now += GRACE_S + 1
    until(lambda: gone(context, controller), "it was made to end")


def test_an_agent_that_says_nothing_for_long_is_missed_once(
    context: Context, controller: AgentsController, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(context, "clock", lambda: now)
    with context.store.write() as connection:
        agents.here(connection, app="a", name="tracker", url="http://127.0.0.1:1", pid=7, at=now)
    controller.tick()
    assert view_of(context, known(context)).state == "running"
    now += SILENT_S + 1
    controller.tick()
    controller.tick()
    assert view_of(context, known(context)).state == "silent"
    with context.store.read() as connection:
        assert [event.type for event in events.after(connection, 0)] == ["agent.missed"]
