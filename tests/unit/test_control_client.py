"""Agents, their actions, labels and events from Python, before a server that answers as the real one does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

import scanflow as sf
from scanflow.agent.agent_records import Event
from scanflow.client import ScanflowDeployerClient
from scanflow.deployer.remote_home import UpProcess, UpState, write_up_state
from scanflow.errors import NotFoundError, UnavailableError
from scanflow.transport import ServerClient, server_client
from scanflow_client import control_client
from scanflow_client.control_client import ControlClient
from tests.unit.test_agents_command_line import URL, Answers, action


def asks(answers: Answers) -> ControlClient:
    return ControlClient(lambda: ServerClient(URL, transport=httpx2.MockTransport(answers)))


def events(*ids: int) -> list[Event]:
    return [Event(id=id, at=float(id), type="run.failed", app="shop", subject=f"run/{id}") for id in ids]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.agents(),
        lambda client: client.events(),
        lambda client: client.intents(),
        lambda client: client.why(),
        lambda client: client.approve("a1"),
        lambda client: client.labels(),
        lambda client: client.give_labels({"17": 3}),
        lambda client: client.replay("tracker"),
    ],
)
def test_a_client_without_a_server_says_what_to_start(home: Path, ask: Any) -> None:
    with pytest.raises(UnavailableError, match=r"None is up in .*home.*scanflow up.*sf\.Client\.from_environment"):
        ask(sf.Client())
    with pytest.raises(UnavailableError, match=r"No server is up in .*home.*scanflow up"):
        sf.Client.from_environment()


def test_a_client_without_a_server_names_the_one_that_is_up_and_the_environment_finds_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = home / "server" / "daemons" / "server" / "attempts" / "1"
    attempt.mkdir(parents=True)
    os.mkfifo(attempt / "alive")
    write_up_state(
        home, UpState(server=UpProcess(folder=attempt.parent.parent, pid=1, port=1, url=URL, log="/l"), started=1.0)
    )
    with (attempt / "alive").open("r+b", buffering=0):
        with pytest.raises(UnavailableError, match=r"One is up: sf.Client.from_environment\(\)"):
            sf.Client().agents()
        assert sf.Client.from_environment().url == URL
        monkeypatch.setenv("SCANFLOW_URL", "http://elsewhere:46666")
        assert sf.Client.from_environment().url == "http://elsewhere:46666"


def test_actions_are_listed_explained_and_decided() -> None:
    a1 = action(state="succeeded", verdict="act")
    of_a1 = a1.model_dump(mode="json")
    server = Answers(
        {
            "GET /intents": [of_a1],
            "GET /intents/a1/why": {"lines": ["sample  count", "effect  none yet"], "action": of_a1},
            "POST /intents/a1/approve": of_a1,
            "POST /intents/a1/revert": {**of_a1, "state": "reverted"},
        }
    )
    client = asks(server)
    assert client.intents(app="mnist", state="succeeded") == [a1]
    assert server.asked[-1][1] == {"app": "mnist", "state": "succeeded", "limit": "20"}
    assert str(client.why()) == "sample  count\neffect  none yet"
    assert client.approve("a1", reason="looks right") == a1
    assert server.asked[-1][2] == {"reason": "looks right"}
    assert client.revert().state == "reverted", "the newest that was done"
    server.answers["GET /intents"] = []
    with pytest.raises(NotFoundError, match="No action is waiting for approval"):
        client.refuse()


def test_labels_are_listed_to_the_last_and_given_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "MAX_SEARCHED_ACTIONS", 2)
    queue = [{"id": str(number), "app": "mnist"} for number in range(5)]

    def part(request: httpx2.Request) -> Any:
        first = int(request.url.params.get("offset", 0))
        return queue[first : first + int(request.url.params["limit"])]

    server = Answers({"GET /labels": part, "PATCH /labels": [{"id": "b"}, {"id": "a"}]})
    client = asks(server)
    assert client.labels(limit=None) == queue
    assert client.labels(limit=1) == queue[:1]
    assert [label["id"] for label in client.give_labels({"b": 3, "a": 7}, app="mnist", replace=True)] == ["b", "a"]
    labels = [{"id": "b", "label": 3}, {"id": "a", "label": 7}]
    assert server.asked[-1][2] == {"labels": labels, "app": "mnist", "replace": True}
    client.give_labels(labels)
    assert server.asked[-1][2] == {"labels": labels}


def test_events_are_the_newest_and_following_goes_on_for_as_long_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(server_client, "time", SimpleNamespace(monotonic=lambda: float(len(opened))))

    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/newest"):
            return httpx2.Response(200, json=events(4)[0].model_dump(mode="json"))
        if (last := request.headers.get("last-event-id")) is None:
            return httpx2.Response(200, json=[event.model_dump(mode="json") for event in events(2, 3, 4)])
        opened.append(last)
        new = events(int(last) + 1)[0]
        return httpx2.Response(200, content=f"id: {new.id}\ndata: {new.model_dump_json()}\n\n".encode())

    client = ControlClient(lambda: ServerClient(URL, transport=httpx2.MockTransport(handle)))
    assert client.events(limit=2) == events(3, 4)
    assert client.events(limit=0) == []
    following = client.events(limit=1, follow=True, timeout_s=2.5)  # and each stream takes a second
    assert [event.id for event in following] == [4, 5, 6, 7], "each once, until the time is over"
    assert opened == ["4", "5", "6"], "the stream is opened anew from where it stood"


@pytest.mark.processes
def test_strategies_of_an_application_need_no_server(home: Path, tmp_path: Path) -> None:
    (tmp_path / "tracker.py").write_text(
        "import scanflow as sf\nfrom scanflow.agent import primitives as do\n"
        "sf.Strategy(name='daily', when=sf.every(days=1), then=do.run_workflow('training'))\n"
    )
    tracker = sf.Agent(name="tracker", modules=["tracker.py"])
    app = sf.Application(name="shop", app_dir=str(tmp_path), agents=[tracker])
    assert [strategy["name"] for strategy in sf.Client().strategies(app)] == ["daily"]


def test_the_deployer_client_has_the_same_methods_and_what_they_return_may_be_awaited(home: Path) -> None:
    client = ScanflowDeployerClient()

    async def await_runs() -> Any:
        return await client.runs(limit=3)

    assert client.runs(limit=3) == asyncio.run(await_runs()) == []
    with pytest.raises(UnavailableError, match="scanflow up"):
        client.agents()
    with pytest.raises(AttributeError, match="fly"):
        client.fly()
