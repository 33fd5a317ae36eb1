"""What a drift costs: late labels, the estimate of a detection, and a planner that retrains for a loss alone."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.errors import InvalidError
from tests.unit.agents.templates.fakes import LoopHarness, list_events


@pytest.fixture
def drift(harness: LoopHarness) -> LoopHarness:
    """A champion of 95 %, and 100 labels to learn from."""
    harness.tracker.set_model_tags("mnist_cnn", 1, {"accuracy": "0.9500"})
    ids = [f"p:{number}" for number in range(100)]
    harness.give_labels(ids, run="calm-otter-1")
    return harness


def give_evaluation_labels(harness: LoopHarness, n: int, right: int) -> None:
    for guess, part in ((7, range(right)), (1, range(right, n))):
        harness.give_labels([f"e:{number}" for number in part], purpose="evaluate", run="calm-otter-1", guess=guess)


@pytest.mark.parametrize(
    ("n", "right", "retrains"),
    [(0, 0, False), (100, 94, False), (100, 92, False), (400, 360, True), (100, 70, True), (10, 9, False)],
)
def test_a_drift_that_costs_nothing_for_certain_retrains_nothing(
    drift: LoopHarness, n: int, right: int, retrains: bool
) -> None:
    drift.parameters["planner"] = {"retrain_when": "realised_loss"}
    give_evaluation_labels(drift, n, right)
    costs = drift.fire("planner", "count_number_of_pickeddata")["costs"]
    assert (costs["expected"], costs["too_much"]) == (0.95, retrains)
    assert costs["loss"] == (None if n == 0 else pytest.approx(0.95 - right / n))
    assert bool(drift.wants("planner", "count_number_of_pickeddata")) is retrains


def test_a_small_loss_that_is_certain_may_be_borne(drift: LoopHarness) -> None:
    drift.parameters["planner"] = {"retrain_when": "realised_loss", "max_loss": 0.1}
    give_evaluation_labels(drift, 400, 360)
    assert drift.wants("planner", "count_number_of_pickeddata") == []
    drift.parameters["planner"] = {}
    assert drift.wants("planner", "count_number_of_pickeddata"), "without the choice, any drift retrains"


def test_a_version_of_unknown_accuracy_has_no_known_loss(harness: LoopHarness) -> None:
    harness.parameters["planner"] = {"retrain_when": "realised_loss"}
    harness.give_labels([f"p:{number}" for number in range(100)])
    with pytest.raises(InvalidError, match=r"Version 1 of 'mnist_cnn' has no tag 'accuracy'.*retrain_when='drift'"):
        harness.fire("planner", "count_number_of_pickeddata")


@pytest.mark.parametrize(("estimate", "retrains"), [(0.94, False), (0.80, True)])
def test_an_estimated_loss_retrains_before_any_point_for_evaluation_is_labelled(
    drift: LoopHarness, estimate: float, retrains: bool
) -> None:
    drift.parameters["planner"] = {"retrain_when": "estimated_loss"}
    says: dict[str, Any] = {"estimated_accuracy": estimate, "estimated_low": estimate - 0.02}
    says |= {"estimated_high": estimate + 0.02, "expected_accuracy": 0.95, "n_newdata": 500}
    drift.end_detection("calm-otter-1", ["p:1"], **says)
    drift.fire("checker", "detection_ended")
    assert bool(drift.wants("planner", "count_number_of_pickeddata")) is retrains


def test_a_detection_that_estimates_nothing_is_reported(drift: LoopHarness) -> None:
    drift.parameters["planner"] = {"retrain_when": "estimated_loss"}
    drift.end_detection("calm-otter-1", ["p:1"])
    drift.fire("checker", "detection_ended")
    with pytest.raises(InvalidError, match=r"calm-otter-1 has no output 'estimated_accuracy'.*docs/own-data.md"):
        drift.fire("planner", "count_number_of_pickeddata")


def test_the_accuracy_is_reported_as_labels_come(drift: LoopHarness) -> None:
    planner = drift.load("planner")
    for n, right in ((100, 90), (100, 90), (200, 150)):
        give_evaluation_labels(drift, n, right)
        drift.look(planner, "planner", "count_number_of_pickeddata")
    measurements = [event.data for event in list_events(drift, "accuracy.measured")]
    assert [
        (measurement["n"], measurement["value"], measurement["expected"], measurement["version"])
        for measurement in measurements
    ] == [(100, 0.9, 0.95, 1), (200, pytest.approx(0.70), 0.95, 1)]


@pytest.mark.parametrize(("tolerance", "values"), [(None, []), ("3", [0.9])])
def test_the_accuracy_of_a_regression_counts_what_is_within_the_tolerance_of_its_training(
    drift: LoopHarness, tolerance: str | None, values: list[float]
) -> None:
    if tolerance is not None:
        drift.tracker.set_model_tags("mnist_cnn", 1, {"tolerance": tolerance})
    for guess, part in ((5.5, range(90)), (11.5, range(90, 100))):  # the label is 7
        drift.give_labels([f"e:{number}" for number in part], purpose="evaluate", run="calm-otter-1", guess=guess)
    drift.look(drift.load("planner"), "planner", "count_number_of_pickeddata")
    assert [event.data["value"] for event in list_events(drift, "accuracy.measured")] == values


@pytest.mark.parametrize("retrain_when", ["realised_loss", "estimated_loss"])
def test_what_an_earlier_version_predicted_says_nothing_of_the_one_in_use(
    drift: LoopHarness, retrain_when: str
) -> None:
    drift.parameters["planner"] = {"retrain_when": retrain_when}
    says: dict[str, Any] = {"estimated_accuracy": 0.5, "estimated_low": 0.4, "estimated_high": 0.6}
    says |= {"expected_accuracy": 0.95, "n_newdata": 500, "model_uri": "models:/mnist_cnn@champion"}
    drift.end_detection("calm-otter-1", ["p:1"], model_version=1, **says)
    drift.fire("checker", "detection_ended")
    drift.tracker.set_model_alias("mnist_cnn", "champion", drift.version(accuracy="0.9500"))
    give_evaluation_labels(drift, 400, 100)
    costs = drift.fire("planner", "count_number_of_pickeddata")["costs"]
    assert (costs["accuracy"], costs["too_much"]) == (None, False)
    assert list_events(drift, "accuracy.measured") == []
