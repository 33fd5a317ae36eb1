"""A retrain that yields a worse model, one that fails, and a version that fails to load: the champion serves on."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent_faults import toy
from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import PATIENCE_S, Plant
from tests.load import steady_load, wait_for
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default"),  # the warnings are MLflow's
    pytest.mark.skipif(find_spec("mlflow") is None or find_spec("sklearn") is None, reason="mlflow or sklearn missing"),
]

POISON = "the weights are not what they should be"
BODY = '{"inputs": [{"name": "input-0", "shape": [1, 1], "datatype": "FP64", "data": [[5.0]]}]}'


class Poison:
    """What raises where it is loaded, and before that waits as long as there is a file."""

    def __init__(self, hold: Path) -> None:
        self._hold = hold

    def __reduce__(self) -> tuple[Any, ...]:
        waiting = f"import pathlib, time\nwhile pathlib.Path({str(self._hold)!r}).exists():\n    time.sleep(0.01)\n"
        return exec, (f"{waiting}raise RuntimeError({POISON!r})",)


def label_points(plant: Plant, knowledge: Any, name: str, count: int) -> None:
    import numpy as np

    folder = plant.folder / name
    folder.mkdir()
    x = np.linspace(9.0, 11.0, count)[:, None]
    np.savez(folder / "picked.npz", x=x)
    tracked = knowledge.log_run("mnist", "tests", name="detect", artifacts=folder).run_id
    items = [
        {"id": f"{name}-{at}", "run": "r", "data": {"tracked": tracked, "file": "picked.npz", "at": at}, "score": 1.0}
        for at in range(count)
    ]
    plant.server.api.post("/labels", json={"app": plant.app, "items": items}).raise_for_status()
    for at in range(count):
        label = {"label": toy.on_its_side(float(x[at, 0]), 10.0), "app": plant.app}
        plant.server.api.post(f"/labels/{name}-{at}", json=label).raise_for_status()


def list_values(plant: Plant, sensor: str) -> list[Any]:
    return [sample["value"] for sample in plant.samples("planner", sensor) if sample["error"] is None]


def wait_for_looks(plant: Plant, agent: str, sensor: str, times: int = 3) -> list[Any]:
    count = len(plant.samples(agent, sensor))
    wait_until(lambda: len(plant.samples(agent, sensor)) >= count + times + 1, f"{sensor} has looked some times more")
    samples = plant.samples(agent, sensor)[count + 1 :]
    assert [sample["error"] for sample in samples] == [None] * len(samples)
    return [sample["value"] for sample in samples]


def test_a_retraining_that_fails_is_made_again_and_one_that_is_worse_changes_nothing_and_both_are_of_the_budget(
    make_plant: MakePlant,
) -> None:
    fields = {"training_parameters": {"kind": "failing worse"}, "again_after_s": 0, "budget": 2}
    plant = make_plant(toy.files(planner=fields))
    knowledge = toy.open_server_knowledge(plant.home)
    toy.add_version(knowledge, plant.folder, bound=9.5)
    label_points(plant, knowledge, "first", 40)
    plant.start("planner", "executor")
    wait_until(lambda: len(plant.runs("training")) == 2, "what failed is made again", patience_s=PATIENCE_S)
    plant.ended_runs("training", 1)
    assert sorted(run["state"] for run in plant.runs("training")) == ["failed", "succeeded"]
    wait_until(
        lambda: any(event["verdict"] for event in list_values(plant, "retraining_ended")), "the challenger is judged"
    )
    judged = wait_for_looks(plant, "planner", "retraining_ended")
    assert {event["verdict"] for event in judged} == {"reject"}
    counted = wait_for_looks(plant, "planner", "count_number_of_pickeddata")
    assert {(sample["picked"], sample["labels"], sample["batch"]) for sample in counted} == {(0, 40, None)}, (
        "they are learnt from"
    )
    assert [action["state"] for action in plant.actions()] == ["succeeded", "succeeded"], "both runs were begun"
    assert plant.notes() == ["train failing", "train worse"]
    assert plant.samples("executor", "change_model") == [], "nobody asked for it"
    assert knowledge.get_model(toy.MODEL, "champion").version == 1
    assert read_promotion_tag(knowledge).startswith("rejected: gains ")

    label_points(plant, knowledge, "second", 40)
    wait_until(lambda: plant.count_refusals() >= 3, "it asks for more than it has")
    reasons = {action["decision"]["reason"] for action in plant.list_refused_actions()}
    spent = (
        "The budget is used up: the strategy 'retrain_model' has used 2 of 2 actions in 86400 s, those that its calls "
        "and functions took left out."
    )
    assert reasons == {spent}
    assert len(plant.runs("training")) == 2
    wait_until(lambda: list_values(plant, "count_number_of_pickeddata")[-1]["picked"] == 40, "no label is lost")


def read_promotion_tag(knowledge: Any) -> str:
    promotion_tag: str = knowledge.get_model(toy.MODEL, 2).tags.get("scanflow.promotion", "")
    return promotion_tag


def test_a_poisoned_version_is_rejected_and_not_tried_again_while_the_old_one_answers_every_request(
    make_plant: MakePlant,
) -> None:
    plant = make_plant(toy.files(planner={"training_parameters": {"kind": "poisoned"}, "again_after_s": 2}))
    knowledge = toy.open_server_knowledge(plant.home)
    toy.add_version(knowledge, plant.folder, bound=0.0)
    url = plant.deploy("serve")
    label_points(plant, knowledge, "first", 40)
    path, longest_s = f"{url}/v2/models/serve/infer", patient(1000)
    with steady_load(path, BODY, connections=2, duration_s=longest_s, rate=50, timeout_s=patient(60)) as load:
        plant.start("planner", "executor")
        wait_until(
            lambda: plant.list_done_actions(agent="executor"),
            "the planner thinks that it is better",
            patience_s=PATIENCE_S,
        )
        swap = plant.wait_for_end(agent="executor")
        wait_until(lambda: read_promotion_tag(knowledge), "it is noted in the registry", patience_s=PATIENCE_S)
        wait_for(load, load.progress[0] + 50, timeout_s=patient(120))
        load.stop()
        result = load.read_result(timeout_s=patient(120))
    assert result.failed == 0, result.reasons
    assert result.requests >= 100
    assert swap["state"] == "failed"
    assert POISON in swap["error"]
    assert "the previous version is still served" in swap["error"]
    assert read_promotion_tag(knowledge).startswith("rejected: ")
    assert POISON in read_promotion_tag(knowledge)

    stands = {event["stands"] for event in wait_for_looks(plant, "planner", "retraining_ended")}
    assert all(reason.startswith("it was rejected: ") for reason in stands), stands
    asked = len(plant.samples("executor", "change_model"))
    wait_for_looks(plant, "planner", "retraining_ended")
    assert len(plant.samples("executor", "change_model")) == asked, "the planner asks for it no more"
    plant.call("executor", "change_model", version=2)
    wait_until(lambda: len(plant.samples("executor", "change_model")) == asked + 1, "somebody else does")
    assert plant.samples("executor", "change_model")[-1]["value"]["stands"].startswith("it was rejected: ")
    wait_for_looks(plant, "executor", "model_changed")
    assert len(plant.actions(agent="executor")) == 1, "it is not tried again"
    assert len(plant.list_done_actions(agent="planner")) == 1
    assert plant.get_served_models("serve") == {toy.MODEL: f"models:/{toy.MODEL}/1"}
    assert toy.ask(url, -1.0, 1.0) == [0, 1]
    assert knowledge.get_model(toy.MODEL, "champion").version == 1
    wanted = plant.get(f"/applications/{plant.app}")["application"]
    assert f"models:/{toy.MODEL}/2" not in str(wanted), "nor is it served by who deploys again"


def test_a_server_killed_while_a_poisoned_version_is_loaded_finds_that_it_failed(make_plant: MakePlant) -> None:
    plant = make_plant(toy.files())
    knowledge = toy.open_server_knowledge(plant.home)
    toy.add_version(knowledge, plant.folder, bound=9.5)
    url = plant.deploy("serve")
    (plant.folder / "poison").mkdir()
    (plant.folder / "poison" / "MLmodel").write_text((plant.folder / "bound-9.5" / "MLmodel").read_text())
    (plant.folder / "poison" / "model.pkl").write_bytes(pickle.dumps(Poison(plant.folder / "hold")))
    knowledge.register_model(toy.MODEL, plant.folder / "poison", app="mnist", team="tests")
    plant.start("executor")
    plant.hold()
    plant.call("executor", "change_model", version=2, run="r1")
    wait_until(lambda: plant.service("serve")["generation"] == 2, "the swap is asked for", patience_s=PATIENCE_S)
    plant.server.kill()
    assert toy.ask(url, 9.0, 10.0) == [0, 1]
    plant.server.start()
    wait_until(
        lambda: "started again" in plant.explain(plant.list_done_actions()[0]["id"]), "the server finds it cut off"
    )
    assert plant.list_done_actions()[0]["state"] == "running", "it is not done before it is in effect"
    plant.release()
    swap = plant.wait_for_end(agent="executor")
    assert swap["state"] == "failed", swap["result"]
    assert POISON in swap["error"]
    wait_until(
        lambda: read_promotion_tag(knowledge).startswith("rejected: "),
        "it is noted in the registry",
        patience_s=PATIENCE_S,
    )
    assert plant.get_served_models("serve") == {toy.MODEL: f"models:/{toy.MODEL}/1"}
    assert toy.ask(url, 9.0, 10.0) == [0, 1]
    assert knowledge.get_model(toy.MODEL, "champion").version == 1
    assert len(plant.list_done_actions()) == 1
