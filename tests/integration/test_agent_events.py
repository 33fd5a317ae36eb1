"""An agent's process hears what a real server lists: each event once, whoever is killed in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_agent_host import Hosted
from tests.server import ServerProcess, load_body
from tests.waiting import wait_until

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
def agent(tmp_path: Path, server: ServerProcess) -> Iterator[Hosted]:
    happen(server, -3)  # before its first start: the past, which no test hears of
    agent = Hosted(tmp_path / "tracker", server, CODE).start()
    wait_until(lambda: agent.ask("GET", "/healthz")["subscribed"], "it hears")
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()


def happen(server: ServerProcess, *numbers: int, kind: str = "wheel", app: str = "mnist") -> list[int]:
    events = [{"at": 1.0, "type": "part.made", "app": app, "data": {"kind": kind, "n": number}} for number in numbers]
    reply = server.api.post("/events", json=events)
    assert reply.status_code == 201, reply.text
    return [event["id"] for event in reply.json()]


def values(agent: Hosted) -> list[Any]:
    return [entry["body"]["value"] for entry in agent.journal("sample")]


def test_each_event_fires_once_across_kills_of_the_agent_and_of_the_server(
    server: ServerProcess, agent: Hosted
) -> None:
    happen(server, -1, kind="door")
    happen(server, -2, app="another")
    happen(server, 0, 1, 2)
    wait_until(lambda: len(values(agent)) >= 3, "three were heard")
    agent.kill()
    happen(server, 3, 4)
    agent.start()
    wait_until(lambda: len(values(agent)) >= 5, "what happened meanwhile was heard")
    server.kill()
    server.start()
    happen(server, 5, 6)
    wait_until(lambda: len(values(agent)) >= 7, "what happened after the server came back was heard")
    assert values(agent) == [0, 1, 2, 3, 4, 5, 6]
    (wheels,) = [sensor for sensor in agent.ask("GET", "/sensors") if sensor["name"] == "wheels"]
    assert (wheels["fired"], wheels["missed"], wheels["errors"]) == (7, 0, 0)


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

    def read_agent() -> dict[str, Any]:
        answer: dict[str, Any] = server.api.get("/agents/mnist/tracker").json()
        return answer

    server.api.put("/agents/mnist/tracker", json=load_body(source)).raise_for_status()
    try:
        wait_until(lambda: "nothing_of_that_name" in str(read_agent()["error"]), "it says why it does not come up")
        (tmp_path / "own.py").write_text(FAILS)
        wait_until(lambda: "the camera is off" in str(read_agent()["error"]), "it says what fails")
        now = read_agent()
        assert now["state"] == "running"
        assert now["error"].startswith("The sensor 'look' fails repeatedly since ")
        assert json.dumps(server.api.get("/agents").json()[0]["error"]) == json.dumps(read_agent()["error"])
    finally:
        server.api.delete("/agents/mnist/tracker")
        wait_until(lambda: read_agent()["state"] == "stopped", "it has ended")
    assert read_agent()["error"] is None
