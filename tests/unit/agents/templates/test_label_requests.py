"""People are asked once for one drift: what the checker puts into the label queue, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow_agents.templates.detections import PastDetection, compute_recent_traffic
from scanflow_agents.templates.label_requests import count_labels_to_request, select_points
from tests.unit.agents.templates.fakes import World, told


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
def test_so_many_samples_people_are_asked_for(
    windows: Sequence[PastDetection], more: dict[str, Any], asked: int
) -> None:
    options: dict[str, Any] = {"waiting": 0, "busy": False, "patience": None, **more}
    assert count_labels_to_request(200, windows, **options) == asked


@given(st.integers(0, 60), st.lists(st.sampled_from(["train", "evaluate"]), max_size=50))
def test_fewer_samples_are_of_both_purposes_and_in_order(count: int, purposes: list[str]) -> None:
    points = [{"id": str(at), "purpose": purpose} for at, purpose in enumerate(purposes)]
    found = select_points(points, count)
    assert found == [one for one in points if one in found]
    assert len(found) <= max(count, 0)
    drawn = purposes.count("evaluate")
    if count < len(points):
        assert sum(one["purpose"] == "evaluate" for one in found) == round(drawn * count / len(points))
        assert [one for one in found if one["purpose"] == "train"] == [
            one for one in points if one["purpose"] == "train"
        ][: sum(one["purpose"] == "train" for one in found)]


def test_the_traffic_is_that_since_the_drift_was_found() -> None:
    newest = look("d", predictions=500, clean=0.5, foggy=0.5)
    looks = [newest, look("c"), look("b", clean=1.0), look("a"), look("z", clean=1.0)]
    found = compute_recent_traffic(looks, {"a"})
    assert found == pytest.approx({"clean": 1250 / 3500, "foggy": 250 / 3500})
    assert compute_recent_traffic(looks, {"c"}) == pytest.approx({"clean": 250 / 1500, "foggy": 250 / 1500})
    assert compute_recent_traffic(looks, {"nobody"}) == {}


# -- the checker


def drifts(world: World, run: str, **more: Any) -> dict[str, Any]:
    """Let a window with drift be made use of, of which 10 samples were picked."""
    world.detected(run, [f"{run}:{number}" for number in range(10)], run_ids=[f"of-{run}"], **more)
    [found] = world.fire("checker", "detection_ended")["detections"]
    assert isinstance(found, dict)
    return found


def label(world: World, run: str) -> None:
    world.control_plane.give_labels("mnist", dict.fromkeys([f"{run}:{number}" for number in range(10)], 7), by="ada")


def test_while_samples_wait_or_are_learnt_from_no_more_of_that_drift_are_asked_for_and_that_is_told_once(
    world: World,
) -> None:
    world.parameters |= {"planner": {"min_picked": 10}}
    assert drifts(world, "a")["picked"] == 10
    for run in ("b", "c"):
        assert drifts(world, run)["picked"] == 0
    assert [event.data["run"] for event in told(world, "drift.continues")] == ["b"]
    label(world, "a")
    assert drifts(world, "d")["picked"] == 0, "the planner is about to learn from them"
    intent = world.intent("planner", "count_number_of_pickeddata")
    parameters = intent.arguments["parameters"]
    assert isinstance(parameters, dict)
    world.retrained("bold-fox-1", 0.80, 0.70, labels=parameters["labels"])
    world.fire("planner", "retraining_ended")
    assert drifts(world, "e")["picked"] == 10, "it was rejected: more may help"
    label(world, "e")
    world.fire("planner", "count_number_of_pickeddata")
    assert drifts(world, "f")["picked"] == 0
    world.retrained("bold-fox-2", 0.80, 0.70)
    world.fire("planner", "retraining_ended")
    assert drifts(world, "g")["picked"] == 0, "twice as many as at first, and no more"
    assert len(told(world, "drift.found")) == 2


def test_after_a_model_was_put_to_use_its_drift_is_another_one(world: World) -> None:
    assert drifts(world, "a")["picked"] == 10
    world.control_plane.now += 10
    label(world, "a")
    world.version()
    world.swapped(2)
    world.control_plane.now += 10
    assert drifts(world, "b")["picked"] == 10


def test_what_was_found_of_a_version_that_is_not_in_use_any_more_is_asked_about_no_more(world: World) -> None:
    of = {"model_uri": "models:/mnist_cnn@champion", "model_version": 1}
    assert drifts(world, "a", **of)["picked"] == 10
    label(world, "a")
    world.tracker.set_model_alias("mnist_cnn", "champion", world.version())
    assert drifts(world, "b", **of)["picked"] == 0, "it began before the promotion and has ended after it"
    assert told(world, "drift.continues")[0].data["why"] == "version 2 came into use since then"
    assert drifts(world, "c", **{**of, "model_version": 2})["picked"] == 10
