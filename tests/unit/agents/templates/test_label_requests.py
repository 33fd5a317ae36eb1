"""People are asked once for one drift: what the checker puts into the label queue, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.reports.outcome import format_detection
from scanflow_agents.templates.detections import PastDetection, compute_recent_traffic
from scanflow_agents.templates.label_requests import count_labels_to_request, select_points
from tests.unit.agents.templates.fakes import LoopHarness, list_events


def look(run: str, *, picked: int = 0, predictions: int = 1000, same: bool = False, **regimes: float) -> PastDetection:
    return PastDetection(
        run=run,
        at=0.0,
        drifted=not regimes,
        counts=not regimes,
        same=same,
        picked=picked,
        predictions=predictions,
        regimes=regimes,
        model_uri="",
        model_version=None,
    )


@pytest.mark.parametrize(
    ("windows", "more", "asked"),
    [
        ([], {}, 200),
        ([], {"waiting": 150}, 50),
        ([], {"waiting": 300}, 0),
        ([], {"busy": True}, 200),
        ([], {"patience": 120}, 120),
        ([look("a", picked=200)], {}, 200),
        ([look("a", picked=200)], {"waiting": 1}, 0),
        ([look("a", picked=200)], {"busy": True}, 0),
        ([look("a", picked=200)], {"patience": 250}, 50),
        ([look("b", same=True), look("a", picked=150)], {}, 150),
        ([look("b", picked=200), look("a", picked=200)], {}, 0),
        ([look("b", picked=20), look("a", picked=200)], {"patience": 1000}, 200),
        ([look("b")], {}, 200),
    ],
)
def test_so_many_samples_are_put_to_people(windows: Sequence[PastDetection], more: dict[str, Any], asked: int) -> None:
    options: dict[str, Any] = {"waiting": 0, "busy": False, "patience": None, **more}
    assert count_labels_to_request(200, windows, **options) == asked


@given(st.integers(0, 60), st.lists(st.sampled_from(["train", "evaluate"]), max_size=50))
def test_fewer_samples_are_of_both_purposes_and_in_order(count: int, purposes: list[str]) -> None:
    points = [{"id": str(at), "purpose": purpose} for at, purpose in enumerate(purposes)]
    picks = select_points(points, count)
    assert picks == [point for point in points if point in picks]
    assert len(picks) <= max(count, 0)
    drawn = purposes.count("evaluate")
    if count < len(points):
        assert sum(pick["purpose"] == "evaluate" for pick in picks) == round(drawn * count / len(points))
        assert [pick for pick in picks if pick["purpose"] == "train"] == [
            point for point in points if point["purpose"] == "train"
        ][: sum(pick["purpose"] == "train" for pick in picks)]


def test_the_traffic_is_that_since_the_drift_was_found() -> None:
    newest = look("d", predictions=500, clean=0.5, foggy=0.5)
    looks = [newest, look("c"), look("b", clean=1.0), look("a"), look("z", clean=1.0)]
    traffic = compute_recent_traffic(looks, {"a"})
    assert traffic == pytest.approx({"clean": 1250 / 3500, "foggy": 250 / 3500})
    assert compute_recent_traffic(looks, {"c"}) == pytest.approx({"clean": 250 / 1500, "foggy": 250 / 1500})
    assert compute_recent_traffic(looks, {"nobody"}) == {}


# -- the checker


def drifts(harness: LoopHarness, run: str, **more: Any) -> dict[str, Any]:
    """Let a window with drift be made use of, of which 10 samples were picked."""
    harness.end_detection(run, [f"{run}:{number}" for number in range(10)], run_ids=[f"of-{run}"], **more)
    [detection] = harness.fire("checker", "detection_ended")["detections"]
    assert isinstance(detection, dict)
    return detection


def label(harness: LoopHarness, run: str) -> None:
    harness.control_plane.give_labels("mnist", dict.fromkeys([f"{run}:{number}" for number in range(10)], 7), by="ada")


def test_while_samples_wait_or_are_learnt_from_no_more_of_that_drift_are_requested_and_that_is_reported_once(
    harness: LoopHarness,
) -> None:
    harness.parameters |= {"planner": {"min_picked": 10}}
    assert drifts(harness, "a")["picked"] == 10
    for run in ("b", "c"):
        assert drifts(harness, run)["picked"] == 0
    assert [event.data["run"] for event in list_events(harness, "drift.continues")] == ["b"]
    label(harness, "a")
    assert drifts(harness, "d")["picked"] == 0, "the planner is about to learn from them"
    intent = harness.intent("planner", "count_number_of_pickeddata")
    parameters = intent.arguments["parameters"]
    assert isinstance(parameters, dict)
    harness.end_retraining("bold-fox-1", 0.80, 0.70, labels=parameters["labels"])
    harness.fire("planner", "retraining_ended")
    assert drifts(harness, "e")["picked"] == 10, "it was rejected: more may help"
    label(harness, "e")
    harness.fire("planner", "count_number_of_pickeddata")
    assert drifts(harness, "f")["picked"] == 0
    harness.end_retraining("bold-fox-2", 0.80, 0.70)
    harness.fire("planner", "retraining_ended")
    assert drifts(harness, "g")["picked"] == 0, "twice as many as at first, and no more"
    assert len(list_events(harness, "drift.found")) == 2


def test_outliers_are_reported_with_the_number_of_samples_among_which_they_were_counted(harness: LoopHarness) -> None:
    drifts(harness, "a", n_newdata=685, n_samples=520)
    (event,) = list_events(harness, "drift.found")
    assert (event.data["predictions"], event.data["samples"]) == (685, 520)
    assert "30 of 520 samples are outliers" in format_detection(event)


def test_after_a_model_was_put_to_use_its_drift_is_another_one(harness: LoopHarness) -> None:
    assert drifts(harness, "a")["picked"] == 10
    harness.control_plane.now += 10
    label(harness, "a")
    harness.version()
    harness.swap_model(2)
    harness.control_plane.now += 10
    assert drifts(harness, "b")["picked"] == 10


def test_samples_of_a_version_that_is_not_in_use_any_more_are_not_requested(harness: LoopHarness) -> None:
    of = {"model_uri": "models:/mnist_cnn@champion", "model_version": 1}
    assert drifts(harness, "a", **of)["picked"] == 10
    label(harness, "a")
    harness.tracker.set_model_alias("mnist_cnn", "champion", harness.version())
    assert drifts(harness, "b", **of)["picked"] == 0, "it began before the promotion and has ended after it"
    assert list_events(harness, "drift.continues")[0].data["why"] == "version 2 came into use since then"
    assert drifts(harness, "c", **{**of, "model_version": 2})["picked"] == 10
