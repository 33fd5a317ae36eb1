"""The controller of agents, with a stand-in for the program that hosts one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow_server.context import ServerContext
from scanflow_server.control.agents import SILENT_S, AgentsController, has_other_code, view_of
from scanflow_server.control.processes import WELL_S
from scanflow_server.store import agents, events
from scanflow_server.store.agents import AgentRow
from tests.waiting import until

HOST = """
import json, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
if json.loads((folder / "agent.json").read_text())["application"].get("dies"):
    sys.exit(1)
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
def controller(context: ServerContext, tmp_path: Path, clock: Clock) -> Iterator[AgentsController]:
    (tmp_path / "host.py").write_text(HOST)
    yield AgentsController(context, program=[str(tmp_path / "host.py")], grace_s=0.2, clock=clock)
    for name in ("tracker", "watcher"):
        if (pid := context.agent_job("a", name).pid) is not None:
            os.kill(pid, signal.SIGKILL)


def want(
    context: ServerContext, version: int = 1, *, name: str = "tracker", team: str = "t", dies: bool = False
) -> None:
    document = {"v": version, **({"dies": True} if dies else {})}
    with context.store.write() as connection:
        agents.put(connection, app="a", name=name, team=team, document=document, source="/x/app.py")


def unwant(context: ServerContext, controller: AgentsController) -> None:
    """Want it no more, and wait until it has ended."""
    with context.store.write() as connection:
        agents.unwant(connection, "a", "tracker")
    until(lambda: gone(context, controller), "it has ended")


def known(context: ServerContext) -> AgentRow:
    with context.store.read() as connection:
        found = agents.get(connection, "a", "tracker")
    assert found is not None
    return found


def hosted(context: ServerContext, controller: AgentsController) -> int:
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


def gone(context: ServerContext, controller: AgentsController) -> bool:
    controller.tick()
    return not context.agent_job("a", "tracker").alive


def test_an_agent_that_is_wanted_is_hosted_once_and_told_where_it_belongs(
    context: ServerContext, controller: AgentsController
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
    context: ServerContext, controller: AgentsController, clock: Clock
) -> None:
    want(context)
    pid = hosted(context, controller)
    os.kill(pid, signal.SIGKILL)
    clock.now += 1.0
    assert hosted(context, controller) != pid
    assert known(context).restarts == 1


def test_an_agent_with_another_application_is_hosted_anew(context: ServerContext, controller: AgentsController) -> None:
    want(context)
    pid = hosted(context, controller)
    want(context, version=2)
    assert hosted(context, controller) != pid
    assert known(context).restarts == 0


def test_an_agent_that_is_wanted_no_more_is_ended(context: ServerContext, controller: AgentsController) -> None:
    want(context)
    hosted(context, controller)
    with context.store.write() as connection:
        agents.unwant(connection, "a", "tracker")
    assert view_of(context, known(context)).state == "stopping"
    until(lambda: gone(context, controller), "it has ended")
    assert view_of(context, known(context)).state == "stopped"


def test_an_agent_that_does_not_end_when_asked_is_made_to(context: ServerContext, controller: AgentsController) -> None:
    want(context)
    folder = context.agent_job("a", "tracker").path / "host"
    folder.mkdir(parents=True)
    (folder / "stubborn").touch()
    hosted(context, controller)
    with context.store.write() as connection:
        agents.unwant(connection, "a", "tracker")
    until(lambda: gone(context, controller), "it was made to end")


