"""The controller of agents, with a stand-in for the program that hosts one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scanflow.backends.agent_hosting import AgentProcess, HostedAgent
from scanflow.backends.local.agent_processes import LocalAgents
from scanflow.errors import UnavailableError
from scanflow.http.home_token import derive_peer_token, read_home_token
from scanflow.processes.background_jobs import HEALTHY_S, Job
from scanflow_server.control.agent_controller import (
    AgentsController,
    compute_version,
    describe_agent,
    fetch_journal,
    has_other_code,
)
from scanflow_server.heartbeats import SILENT_S, Heartbeats
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, event_store
from scanflow_server.store.agent_store import AgentRow
from tests.permissions import permit_strategies
from tests.unit.server.server_rows import read_from_store
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

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


class Hosting:
    """The agent ``tracker``, its controller, and a clock that is moved by hand."""

    def __init__(self, context: ServerContext, host: Path) -> None:
        self.context, self.now = context, 0.0
        context.agents = self.build_agents([str(host)])
        self.controller = AgentsController(context)
        folder = context.settings.folder / "agents" / "a"
        self.job, self.watcher = Job(folder / "tracker"), Job(folder / "watcher")
        self.journal = self.job.path / "host" / "journal"
        self.tick = self.controller.tick

    def build_agents(self, program: list[str]) -> LocalAgents:
        context = self.context
        return LocalAgents(
            context.settings.home,
            ended=context.work_notifier.notify,
            program=program,
            grace_s=0.2,
            clock=lambda: self.now,
        )

    def want(self, version: int = 1, *, name: str = "tracker", team: str = "t", dies: bool = False) -> None:
        document = {"v": version, **({"dies": True} if dies else {})}
        with self.context.store.write() as connection:
            agent_store.put(connection, app="a", name=name, team=team, document=document, source="/x/app.py")

    def unwant(self) -> None:
        with self.context.store.write() as connection:
            agent_store.mark_unwanted(connection, "a", "tracker")

    def remove(self) -> None:
        self.unwant()
        self.wait_until(lambda: not self.job.alive, "it has ended")

    def wait_until_hosted(self) -> int:
        """Wait until the agent is there, and return its process."""
        self.wait_until((self.job.path / "host" / "hosted").exists, "the agent is hosted")
        (self.job.path / "host" / "hosted").unlink()
        assert self.job.pid is not None
        return self.job.pid

    def crash(self) -> None:
        before = self.job.starts
        self.wait_until(lambda: self.job.starts > before, "it was started")
        wait_until(lambda: not self.job.alive, "it has died")

    def wait_until(self, so: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self.tick()
            return so()

        wait_until(look, what)

    @property
    def row(self) -> AgentRow:
        return read_from_store(self.context.store, agent_store.find, "a", "tracker")

    @property
    def state(self) -> str:
        return describe_agent(self.context, self.row).state


@pytest.fixture
def hosting(context: ServerContext, tmp_path: Path) -> Iterator[Hosting]:
    (tmp_path / "host.py").write_text(HOST)
    hosting = Hosting(context, tmp_path / "host.py")
    yield hosting
    for job in (hosting.job, hosting.watcher):
        if (pid := job.pid) is not None:
            os.kill(pid, signal.SIGKILL)


def test_an_agent_is_hosted_once_while_it_is_wanted_again_after_a_kill_or_a_change_and_ended_after_that(
    hosting: Hosting,
) -> None:
    hosting.want()
    pid = hosting.wait_until_hosted()
    hosting.tick()
    agents_before, hosting.context.agents = hosting.context.agents, hosting.build_agents(["/no/such/program"])
    AgentsController(hosting.context).tick()  # as a server would that was started anew
    hosting.context.agents = agents_before
    assert hosting.job.pid == pid
    spec = json.loads((hosting.job.path / "host" / "agent.json").read_text())
    assert (spec["agent"], spec["source"], spec["application"]) == ("tracker", "/x/app.py", {"v": 1})
    assert spec["home"] == str(hosting.context.settings.home)
    assert hosting.state == "starting"
    hosting.want(version=2)
    assert hosting.wait_until_hosted() != pid
    assert hosting.row.restarts == 0
    pid = hosting.job.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    hosting.now += 1.0
    assert hosting.wait_until_hosted() != pid
    assert hosting.row.restarts == 1
    hosting.unwant()
    assert hosting.state == "stopping"
    hosting.wait_until(lambda: not hosting.job.alive, "it has ended")
    assert hosting.state == "stopped"


def test_an_agent_that_does_not_end_when_requested_is_killed(hosting: Hosting) -> None:
    hosting.want()
    folder = hosting.job.path / "host"
    folder.mkdir(parents=True)
    (folder / "stubborn").touch()
    hosting.wait_until_hosted()
    hosting.unwant()
    hosting.wait_until(lambda: not hosting.job.alive, "it was made to end")


def test_an_agent_that_says_nothing_for_long_is_missed_once(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(hosting.context, "clock", lambda: now)
    monkeypatch.setattr(hosting.context, "heartbeats", Heartbeats(0.0))
    permit_strategies(hosting.context.store, app="a", agent="tracker", team="t")
    with hosting.context.store.write() as connection:
        agent_store.record_address(connection, app="a", name="tracker", url="http://127.0.0.1:1", pid=7, at=now)
    hosting.tick()
    assert hosting.state == "running"
    now += SILENT_S + 1
    hosting.tick()
    hosting.tick()
    assert hosting.state == "silent"
    with hosting.context.store.read() as connection:
        assert [event.type for event in event_store.list_after(connection, 0)] == ["agent.missed"]


def test_a_journal_is_read_where_the_agent_is_hosted_whatever_it_says_of_its_place(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, object]] = []

    def answer_request(url: str, path: str, *, token: str, timeout_s: float) -> list[dict[str, Any]]:
        asked.append((url, path, token))
        return [{"id": 8, "within": timeout_s}]

    monkeypatch.setattr("scanflow_server.control.agent_controller.fetch_reply", answer_request)
    hosting.want()
    with pytest.raises(UnavailableError, match=r"a:tracker is starting.*agents --start '?[^ ]*:tracker"):
        fetch_journal(hosting.context, hosting.row, after=0, limit=10)
    version, here = compute_version(hosting.context, hosting.row), "http://127.0.0.1:5"
    process = AgentProcess("a", "t", "tracker", alive=True, started=True, version=version)
    monkeypatch.setattr(hosting.context.agents, "show", lambda *_: process)
    for address, url, seen in (
        (here, None, here),
        ("http://evil.example", None, None),
        ("http://evil.example", "http://agent-tracker.a.svc:8080", "http://agent-tracker.a.svc:8080"),
    ):
        process = replace(process, url=url)
        with hosting.context.store.write() as connection:
            now = hosting.context.clock()
            agent_store.record_address(connection, app="a", name="tracker", url=address, pid=7, at=now)
        asked.clear()
        if seen is None:
            with pytest.raises(UnavailableError, match="outside this server"):
                fetch_journal(hosting.context, hosting.row, after=7, limit=10)
        else:
            assert [entry["id"] for entry in fetch_journal(hosting.context, hosting.row, after=7, limit=10)] == [8]
        home = read_home_token(hosting.context.settings.home)
        assert home is not None
        wanted = [(seen, "/journal?after=7&limit=10", derive_peer_token(home, "a", "t"))]
        assert asked == ([] if seen is None else wanted)


def test_an_agent_that_has_died_a_thousand_times_is_hosted_again_and_holds_up_nobody(hosting: Hosting) -> None:
    hosting.want(dies=True)
    hosting.crash()
    (hosting.job.path / "starts").write_bytes(b"." * 1025)
    hosting.want(name="watcher")
    hosting.now += 1.0
    hosting.crash()
    assert hosting.row.restarts == 1
    wait_until(lambda: hosting.watcher.pid is not None, "the agent after it is hosted")
    hosting.tick()
    assert hosting.job.starts == 1026, "there is a pause"


def test_an_agent_where_the_folder_cannot_be_made_holds_up_nobody(
    hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    hosting.job.path.parent.mkdir(parents=True)
    hosting.job.path.touch()
    hosting.want()
    hosting.want(name="watcher")
    for _ in range(3):
        hosting.tick()
    wait_until(lambda: hosting.watcher.pid is not None, "the other agent is hosted")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1, messages
    assert messages[0].startswith("The agent a/tracker could not be processed and will be retried: NotADirectoryError")
    hosting.job.path.unlink()
    hosting.wait_until_hosted()


def test_the_starts_of_an_agent_that_ran_well_or_is_reported_again_are_counted_from_zero(hosting: Hosting) -> None:
    hosting.want()
    hosting.wait_until_hosted()
    (hosting.job.path / "starts").write_bytes(b"." * 1025)
    hosting.tick()
    hosting.now += HEALTHY_S
    hosting.tick()
    assert hosting.job.starts == 0
    (hosting.job.path / "starts").write_bytes(b"." * 1025)
    hosting.want(version=2)
    hosting.wait_until_hosted()
    assert hosting.job.starts == 1


def test_the_agent_of_another_team_starts_over_and_the_first_finds_again_what_it_kept(hosting: Hosting) -> None:
    journal = hosting.journal
    hosting.want(team="red")
    hosting.wait_until_hosted()
    journal.write_text("what red has sensed")
    hosting.remove()
    hosting.want(team="blue")
    hosting.wait_until_hosted()
    assert not journal.exists()
    journal.write_text("what blue has sensed")
    hosting.remove()
    hosting.want(team="red", version=2)
    hosting.wait_until_hosted()
    assert journal.read_text() == "what red has sensed"
    hosting.remove()
    hosting.want(team="blue", version=2)
    hosting.wait_until_hosted()
    assert journal.read_text() == "what blue has sensed"
    hosting.remove()
    hosting.job.path.rename(hosting.job.path.with_name(".tracker@blue"))  # as far as a server came that was killed here
    hosting.want(team="red")
    hosting.wait_until_hosted()
    assert journal.read_text() == "what red has sensed"


def test_an_agent_with_changed_files_is_restarted_when_it_is_requested_again(hosting: Hosting, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "watch.py").write_text("LEAST = 1")
    (folder / "beside.py").write_text("")
    document = {"app_dir": "own", "agents": [{"name": "tracker", "modules": ["watch.py"]}, {"name": "other"}]}
    source = str(tmp_path / "app.py")

    def again() -> bool:
        anew = has_other_code(hosting.context.agents.show("a", "t", "tracker"), document, source)
        with hosting.context.store.write() as connection:
            agent_store.put(
                connection, app="a", name="tracker", team="t", document=document, source=source, restart=anew
            )
        return anew

    assert not again()
    first = hosting.wait_until_hosted()
    assert not again()
    hosting.tick()
    assert hosting.job.pid == first
    for file in ("watch.py", "beside.py"):
        (folder / file).write_text(f"LEAST = 2  # in {file}")
        hosting.tick()
        assert hosting.job.pid == first, "nobody has asked for it"
        assert again()
        assert hosting.state == "starting"
        assert hosting.wait_until_hosted() != first
        assert not again()
        first = hosting.job.pid or 0


def test_what_was_put_right_of_an_agent_is_an_event(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_agent: HostedAgent, *, observe: Callable[[str], object]) -> bool:
        observe("recreated the Service, which another client deleted")
        return False

    monkeypatch.setattr(context.agents, "start", start)
    with context.store.write() as connection:
        agent_store.put(connection, app="a", name="tracker", team="t", document={"v": 1}, source="/x/app.py")
    AgentsController(context).tick()
    with context.store.read() as connection:
        (event,) = [event_ for event_ in event_store.list_after(connection, 0) if event_.type == "agent.mended"]
    assert (event.subject, event.app) == ("agent/tracker", "a")
    assert event.data == {"text": "recreated the Service, which another client deleted"}
