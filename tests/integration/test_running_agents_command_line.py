"""Commands on agents as a person meets them: a real server, and a real agent that asks before it acts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from tests.conftest import Cli, home_in
from tests.http_requests import HTTP
from tests.server import ServerProcess, bearer
from tests.waiting import patient, wait_until

APP = """
import scanflow as sf

@sf.step
def load(count: int = 2) -> int:
    print("loading", count)
    return count

app = sf.Application(
    name="mnist",
    team="tests",
    workflows=[sf.Workflow(name="training", nodes=[load.bind(count=2)])],
    agents=[sf.Agent(name="tracker", modules=["tracker.py"])],
)
"""
CODE = """
import scanflow as sf
from scanflow.agent import primitives as do, sensor

@sensor(sf.on_call())
def count(n):
    return n

sf.Strategy(
    name="retrain",
    when=count,
    if_=lambda n: n >= 1000,
    then=do.run_workflow("training", count=7),
    autonomy="approve",
)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_in(tmp_path_factory.mktemp("agents")) as folder:
        yield folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(home)
    process.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCANFLOW_URL", process.url)
        yield process
    for agent in process.api.get("/agents").json():
        process.api.delete(f"/agents/{agent['app']}/{agent['name']}").raise_for_status()
    wait_until(
        lambda: all(agent["state"] == "stopped" for agent in process.api.get("/agents").json()),
        "the agents have stopped",
    )
    process.close()


def print_json(quick_cli: Cli, *words: str) -> Any:
    done = quick_cli(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_session_of_an_agent_that_asks_for_approval(quick_cli: Cli, server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "tracker.py").write_text(CODE)
    assert "No agents." in quick_cli("agents").stdout
    started = quick_cli("agents", "--start", "app.py")
    assert (started.returncode, started.stdout.splitlines()[-1]) == (0, "Status: scanflow agents mnist")
    wait_until(
        lambda: print_json(quick_cli, "agents", "tracker")[0]["sensors"], f"the agent is there; see {server.log}"
    )
    listed = print_json(quick_cli, "agents", "mnist:tracker")[0]
    assert (listed["state"], listed["sensors"][0]["name"]) == ("running", "count")
    for n in (3, 1204):
        HTTP.post(
            f"{listed['url']}/sensors/count", json={"args": [n]}, headers=bearer(server.token), timeout=patient(60)
        ).raise_for_status()

    wait_until(lambda: print_json(quick_cli, "approve"), "the strategy wants something")
    assert "n >= 1000, n=1204" in quick_cli("approve").stdout
    yes = quick_cli("approve", "@latest", "--reason", "looks right")
    assert yes.returncode == 0, yes.stderr
    id = yes.stdout.split()[0]
    wait_until(lambda: "action    succeeded" in quick_cli("why", id).stdout, f"it is done; see {server.log}")
    story = quick_cli("why", "@latest").stdout
    order = ["sample ", "trigger ", "rule ", "intent ", "decision ", "action ", "effect "]
    assert [line.split()[0] + " " for line in story.splitlines() if not line.startswith(" ")] == order
    assert "looks right" in story
    assert f"{id}  " in quick_cli("why").stdout
    assert quick_cli("approve").stdout.startswith("No action is waiting")
    again = quick_cli("approve", id)
    assert (again.returncode, "needs no approval" in again.stderr) == (2, True)

    journal = quick_cli("agents", "tracker", "--journal").stdout.splitlines()
    assert [line.split()[2] for line in journal][:3] == ["sample", "sample", "intent"]
    same = quick_cli("replay", "tracker", "--save", "trace.json")
    assert (same.returncode, "all requests are as recorded" in same.stdout) == (0, True)
    (tmp_path / "tracker.py").write_text(CODE.replace("n >= 1000", "n >= 2000"))
    differs = quick_cli("replay", "tracker", "app.py")
    assert (differs.returncode, differs.stdout.count("\n-  ")) == (1, 1), differs.stderr
    stopped = quick_cli("agents", "--stop", "mnist")
    assert stopped.returncode == 0, stopped.stderr
    wait_until(lambda: print_json(quick_cli, "agents", "tracker")[0]["state"] == "stopped", "the agent has ended")
    asleep = quick_cli("agents", "tracker", "--journal")
    assert (asleep.returncode, "mnist:tracker is stopped" in asleep.stderr) == (3, True)
    assert quick_cli("replay", "tracker").returncode == 3
    assert quick_cli("replay", "tracker", "--trace", "trace.json").stdout == differs.stdout, "its trace is enough"


NOTEBOOK = """
import sys
import scanflow as sf

factor = 6

@sf.step
def load(count: int = 2) -> int:
    return count * factor

app = sf.Application(
    name="notebook",
    workflows=[sf.Workflow(name="training", nodes=[load.bind()])],
    agents=[sf.Agent(name="tracker", modules=["tracker.py"])],
)
client = sf.Client(sys.argv[1], token=sys.argv[2])
print([one.full_name for one in client.start_agents(app)], [one["name"] for one in client.strategies(app)])
"""


def test_agents_from_python_run_the_functions_of_the_notebook_that_is_gone(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "tracker.py").write_text(CODE)
    command = [sys.executable, "-c", NOTEBOOK, server.url, server.token]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patient(120), check=False)
    assert done.stdout == "['notebook:tracker'] ['retrain']\n", done.stderr
    client = sf.Client(server.url, token=server.token)
    wait_until(lambda: client.agents("notebook")[0].sensors, f"the agent is there; see {server.log}")
    (agent,) = client.agents("notebook")
    call = f"{agent.url}/sensors/count"
    HTTP.post(call, json={"args": [1500]}, headers=bearer(server.token), timeout=patient(60)).raise_for_status()
    wait_until(client.approvals, "the strategy wants something")
    newest = client.newest_event()
    action = client.approve(reason="from a notebook")
    assert action.intent.app == "notebook"
    ended = next(client.events_after(newest, type="run.*", app="notebook", timeout_s=patient(120)))
    assert client.wait(ended.subject.partition("/")[2], timeout_s=patient(120)).state == "succeeded"
    assert client.output("load") == 42, "count=7, by the strategy; factor=6, by the notebook"
    wait_until(lambda: client.intents(app="notebook", state="succeeded"), "the action is done")
    assert "from a notebook" in str(client.why(action.id))
    assert [entry["kind"] for entry in client.journal("notebook:tracker")][:2] == ["sample", "intent"]
    assert [stopping.full_name for stopping in client.stop_agents("notebook")] == ["notebook:tracker"]


