"""A hundred drift alarms in a row: the checker looks as often as its budget allows, and every other alarm is accounted
for, with the reason."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.asking import http_client
from tests.integration.agent_faults import toy
from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import PATIENCE_S, Plant
from tests.server import bearer
from tests.waiting import patient, until

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
    until(
        lambda: len(plant.samples("checker", "check_predictions")) == taken,
        f"{taken} alarms are taken up",
        patience_s=PATIENCE_S,
    )
    until(lambda: plant.ask("checker", "GET", "/healthz")["undelivered"] == 0, "all is told to the server")


def test_a_hundred_alarms_in_a_row_run_the_detector_no_oftener_than_the_budget_and_all_are_accounted_for(
    make_plant: MakePlant,
) -> None:
    plant = make_plant(toy.files(checker={"budget": BUDGET, "cool_down_s": 0}))
    plant.start("checker")
    raise_alarms(plant, 0, ALARMS)
    raised = ALARMS
    while len(plant.done()) < BUDGET:  # while it looks, further alarms are not worth another look
        plant.ended_runs("detector", len(plant.done()))
        until(lambda: not plant.samples("checker", "detection_ended")[-1]["value"]["errors"], "what it found is noted")
        raise_alarms(plant, raised, 1)
        raised += 1
        assert raised < 2 * ALARMS
    plant.ended_runs("detector", BUDGET)
    noted = len(plant.samples("checker", "detection_ended"))
    until(lambda: len(plant.samples("checker", "detection_ended")) > noted + 1, "the last one is noted")
    for number in range(raised, raised + 10):  # one after the other: the wish of one on its way keeps the next from it
        raise_alarms(plant, number, 1)

    samples = plant.samples("checker", "check_predictions")
    assert [one["error"] for one in samples] == [None] * (raised + 10)
    assert len({one["cause"] for one in samples}) == raised + 10, "each alarm was taken up once"
    idle = [one for one in samples if one["value"]["busy"] is None]
    assert {one["intent"]["sample"]["id"] for one in plant.actions()} <= {one["id"] for one in idle}
    assert len(plant.done()) == BUDGET
    assert len(plant.ended_runs("detector", BUDGET)) == BUDGET
    assert [note.split()[0] for note in plant.notes()] == ["detect"] * BUDGET
    refused = plant.refused()
    assert plant.count_refusals() == len(idle) - BUDGET >= 10
    (last,) = [one for one in refused if one["repeated"] == max(one["repeated"] or 0 for one in refused)]
    assert last["repeats"] >= 9, "what repeats is counted with the first"
    assert last["decision"]["reason"] == (
        f"The budget is used up: the strategy 'check_predictions' has used {BUDGET} of {BUDGET} actions in 86400 s, "
        "those that its calls and functions took left out."
    )
    told = [one["data"]["verdict"] for one in plant.get("/events", type="intent", limit=1000)]
    assert told.count("refuse") == len(refused)
