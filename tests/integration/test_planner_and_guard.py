"""A real server, real services and a real agent: a backup takes over by look and is ended again, and a guard takes back
what it watches as it gets worse."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.loading import load_application
from tests.asking import HTTP
from tests.server import ServerProcess, bearer
from tests.waiting import patient, until

pytestmark = pytest.mark.endurance

APP = """
from pathlib import Path
import scanflow as sf

class Echo:
    def __init__(self):
        if Path(__file__).with_name("broken").exists():
            raise RuntimeError("broken")

    def predict(self, inputs):
        if inputs.min() < 0:
            raise RuntimeError("below 0")
        return inputs

class Spare:
    def predict(self, inputs):
        return inputs

def online(name, component):
    node = sf.Service(name=name, implementation=f"app.py:{component}")
    return sf.Workflow(name=name, type="online", nodes=[node])

train = sf.Executor(name="train", mainfile="train.py", parameters={"labels": "", "model_uri": ""})
watch = {
    "model_name": "m", "service": "serve", "backup_workflow": "spare", "watch_interval_s": 0.5, "backup_keep_s": 2.0,
}
app = sf.Application(
    name="echoes",
    team="tests",
    workflows=[online("serve", "Echo"), online("spare", "Spare"), sf.Workflow(name="training", nodes=[train])],
    agents=[
        sf.Agent(name="planner", template="planner", parameters=watch),
        sf.Agent(name="executor", modules=["scale.py"]),
    ],
    tracker=sf.Tracker(),
)
"""
SCALE = """
import scanflow as sf
from scanflow.agent import primitives as do, sensor
from scanflow.agent.agent_records import Guard

@sensor(sf.on_call())
def wished(instances):
    return instances

sf.Strategy(
    name="scale",
    when=wished,
    then=lambda count: do.update_workflow_replica("serve", instances=count),
    guard=Guard(metric="service.serve.errors", worse="higher", within_s=600.0),
)
"""


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    for name, text in (("app.py", APP), ("scale.py", SCALE), ("train.py", "")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    process = ServerProcess(home)
    process.start()
    yield process
    for one in process.api.get("/agents").json():
        process.api.delete(f"/agents/{one['app']}/{one['name']}").raise_for_status()
    until(lambda: all(one["state"] == "stopped" for one in process.api.get("/agents").json()), "the agents have ended")
    process.close()


@pytest.fixture
def client(server: ServerProcess, tmp_path: Path) -> sf.Client:
    client = sf.Client(server.url, token=server.token)
    app, path, _ = load_application(str(tmp_path / "app.py"))
    client.deploy(app, "serve", instances=1)
    client.start_agents(app, source=path)
    return client


def names(client: sf.Client) -> set[str]:
    return {one.name for one in client.services()}


def status(client: sf.Client, service: str, value: float) -> int:
    given = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": [value]}]}
    url = f"{client.service(service).url}/v2/models/{service}/infer"
    return HTTP.post(url, content=json.dumps(given), timeout=patient(60)).status_code


def test_a_backup_is_deployed_by_look_and_ended_once_the_service_is_back(
    client: sf.Client, server: ServerProcess, tmp_path: Path
) -> None:
    assert status(client, "serve", 1.0) == 200
    (tmp_path / "broken").touch()
    for one in client.service("serve").instances:
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
    until(lambda: "spare" in names(client), f"the backup is deployed; see {server.log}")
    until(lambda: client.service("spare").state == "ready", "the backup is ready")
    assert status(client, "spare", 1.0) == 200
    (tmp_path / "broken").unlink()
    until(lambda: client.service("serve").state == "ready", "the service is back")
    until(lambda: "spare" not in names(client), f"the backup is ended; see {server.log}")

    def done() -> list[str]:
        found = client.intents(app="echoes", agent="planner", state="succeeded")
        return [one.intent.strategy for one in found]

    until(lambda: done() == ["backup_retirement", "backup_failover"], "both actions have succeeded")
    assert status(client, "serve", 1.0) == 200


def test_a_guard_takes_an_agent_s_change_back_once_requests_fail(client: sf.Client, server: ServerProcess) -> None:
    def agent_url() -> str | None:
        found = [one for one in client.agents("echoes") if one.name == "executor" and one.sensors]
        return found[0].url if found else None

    until(agent_url, f"the agent is there; see {server.log}")
    assert [status(client, "serve", 1.0) for _ in range(20)] == [200] * 20
    call = HTTP.post(
        f"{agent_url()}/sensors/wished", json={"args": [2]}, headers=bearer(server.token), timeout=patient(60)
    )
    call.raise_for_status()
    until(lambda: client.service("serve").shape.instances == 2, f"it has two instances; see {server.log}")
    until(lambda: client.intents(app="echoes", agent="executor", state="succeeded"), "the action is done")
    (action,) = client.intents(app="echoes", agent="executor", state="succeeded")

    def reverted() -> bool:
        assert status(client, "serve", -1.0) == 500
        return client.service("serve").shape.instances == 1

    until(reverted, f"the guard has taken it back; see {server.log}")
    until(lambda: client.intents(app="echoes", state="reverted"), "that is noted")
    assert "service.serve.errors" in str(client.why(action.id))
