"""Thesis listings 5.4 to 5.6 as printed (a string that the page breaks is joined): they load, and they act."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

import scanflow as sf
from scanflow.agent.actions import call
from scanflow.agent.registry import load_agent
from scanflow.agent.sensors.firing import Firing, fire
from scanflow.agent.sensors.sensed_runs import Run
from scanflow.agent.sensors.sensor import SensorFunction
from tests.thesis import LISTINGS
from tests.unit.agent.agent_builders import Kept, context


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> SensorFunction[..., object]:
    folder = tmp_path_factory.mktemp("mnist")
    (folder / "agents").mkdir()
    for listing in LISTINGS.glob("*.txt"):
        name = listing.stem.split("_", 2)[2]
        (folder / "agents" / f"{name}.py").write_text(listing.read_text())
    hourly = sf.Sensor(name="count_number_of_predictions", trigger=sf.every(hours=1))
    agent = sf.Agent(name="tracker", sensors=[hourly], modules=["agents/custom_sensors.py"])
    app = sf.Application(name="mnist", team="data", app_dir=folder, agents=[agent])
    declared = load_agent(app, "tracker")
    return declared.sensor("count_number_of_predictions")


def runs(*predictions: float) -> list[Run]:
    at = datetime(2026, 1, 31, 6, tzinfo=UTC)
    fields = {"environment": "scanflow-mnist-data", "name": "predictor-batch", "status": "finished", "started_at": at}
    return [
        Run.model_validate({**fields, "run_id": f"r{index}", "metrics": {"n_predictions": count}})
        for index, count in enumerate(predictions)
    ]


def test_the_application_says_when_and_the_listing_what(count: SensorFunction[..., object]) -> None:
    assert count.trigger == sf.every(hours=1)
    assert count.sensor.nodes == ("predictor",)
    assert count.sensor.filter_string == "tags.mlflow.runName='predictor-batch' and metrics.n_predictions > 0"


@pytest.mark.parametrize(
    ("predictions", "calls"),
    [((400.0, 599.0), []), ((400.0, 600.0), [call("checker", "analyze_check_predictions", run_ids=["r0", "r1"])])],
)
def test_a_thousand_predictions_call_the_checker(
    count: SensorFunction[..., object], predictions: tuple[float, ...], calls: list[object]
) -> None:
    tracker = Kept()
    firing = Firing(context=context(app="mnist", caller=tracker), runs=runs(*predictions))
    assert asyncio.run(fire(count, firing)) == sum(predictions)
    assert tracker.done == calls
