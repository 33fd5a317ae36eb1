"""The demo over what stands already: it ends what it made, and nothing of anybody else's, whatever fails on the way."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent.agent_records import Event
from scanflow.errors import AlreadyRunningError, InvalidError, ServiceFailedError
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.control_client import ControlClient
from scanflow_client.demo import session
from scanflow_client.signals import defer_signals, end_on_signals

APP = sf.Application(
    name="mnist",
    team="datascience",
    agents=[sf.Agent(name="tracker", template="tracker"), sf.Agent(name="checker", template="checker")],
)


def make_service(app: str = "mnist", team: str = "datascience") -> Any:
    return SimpleNamespace(name="serve", app=app, team=team, url="http://127.0.0.1:9", folder="/nowhere", revisions=())


class Where:
    def __init__(self, *services: Any, failing: Exception | None = None) -> None:
        self.there, self.failing = list(services), failing
        self.asked: list[str] = []
        self.running: list[Any] = []

    def services(self) -> list[Any]:
        return self.there

    def deploy(self, *_: object, **__: object) -> Any:
        self.asked.append("deploy")
        self.there = [make_service()]
        if self.failing is not None:
            raise self.failing
        return self.there[0]

    def delete(self, _name: str) -> None:
        self.asked.append("delete")
        self.there = []

    def runs(self, *, limit: int) -> list[Any]:
        assert limit
        return self.running

    def stop(self, name: str) -> None:
        self.asked.append(f"stop {name}")

    def wait(self, name: str, *, timeout_s: float) -> None:
        assert timeout_s
        self.asked.append(f"wait {name}")


class Plane:
    """Where agents are, by name with their team; ``late``: what another team starts at the last moment."""

    def __init__(self, *, late: str | None = None, **agents: str) -> None:
        self.agents, self.late = agents, late

    def get(self, path: str) -> list[dict[str, Any]]:
        assert path == "/agents"
        ghost = {"app": "mnist", "name": "old", "team": "default", "state": "silent", "pid": None}
        return [ghost, *map(self.view, self.agents)]

    def view(self, name: str) -> dict[str, Any]:
        return {"app": "mnist", "name": name, "team": self.agents[name], "state": "running"}

    def put(self, path: str, _body: object) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name == self.late:
            self.agents[name] = "ops"
            raise AlreadyRunningError("The team 'ops' has an agent mnist/checker.")
        self.agents[name] = "datascience"
        return self.view(name)

    def delete(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        stopped = self.view(name)
        del self.agents[name]
        return stopped


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    @contextmanager
    def quiet(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(wait_until_ready=lambda _startup_s: None)

    monkeypatch.setattr(session, "TrafficProgram", quiet)
    monkeypatch.setattr("scanflow_client.demo.loop.run_loop", lambda *_, **__: "the loop")

    messages: list[str] = []

    def run(where: Where, there: Plane, *, keep: bool = False, **options: Any) -> object:
        deployer: Any = where
        server: Any = there
        demo = session.DemoSession(deployer, ControlClient(lambda: server), APP, Path("loop.py"), say=messages.append)
        return demo.close_the_loop(None, keep=keep, stream=None, **options)

    return run


def test_what_the_demo_made_is_ended_by_it(close: Callable[..., object]) -> None:
    where, there = Where(), Plane()
    assert close(where, there) == "the loop"
    assert (where.asked, there.agents) == (["deploy", "delete"], {})
    where, there = Where(), Plane()
    close(where, there, keep=True)
    assert (where.asked, set(there.agents)) == (["deploy"], {"tracker", "checker"})


def test_each_event_is_shown_and_passed_on(monkeypatch: pytest.MonkeyPatch, close: Callable[..., object]) -> None:
    event = Event(at=0.0, type="drift.found", app="mnist")
    monkeypatch.setattr("scanflow_client.demo.loop.run_loop", lambda *_, tell, **__: tell(event))
    events: list[Event] = []
    close(Where(), Plane(), follow=events.append)
    assert events == [event]


def run_record(name: str, state: str = "running", *, team: str = "datascience", created: float | None = None) -> Any:
    at = time.time() + 60 if created is None else created
    return SimpleNamespace(name=name, app="mnist", team=team, state=state, created=at)


def test_runs_that_the_agents_began_are_stopped_and_no_others(close: Callable[..., object]) -> None:
    where, there = Where(), Plane()
    where.running = [
        run_record("own-run-1"),
        run_record("own-run-2", "succeeded"),
        run_record("older-run-3", created=1.0),
        run_record("their-run-4", team="ops"),
    ]
    close(where, there)
    assert where.asked == ["deploy", "stop own-run-1", "wait own-run-1", "delete"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_control_plane_and_another_one_meanwhile_does_not_cut_that_short(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    raised, messages, there = Raised(monkeypatch, fresh=True), list[str](), Plane()
    server: Any = there
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(raised, "end", lambda: signal.raise_signal(number))
    with (
        pytest.raises(KeyboardInterrupt),
        session.provide_control_plane(Settings(), ControlClient(lambda: server), messages.append, keep=False),
    ):
        signal.raise_signal(number)
    assert raised.ended == 1
    assert messages[-1] == "Stopping what the demo started ..."
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_waits_until_what_is_being_started_is_known() -> None:
    messages, started = list[str](), list[str]()

    def start() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGTERM)
            started.append("a process")
        started.append("more")

    with pytest.raises(KeyboardInterrupt), end_on_signals(messages.append, "ending"):
        start()
    assert (started, messages) == (["a process"], ["ending"])


def test_a_control_plane_that_does_not_come_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = Raised(monkeypatch, fresh=True)

    def raise_interrupt(_: Settings) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control_plane, "start_control_plane", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        up_and_down(Plane())
    assert raised.ended == 1


@pytest.mark.parametrize(
    ("services", "agents", "message"),
    [
        ([make_service(app="shop", team="ops")], {}, r"'serve'.*'shop'.*'ops'.*scanflow delete serve.*SCANFLOW_HOME"),
        ([], {"checker": "ops"}, r"checker.*'ops'.*scanflow agents mnist --stop.*SCANFLOW_HOME"),
        ([make_service()], {}, r"'serve'.*'mnist'.*scanflow delete serve.*SCANFLOW_HOME"),
        ([make_service()], {"tracker": "datascience"}, r"'serve'.*'mnist'.*scanflow delete serve.*SCANFLOW_HOME"),
    ],
)
def test_what_is_there_already_is_refused_and_left(
    close: Callable[..., object], services: list[Any], agents: dict[str, str], message: str
) -> None:
    where, there = Where(*services), Plane(**agents)
    with pytest.raises(InvalidError, match=message):
        close(where, there)
    assert (where.asked, there.agents) == ([], agents)


def test_an_agent_that_another_team_starts_at_the_last_moment_runs_on(close: Callable[..., object]) -> None:
    where, there = Where(), Plane(late="checker")
    with pytest.raises(AlreadyRunningError):
        close(where, there)
    assert (where.asked, there.agents) == (["deploy", "delete"], {"checker": "ops"})


def test_a_deployment_of_its_own_that_fails_is_taken_away(close: Callable[..., object]) -> None:
    where = Where(failing=ServiceFailedError("no memory"))
    with pytest.raises(ServiceFailedError):
        close(where, Plane())
    assert where.asked == ["deploy", "delete"]


# The control plane


class Raised:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fresh: bool) -> None:
        self.ended = 0
        up = SimpleNamespace(server=fresh, up=SimpleNamespace(server=SimpleNamespace(url="http://127.0.0.1:9")))
        monkeypatch.setattr(control_plane, "read_status", lambda _: {"up": not fresh})
        monkeypatch.setattr(control_plane, "start_control_plane", lambda _: up)
        monkeypatch.setattr(control_plane, "stop_control_plane", self._stop)

    def end(self) -> None: ...

    def _stop(self, _: Settings) -> control_plane.DownResult:
        self.ended += 1
        self.end()
        return control_plane.DownResult(
            stopped=[], left=["The agent 'tracker' of mnist still runs."], running=["tracker of mnist"]
        )


def up_and_down(there: Plane) -> list[str]:
    messages: list[str] = []
    server: Any = there
    with session.provide_control_plane(Settings(), ControlClient(lambda: server), messages.append, keep=False):
        pass
    return messages


def test_who_starts_the_plane_ends_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for fresh, ended in ((True, 1), (False, 0)):
        raised = Raised(monkeypatch, fresh=fresh)
        up_and_down(Plane())
        assert raised.ended == ended
    assert capsys.readouterr().err == "The agent 'tracker' of mnist still runs.\n"


def test_a_control_plane_stays_up_for_agents_it_had_before(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = Raised(monkeypatch, fresh=True)
    assert "watcher of mnist" in up_and_down(Plane(watcher="ops"))[-1]
    assert raised.ended == 0
