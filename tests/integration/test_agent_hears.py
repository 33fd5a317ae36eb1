"""An agent's process hears what a real server lists: each event once, whoever is killed in between."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_agent_host import Hosted
from tests.server import ServerProcess, body_of
from tests.waiting import until

CODE = """
import scanflow as sf
from scanflow.agent.sensors.sensor import sensor

@sensor(sf.any_of(sf.on_event("part.made", kind="wheel"), sf.every(hours=1)))
async def wheels(event):
    return None if event is None else event.data["n"]

@sensor(sf.on_call())
def unheard():
    return 1
"""


@pytest.fixture
def server(home: Path) -> Iterator[ServerProcess]:
    home.mkdir(parents=True, exist_ok=True)
    process = ServerProcess(home)
    process.start()
    yield process
    process.close()


@pytest.fixture
def agent(tmp_path: Path, server: ServerProcess) -> Iterator[Hosted]:
    happen(server, -3)  # before its first start: the past, which no test hears of
    made = Hosted(tmp_path / "tracker", server, CODE).start()
    until(lambda: made.ask("GET", "/healthz")["hears"], "it hears")
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def happen(server: ServerProcess, *numbers: int, kind: str = "wheel", app: str = "mnist") -> list[int]:
    """Tell the server of events; return their numbers in its list."""
    told = [{"at": 1.0, "type": "part.made", "app": app, "data": {"kind": kind, "n": number}} for number in numbers]
    reply = server.api.post("/events", json=told)
    assert reply.status_code == 201, reply.text
    return [one["id"] for one in reply.json()]


def values(agent: Hosted) -> list[Any]:
    return [entry["body"]["value"] for entry in agent.journal("sample")]


def test_each_event_fires_once_across_kills_of_the_agent_and_of_the_server(
    server: ServerProcess, agent: Hosted
) -> None:
    happen(server, -1, kind="door")
    happen(server, -2, app="another")
    happen(server, 0, 1, 2)
    until(lambda: len(values(agent)) >= 3, "three were heard")
    agent.kill()
    happen(server, 3, 4)
    agent.start()
    until(lambda: len(values(agent)) >= 5, "what happened meanwhile was heard")
    server.kill()
    server.start()
    happen(server, 5, 6)
    until(lambda: len(values(agent)) >= 7, "what happened after the server came back was heard")
    assert values(agent) == [0, 1, 2, 3, 4, 5, 6]
    (wheels,) = [one for one in agent.ask("GET", "/sensors") if one["name"] == "wheels"]
    assert (wheels["fired"], wheels["missed"], wheels["errors"]) == (7, 0, 0)


@pytest.mark.endurance
def test_killed_at_random_moments_it_fires_once_on_each_event(server: ServerProcess, agent: Hosted) -> None:
    chance = random.Random(11)
    over = threading.Event()
    told = 0

    def tell() -> None:
        nonlocal told
        while not over.is_set() and told < 3000:
            happen(server, *range(told, told + 20))
            told += 20

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        for _ in range(5):
            _until_heard(agent, min(2900, _heard(agent) + chance.randrange(1, 150)))
            agent.kill()
            agent.start()
    finally:
        over.set()
        teller.join(60)
    until(lambda: len(values(agent)) >= told, "all were heard")
    assert sorted(values(agent)) == list(range(told))


def test_a_list_that_was_begun_anew_is_known_by_its_events_and_heard_from_then_on(
    server: ServerProcess, agent: Hosted
) -> None:
    happen(server, 0, 1, 2, 3)
    until(lambda: len(values(agent)) >= 4, "four were heard")
    server.kill()
    for file in (server.home / "server").glob("scanflow.db*"):
        file.unlink()
    server.start()
    until(lambda: agent.journal("hearing"), "it saw that")
    until(lambda: agent.ask("GET", "/healthz")["hears"], "it hears again")
    (last,) = happen(server, 10)
    assert last < 4, "the number was heard before, of another event"
    until(lambda: len(values(agent)) >= 5, "it was heard")
    assert values(agent) == [0, 1, 2, 3, 10]
    assert agent.journal("hearing")[0]["body"]["began_anew"]


def test_a_backlog_of_thousands_is_heard_and_none_of_it_is_silently_dropped(
    server: ServerProcess, agent: Hosted
) -> None:
    agent.kill()
    for start in range(0, 5000, 1000):
        happen(server, *range(start, start + 1000))
    agent.start()
    until(lambda: _accounted(agent) >= 5000, "all are accounted for")
    assert _accounted(agent) == 5000


def _heard(agent: Hosted) -> int:
    number: int = agent.ask("GET", "/healthz")["heard"]
    return number


def _until_heard(agent: Hosted, number: int) -> None:
    until(lambda: _heard(agent) >= number, f"event {number} was heard")


def _accounted(agent: Hosted) -> int:
    (wheels,) = [one for one in agent.ask("GET", "/sensors") if one["name"] == "wheels"]
    waiting = _waiting(agent.folder)
    count: int = wheels["fired"] + wheels["missed"]
    return count if waiting == 0 else 0


def _waiting(folder: Path) -> int:
    connection = sqlite3.connect(f"file:{folder / 'agent.db'}?mode=ro", uri=True)
    try:
        (count,) = connection.execute("SELECT count(*) FROM calls WHERE NOT done").fetchone()
    finally:
        connection.close()
    return int(count)


APP = """
import scanflow as sf

app = sf.Application(
    name="mnist",
    workflows=[sf.Workflow(name="training", nodes=[sf.Executor(name="train", mainfile="own.py")])],
    agents=[sf.Agent(name="tracker", modules=["own.py"])],
)
"""
FAILS = """
import scanflow as sf
from scanflow.agent.sensors.sensor import sensor

@sensor(sf.every(seconds=0.1))
async def look():
    raise ValueError("the camera is off")
"""


def test_the_server_says_why_an_agent_does_not_come_up_and_what_fails_in_it(
    tmp_path: Path, server: ServerProcess
) -> None:
    source = tmp_path / "app.py"
    source.write_text(APP)
    (tmp_path / "own.py").write_text("import nothing_of_that_name\n")

    def told() -> dict[str, Any]:
        found: dict[str, Any] = server.api.get("/agents/mnist/tracker").json()
        return found

    server.api.put("/agents/mnist/tracker", json=body_of(source)).raise_for_status()
    try:
        until(lambda: "nothing_of_that_name" in str(told()["error"]), "it says why it does not come up")
        (tmp_path / "own.py").write_text(FAILS)
        until(lambda: "the camera is off" in str(told()["error"]), "it says what fails")
        now = told()
        assert now["state"] == "running"
        assert now["error"].startswith("The sensor 'look' fails again and again since ")
        assert json.dumps(server.api.get("/agents").json()[0]["error"]) == json.dumps(told()["error"])
    finally:
        server.api.delete("/agents/mnist/tracker")
        until(lambda: told()["state"] == "stopped", "it has ended")
    assert told()["error"] is None
