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
from scanflow.application_loading import load_application
from tests.http_requests import HTTP
from tests.server import ServerProcess, bearer
from tests.waiting import patient, wait_until

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
    for agent in process.api.get("/agents").json():
        process.api.delete(f"/agents/{agent['app']}/{agent['name']}").raise_for_status()
    wait_until(
        lambda: all(agent["state"] == "stopped" for agent in process.api.get("/agents").json()), "the agents have ended"
    )
    process.close()


@pytest.fixture
def client(server: ServerProcess, tmp_path: Path) -> sf.Client:
    client = sf.Client(server.url, token=server.token)
    app, path, _ = load_application(str(tmp_path / "app.py"))
    client.deploy(app, "serve", instances=1)
    client.start_agents(app, source=path)
    return client


def names(client: sf.Client) -> set[str]:
    return {service.name for service in client.services()}


def status(client: sf.Client, service: str, value: float) -> int:
    fields = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": [value]}]}
    url = f"{client.service(service).url}/v2/models/{service}/infer"
    return HTTP.post(url, content=json.dumps(fields), timeout=patient(60)).status_code


def test_a_backup_is_deployed_by_look_and_ended_once_the_service_is_back(
    client: sf.Client, server: ServerProcess, tmp_path: Path
) -> None:
    assert status(client, "serve", 1.0) == 200
    (tmp_path / "broken").touch()
    for instance in client.service("serve").instances:
        assert instance.pid is not None
        os.kill(instance.pid, signal.SIGKILL)
    wait_until(lambda: "spare" in names(client), f"the backup is deployed; see {server.log}")
    wait_until(lambda: client.service("spare").state == "ready", "the backup is ready")
    assert status(client, "spare", 1.0) == 200
    (tmp_path / "broken").unlink()
    wait_until(lambda: client.service("serve").state == "ready", "the service is back")
    wait_until(lambda: "spare" not in names(client), f"the backup is ended; see {server.log}")

    def list_done_strategies() -> list[str]:
        actions = client.intents(app="echoes", agent="planner", state="succeeded")
        return [action.intent.strategy for action in actions]

    wait_until(
        lambda: list_done_strategies() == ["backup_retirement", "backup_failover"], "both actions have succeeded"
    )
    assert status(client, "serve", 1.0) == 200


def test_a_guard_takes_an_agent_s_change_back_once_requests_fail(client: sf.Client, server: ServerProcess) -> None:
    def agent_url() -> str | None:
        executors = [agent for agent in client.agents("echoes") if agent.name == "executor" and agent.sensors]
        return executors[0].url if executors else None

    wait_until(agent_url, f"the agent is there; see {server.log}")
    assert [status(client, "serve", 1.0) for _ in range(20)] == [200] * 20
    call = HTTP.post(
        f"{agent_url()}/sensors/wished", json={"args": [2]}, headers=bearer(server.token), timeout=patient(60)
    )
    call.raise_for_status()
    wait_until(lambda: client.service("serve").shape.instances == 2, f"it has two instances; see {server.log}")
    wait_until(lambda: client.intents(app="echoes", agent="executor", state="succeeded"), "the action is done")
    (action,) = client.intents(app="echoes", agent="executor", state="succeeded")

    def is_reverted() -> bool:
        assert status(client, "serve", -1.0) == 500
        return client.service("serve").shape.instances == 1

    wait_until(is_reverted, f"the guard has taken it back; see {server.log}")
    wait_until(lambda: client.intents(app="echoes", state="reverted"), "that is noted")
    assert "service.serve.errors" in str(client.why(action.id))