def test_an_agent_that_says_nothing_for_long_is_missed_once(
    context: ServerContext, controller: AgentsController, monkeypatch: pytest.MonkeyPatch
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


def crashed(context: ServerContext, controller: AgentsController) -> None:
    """Let one that dies each time be hosted once, and wait until it has died."""
    job = context.agent_job("a", "tracker")
    before = job.starts

    def started() -> bool:
        controller.tick()
        return job.starts > before

    until(started, "it was started")
    until(lambda: not job.alive, "it has died")


def test_an_agent_that_has_died_a_thousand_times_is_hosted_again_and_holds_up_nobody(
    context: ServerContext, controller: AgentsController, clock: Clock
) -> None:
    want(context, dies=True)
    crashed(context, controller)
    job = context.agent_job("a", "tracker")
    (job.path / "starts").write_bytes(b"." * 1025)
    want(context, name="watcher")
    clock.now += 1.0
    crashed(context, controller)
    assert known(context).restarts == 1
    until(lambda: context.agent_job("a", "watcher").pid is not None, "the agent after it is hosted")
    controller.tick()
    assert job.starts == 1026, "there is a pause"


def test_an_agent_whose_folder_cannot_be_made_holds_up_nobody(
    context: ServerContext, controller: AgentsController, caplog: pytest.LogCaptureFixture
) -> None:
    job = context.agent_job("a", "tracker")
    job.path.parent.mkdir(parents=True)
    job.path.touch()
    want(context)
    want(context, name="watcher")
    for _ in range(3):
        controller.tick()
    until(lambda: context.agent_job("a", "watcher").pid is not None, "the other agent is hosted")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, told
    assert told[0].startswith("The agent a/tracker is looked at again later: NotADirectoryError")
    job.path.unlink()
    hosted(context, controller)


def test_the_starts_of_an_agent_that_ran_well_or_is_told_anew_are_counted_anew(
    context: ServerContext, controller: AgentsController, clock: Clock
) -> None:
    want(context)
    hosted(context, controller)
    job = context.agent_job("a", "tracker")
    (job.path / "starts").write_bytes(b"." * 1025)
    controller.tick()
    clock.now += WELL_S
    controller.tick()
    assert job.starts == 0
    (job.path / "starts").write_bytes(b"." * 1025)
    want(context, version=2)
    hosted(context, controller)
    assert job.starts == 1


def test_the_agent_of_another_team_begins_anew_and_the_first_finds_again_what_it_kept(
    context: ServerContext, controller: AgentsController
) -> None:
    journal = context.agent_job("a", "tracker").path / "host" / "journal"
    want(context, team="red")
    hosted(context, controller)
    journal.write_text("what red has sensed")
    unwant(context, controller)
    want(context, team="blue")
    hosted(context, controller)
    assert not journal.exists()
    journal.write_text("what blue has sensed")
    unwant(context, controller)
    want(context, team="red", version=2)
    hosted(context, controller)
    assert journal.read_text() == "what red has sensed"
    unwant(context, controller)
    want(context, team="blue", version=2)
    hosted(context, controller)
    assert journal.read_text() == "what blue has sensed"


def test_an_agent_whose_files_have_changed_is_started_anew_when_it_is_asked_for_again(
    context: ServerContext, controller: AgentsController, tmp_path: Path
) -> None:
    job, folder = context.agent_job("a", "tracker"), tmp_path / "own"
    folder.mkdir()
    (folder / "watch.py").write_text("LEAST = 1")
    (folder / "beside.py").write_text("")
    document = {"app_dir": "own", "agents": [{"name": "tracker", "modules": ["watch.py"]}, {"name": "other"}]}
    source = str(tmp_path / "app.py")

    def again() -> bool:
        anew = has_other_code(job, document, source, "tracker")
        with context.store.write() as connection:
            agents.put(connection, app="a", name="tracker", team="t", document=document, source=source, anew=anew)
        return anew

    assert not again()
    first = hosted(context, controller)
    assert not again()
    controller.tick()
    assert job.pid == first
    for file in ("watch.py", "beside.py"):
        (folder / file).write_text(f"LEAST = 2  # in {file}")
        controller.tick()
        assert job.pid == first, "nobody has asked for it"
        assert again()
        assert view_of(context, known(context)).state == "starting"
        assert hosted(context, controller) != first
        assert not again()
        first = job.pid or 0


def test_a_kill_while_an_agent_changes_teams_mixes_nothing_up(
    context: ServerContext, controller: AgentsController
) -> None:
    job = context.agent_job("a", "tracker")
    want(context, team="red")
    hosted(context, controller)
    (job.path / "host" / "journal").write_text("what red has sensed")
    unwant(context, controller)
    want(context, team="blue")
    hosted(context, controller)
    unwant(context, controller)
    job.path.rename(job.path.with_name(".tracker@blue"))  # as far as a server came that was killed here
    want(context, team="red")
    hosted(context, controller)
    assert (job.path / "host" / "journal").read_text() == "what red has sensed"
