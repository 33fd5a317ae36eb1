"""The four built-in agents close the loop over real predictions: none of it is done by the test but sending them."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from tests.integration.agent_faults import toy
from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import PATIENCE_S, Plant
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default"),  # the warnings are MLflow's
    pytest.mark.skipif(find_spec("mlflow") is None or find_spec("sklearn") is None, reason="mlflow or sklearn missing"),
]


def count_remaining_labels(plant: Plant) -> int:
    value = plant.samples("planner", "count_number_of_pickeddata")[-1]["value"]
    return 10**6 if value is None else int(value["picked"])


def test_drifted_predictions_are_counted_checked_labelled_learnt_from_and_a_better_model_put_to_use(
    make_plant: MakePlant,
) -> None:
    plant = make_plant(toy.files(record=1))
    knowledge = toy.open_server_knowledge(plant.home)
    assert toy.add_version(knowledge, plant.folder, bound=0.0) == 1
    url = plant.deploy("serve")
    plant.start(*toy.AGENTS)
    rng = np.random.default_rng(7)

    toy.ask(url, *rng.uniform(-1, 1, 1000))
    wait_until(
        lambda: plant.list_done_actions(agent="checker"), "clean predictions are looked at", patience_s=PATIENCE_S
    )
    plant.ended_runs("detector", 1)
    wait_until(
        lambda: plant.samples("checker", "detection_ended")[-1]["value"]["detections"] == [], "and that is noted"
    )
    assert plant.get("/labels", app=plant.app) == []

    toy.ask(url, *rng.uniform(9, 11, 1000))

    def is_promoted() -> bool:
        assert toy.ask(url, -5.0, 20.0) == [0, 1], "every answer on the way is an answer"
        model = knowledge.get_model(toy.MODEL, "champion")
        return model.version == 2 and "scanflow.promotion" in model.tags

    wait_until(is_promoted, f"a better model is put to use; see {plant.server.log}", patience_s=PATIENCE_S)
    assert plant.get_served_models("serve") == {toy.MODEL: f"models:/{toy.MODEL}/2"}
    assert toy.ask(url, 8.0, 12.0) == [0, 1], "it has learnt where the bound is now"
    tags = knowledge.get_model(toy.MODEL, 2).tags
    (swap,) = plant.list_done_actions(agent="executor")
    assert (tags["scanflow.promotion"], tags["scanflow.action"], tags["scanflow.before"]) == (
        "promoted",
        swap["id"],
        "1",
    )
    assert len(plant.get("/labels", app=plant.app, state="given", limit=1000)) == 40
    (training,) = plant.list_done_actions(agent="planner")
    assert training["result"]["run"] == tags["scanflow.run"]
    # What was asked on the way is counted as well: on a slow machine it is enough to be looked at, a third time.
    looked_at = [note for note in plant.notes() if note.startswith("detect")]
    assert len(looked_at) >= 2
    assert len(set(looked_at)) == len(looked_at), "no prediction is looked at twice"
    assert [note.split()[0] for note in plant.notes()].count("train") == 1
    # They are given one after the other, so that the retraining may have begun when the first of them were there.
    wait_until(lambda: count_remaining_labels(plant) < 20, "no more are left to learn from than are worth a retraining")
    assert knowledge.list_model_versions(toy.MODEL)[0].version == 2