def test_labels_are_given_from_the_queue(quick_cli: Cli, server: ServerProcess, tmp_path: Path) -> None:
    assert quick_cli("labels").stdout.startswith("No sample is waiting")
    items = [
        {"id": f"img/{index}", "data": {"index": index}, "guess": index, "score": index / 10} for index in range(4)
    ]
    server.api.post("/labels", json={"app": "mnist", "items": items}).raise_for_status()
    assert [label["id"] for label in print_json(quick_cli, "labels", "--app", "mnist")] == [
        "img/3",
        "img/2",
        "img/1",
        "img/0",
    ]
    (tmp_path / "labels.csv").write_text("id,label\nimg/2,7\nimg/1,\n")
    result = quick_cli("labels", "--from", "labels.csv", "--give", "img/3=cat")
    assert (result.returncode, result.stdout.partition(". ")[0]) == (0, "Labels given: 2; rows without a label: 1")
    exported = quick_cli("labels", "--export", "rows.csv")
    assert (exported.returncode, "2 samples" in exported.stdout) == (0, True), exported.stderr
    assert (tmp_path / "rows.csv").read_text().splitlines()[1:] == ["img/1,1,train,", "img/0,0,train,"]
    assert [label["id"] for label in print_json(quick_cli, "labels")] == ["img/1", "img/0"]
    labels = server.api.get("/labels", params={"state": "given"}).json()
    assert {label["id"]: label["label"] for label in labels} == {"img/2": 7, "img/3": "cat"}
    other = quick_cli("labels", "--give", "img/2=8")
    assert (other.returncode, "already labelled 'img/2' as 7" in other.stderr) == (2, True)
    assert "scanflow labels --give img/2=8 --replace" in other.stderr
    assert quick_cli("labels", "--give", "img/2=8", "--replace").returncode == 0
    labels = server.api.get("/labels", params={"state": "given"}).json()
    assert {label["id"]: label["label"] for label in labels} == {"img/2": 8, "img/3": "cat"}
    for words in (("labels", "--give", "none=1"), ("why", "none"), ("approve", "none"), ("agents", "none")):
        done = quick_cli(*words)
        assert (done.returncode, "'none'" in done.stderr) == (2, True), done.stderr
