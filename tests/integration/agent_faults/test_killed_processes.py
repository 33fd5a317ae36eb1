"""An agent is killed while what it wanted is done, or the server while it does it: it is done once, and told truly."""

from __future__ import annotations

import random
import threading
from collections import Counter

import httpx2
import pytest

from tests.http_requests import HTTP
from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import Plant
from tests.server import bearer
from tests.waiting import patient, wait_until

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(900)]

APP = """
import os, pathlib
import scanflow as sf

@sf.step
def train(wish: str = "") -> str:
    with open(pathlib.Path(os.environ["TEST_FOLDER"]) / "ledger", "a") as ledger:
        ledger.write(os.environ["SCANFLOW_RUN"] + " " + wish + "\\n")
    return wish

echo = sf.Service(name="echo", implementation="echo.py:Echo")
app = sf.Application(
    name="mnist",
    team="tests",
    workflows=[
        sf.Workflow(name="training", nodes=[train.bind("")]),
        sf.Workflow(name="serve", type="online", nodes=[echo], serving=sf.Serving(grpc_port=0)),
    ],
    agents=[sf.Agent(name="planner", modules=["planner.py"])],
)
"""
ECHO = """
import pathlib, time

class Echo:
    def __init__(self):
        while (pathlib.Path(__file__).parent / "hold").exists():
            time.sleep(0.01)

    def predict(self, X):
        return X
"""
PLANNER = """
import os, pathlib, signal
import scanflow as sf
from scanflow.agent import primitives as do, sensor

@sensor(sf.on_call())
def load(rps):
    return rps

sf.Strategy(name="grow", when=load, if_=lambda rps: rps > 100, then=do.duplicate_workflow_instance("serve"))

@sensor(sf.on_call())
def labels(wish):
    return wish

sf.Strategy(name="retrain", when=labels, then=lambda wish: do.run_workflow("training", wish=wish))

@sensor(sf.on_call())
def deadly(wish):
    marker = pathlib.Path(os.environ["TEST_FOLDER"]) / "killed"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return wish

sf.Strategy(name="survive", when=deadly, then=lambda wish: do.run_workflow("training", wish=wish))
"""
FILES = {"app.py": APP, "echo.py": ECHO, "planner.py": PLANNER}


def wishes(plant: Plant) -> Counter[str]:
    return Counter(note.split(" ", 1)[1] for note in plant.notes())


def growing(plant: Plant) -> str:
    """Have an instance added whose loading does not end, and return the action's id when it is under way."""
    plant.deploy("serve")
    plant.start("planner")
    plant.hold()
    plant.call("planner", "load", 400, key="k1")
    wait_until(
        lambda: [entry["state"] for entry in plant.list_done_actions()] == ["running"], "the instance is being added"
    )
    wait_until(lambda: plant.service("serve")["shape"]["instances"] == 2, "the service knows")
    (action,) = plant.list_done_actions()
    return str(action["id"])


def test_an_agent_killed_while_its_action_is_carried_out_is_started_again_and_finds_it_done_once(
    make_plant: MakePlant,
) -> None:
    plant = make_plant(FILES)
    id = growing(plant)
    plant.kill("planner")
    plant.release()
    assert plant.wait_for_end(primitive="duplicate_workflow_instance")["state"] == "succeeded"
    plant.wait_for_agent("planner")
    assert plant.view("planner")["restarts"] == 1
    assert plant.call("planner", "load", 400, key="k1") == plant.samples("planner", "load")[0]["id"], "the same call"
    wait_until(lambda: plant.ask("planner", "GET", "/healthz")["undelivered"] == 0, "nothing is left to be told")
    assert [sample["value"] for sample in plant.samples("planner", "load")] == [400]
    assert [action["id"] for action in plant.actions()] == [id]
    assert plant.service("serve")["shape"]["instances"] == 2
    assert "rps > 100, rps=400" in plant.explain(id)


def test_an_agent_killed_in_the_middle_of_a_firing_begins_it_again_and_what_it_wants_is_done_once(
    make_plant: MakePlant,
) -> None:
    plant = make_plant(FILES)
    plant.start("planner")
    try:
        plant.call("planner", "deadly", "w1", key="k1")
    except httpx2.TransportError:  # it did not live to answer, and had kept the call or had not
        plant.wait_for_agent("planner")
    wait_until((plant.folder / "killed").exists, "it has killed itself")
    plant.wait_for_agent("planner")
    plant.call("planner", "deadly", "w1", key="k1")  # who got no answer asks again
    plant.ended_runs("training", 1)
    wait_until(lambda: plant.ask("planner", "GET", "/healthz")["undelivered"] == 0, "nothing is left to be told")
    assert wishes(plant) == {"w1": 1}
    assert [sample["value"] for sample in plant.samples("planner", "deadly")] == ["w1"]
    assert len(plant.actions()) == 1


def test_a_server_killed_while_it_adds_an_instance_adds_one_and_no_second(make_plant: MakePlant) -> None:
    plant = make_plant(FILES)
    id = growing(plant)
    plant.server.kill()
    plant.release()
    plant.server.start()
    action = plant.wait_for_end(primitive="duplicate_workflow_instance")
    assert (action["id"], action["state"], action["result"]["instances"]) == (id, "succeeded", 2)
    assert "started again, attempt 2" in plant.explain(id)
    assert plant.service("serve")["shape"]["instances"] == 2
    assert action["inverse"]["arguments"] == {"workflow": "serve", "instances": 1}, "as it was before the first try"


def test_a_server_killed_while_runs_are_begun_begins_each_of_them_once_or_says_why_not(make_plant: MakePlant) -> None:
    plant = make_plant(FILES)
    plant.start("planner")
    rng, wanted = random.Random(7), 0
    for _ in range(3):
        url, count = plant.view("planner")["url"], len(plant.actions())
        for _ in range(3):
            body = {"args": [f"w{wanted}"], "kwargs": {}}
            HTTP.post(
                f"{url}/sensors/labels", json=body, headers=bearer(plant.server.token), timeout=patient(60)
            ).raise_for_status()
            wanted += 1
        wait_until(lambda: len(plant.actions()) > count, "one of them is being decided on or done")  # noqa: B023
        threading.Event().wait(rng.uniform(0.0, 0.4))  # any moment of that
        plant.server.kill()
        plant.server.start()
        plant.wait_for_agent("planner")
    wait_until(lambda: len(plant.actions()) == wanted, "each was decided on")
    wait_until(lambda: all(action["ended"] is not None for action in plant.actions()), "each is over")
    done, refused = plant.list_done_actions(), plant.list_refused_actions()
    assert len(done) + len(refused) == wanted
    assert {action["state"] for action in done} == {"succeeded"}
    assert all(
        "also requests a change of 'running' of 'workflow/training' and takes precedence"
        in action["decision"]["reason"]
        for action in refused
    )
    runs = plant.ended_runs("training", len(done))
    assert Counter(run["state"] for run in runs) == {"succeeded": len(done)}
    assert sorted(action["result"]["run"] for action in done) == sorted(run["name"] for run in runs)
    assert wishes(plant) == Counter(action["intent"]["sample"]["value"] for action in done)
