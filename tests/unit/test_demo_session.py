"""The demo over what stands already: it ends what it made, and nothing of anybody else's, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import AlreadyRunningError, InvalidError, ServiceFailedError
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.demo import session

APP = sf.Application(
    name="mnist",
    team="datascience",
    agents=[sf.Agent(name="tracker", template="tracker"), sf.Agent(name="checker", template="checker")],
)


def served(app: str = "mnist", team: str = "datascience") -> Any:
    return SimpleNamespace(name="serve", app=app, team=team, url="http://127.0.0.1:9", folder="/nowhere", revisions=())


class Where:
    def __init__(self, *services: Any, failing: Exception | None = None) -> None:
        self.there, self.failing = list(services), failing
        self.asked: list[str] = []

    def services(self) -> list[Any]:
        return self.there

    def deploy(self, *_: object, **__: object) -> Any:
        self.asked.append("deploy")
        self.there = [served()]
        if self.failing is not None:
            raise self.failing
        return self.there[0]

    def delete(self, _name: str) -> None:
        self.asked.append("delete")
        self.there = []


class Plane:
    """Where agents are, by name with their team; ``late``: what another team starts at the last moment."""

    def __init__(self, *, late: str | None = None, **agents: str) -> None:
        self.agents, self.late = agents, late

    def get(self, path: str) -> list[dict[str, Any]]:
        assert path == "/agents"
        ghost = {"app": "mnist", "name": "old", "team": "default", "state": "silent", "pid": None}
        found = [{"app": "mnist", "name": name, "team": team, "state": "running"} for name, team in self.agents.items()]
        return [ghost, *found]

    def put(self, path: str, _body: object) -> None:
        name = path.rpartition("/")[2]
        if name == self.late:
            self.agents[name] = "ops"
            raise AlreadyRunningError("The team 'ops' has an agent mnist/checker.")
        self.agents[name] = "datascience"

    def delete(self, path: str) -> None:
        del self.agents[path.rpartition("/")[2]]


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    @contextmanager
    def quiet(*_: object, **__: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(session, "TrafficProgram", quiet)
    monkeypatch.setattr("scanflow_client.demo.loop.run_loop", lambda *_, **__: "the loop")

    said: list[str] = []

    def run(where: Where, there: Plane, *, keep: bool = False) -> object:
        deployer: Any = where
        server: Any = there
        observer = nullcontext(lambda _change: None)
        say = said.append
        path = Path("loop.py")
        return session.close_the_loop(
            deployer, server, APP, path, None, keep=keep, observer=observer, say=say, quiet=True
        )

    return run


def test_what_the_demo_made_is_ended_by_it(close: Callable[..., object]) -> None:
    where, there = Where(), Plane()
    assert close(where, there) == "the loop"
    assert (where.asked, there.agents) == (["deploy", "delete"], {})


def test_what_it_made_runs_on_where_it_is_to_be_kept(close: Callable[..., object]) -> None:
    where, there = Where(), Plane()
    close(where, there, keep=True)
    assert (where.asked, set(there.agents)) == (["deploy"], {"tracker", "checker"})


def test_another_application_s_service_is_refused_with_what_to_do_and_runs_on(close: Callable[..., object]) -> None:
    where, there = Where(served(app="shop", team="ops")), Plane()
    with pytest.raises(InvalidError, match=r"'serve'.*'shop'.*'ops'.*scanflow delete serve.*SCANFLOW_HOME"):
        close(where, there)
    assert (where.asked, there.agents) == ([], {})


def test_another_team_s_agents_are_refused_before_anything_is_deployed_and_run_on(close: Callable[..., object]) -> None:
    where, there = Where(), Plane(checker="ops")
    with pytest.raises(InvalidError, match=r"checker.*'ops'.*scanflow agents mnist --stop.*SCANFLOW_HOME"):
        close(where, there)
    assert (where.asked, there.agents) == ([], {"checker": "ops"})


def test_an_agent_that_another_team_starts_at_the_last_moment_runs_on(close: Callable[..., object]) -> None:
    where, there = Where(), Plane(late="checker")
    with pytest.raises(AlreadyRunningError):
        close(where, there)
    assert (where.asked, there.agents) == (["deploy", "delete"], {"checker": "ops"})


@pytest.mark.parametrize("agents", [{}, {"tracker": "datascience"}], ids=["by hand", "kept"])
def test_a_demo_that_is_there_already_is_left_as_it_is(close: Callable[..., object], agents: dict[str, str]) -> None:
    where, there = Where(served()), Plane(**agents)
    with pytest.raises(InvalidError, match=r"'serve'.*'mnist'.*scanflow delete serve.*SCANFLOW_HOME"):
        close(where, there)
    assert (where.asked, there.agents) == ([], agents)


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
        monkeypatch.setattr(control_plane, "up", lambda _: up)
        monkeypatch.setattr(control_plane, "down", self._down)

    def _down(self, _: Settings) -> control_plane.DownResult:
        self.ended += 1
        return control_plane.DownResult(
            stopped=[], left=["The agent 'tracker' of mnist still runs."], running=["tracker of mnist"]
        )


def up_and_down(there: Plane) -> list[str]:
    said: list[str] = []
    server: Any = there
    with session.temporary_control_plane(Settings(), lambda: server, said.append, keep=False):
        pass
    return said


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
