"""A hundred drift alarms in a row: the checker looks as often as its budget allows, and every other alarm is accounted
for, with the reason."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.http_requests import http_client
from tests.integration.agent_faults import toy
from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import PATIENCE_S, Plant
from tests.server import bearer
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default"),  # the warnings are MLflow's
    pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow missing"),
]

ALARMS, BUDGET = 100, 3


def raise_alarms(plant: Plant, first: int, count: int) -> None:
    url = plant.view("checker")["url"]
    with http_client(base_url=url, headers=bearer(plant.server.token), timeout=patient(60)) as face:
        for number in range(first, first + count):
            # As of now, so that none of them is known to be checked.
            body = {"args": [], "kwargs": {"run_ids": ["none"], "predictions": 1000, "since": 1e12}}
            face.post("/sensors/check_predictions", json=body, headers={"idempotency-key": f"alarm-{number}"})
    taken = first + count
    wait_until(
        lambda: len(plant.samples("checker", "check_predictions")) == taken,
        f"{taken} alarms are taken up",
        patience_s=PATIENCE_S,
    )
    wait_until(lambda: plant.ask("checker", "GET", "/healthz")["undelivered"] == 0, "all is told to the server")


def test_a_hundred_alarms_in_a_row_run_the_detector_no_oftener_than_the_budget_and_all_are_accounted_for(
    make_plant: MakePlant,
) -> None:
    plant = make_plant(toy.files(checker={"budget": BUDGET, "cool_down_s": 0}))
    plant.start("checker")
    raise_alarms(plant, 0, ALARMS)
    raised = ALARMS
    while len(plant.list_done_actions()) < BUDGET:  # while it looks, further alarms are not worth another look
        plant.ended_runs("detector", len(plant.list_done_actions()))
        wait_until(
            lambda: not plant.samples("checker", "detection_ended")[-1]["value"]["errors"], "what it found is noted"
        )
        raise_alarms(plant, raised, 1)
        raised += 1
        assert raised < 2 * ALARMS
    plant.ended_runs("detector", BUDGET)
    noted = len(plant.samples("checker", "detection_ended"))
    wait_until(lambda: len(plant.samples("checker", "detection_ended")) > noted + 1, "the last one is noted")
    for number in range(raised, raised + 10):  # one after the other: the wish of one on its way keeps the next from it
        raise_alarms(plant, number, 1)

    samples = plant.samples("checker", "check_predictions")
    assert [sample["error"] for sample in samples] == [None] * (raised + 10)
    assert len({sample["cause"] for sample in samples}) == raised + 10, "each alarm was taken up once"
    idle = [sample for sample in samples if sample["value"]["busy"] is None]
    assert {action["intent"]["sample"]["id"] for action in plant.actions()} <= {action["id"] for action in idle}
    assert len(plant.list_done_actions()) == BUDGET
    assert len(plant.ended_runs("detector", BUDGET)) == BUDGET
    assert [note.split()[0] for note in plant.notes()] == ["detect"] * BUDGET
    refused = plant.list_refused_actions()
    assert plant.count_refusals() == len(idle) - BUDGET >= 10
    (last,) = [action for action in refused if action["repeated"] == max(action["repeated"] or 0 for action in refused)]
    assert last["repeats"] >= 9, "what repeats is counted with the first"
    assert last["decision"]["reason"] == (
        f"The budget is used up: the strategy 'check_predictions' has used {BUDGET} of {BUDGET} actions in 86400 s, "
        "those that its calls and functions took left out."
    )
    verdicts = [event["data"]["verdict"] for event in plant.get("/events", type="intent", limit=1000)]
    assert verdicts.count("refuse") == len(refused)
