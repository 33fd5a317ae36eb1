"""Nothing is asked for twice: what is on its way, or done and not made use of yet, keeps the agents from beginning it
again, however often they look. And what they find out is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from scanflow.agent.agent_records import Intent
from scanflow.backends.service_records import RevisionRecord
from tests.unit.agents.templates.fakes import World, describe_progress, told
from tests.waiting import PATIENCE_S


def test_predictions_are_handed_over_again_only_when_as_many_came_or_after_a_while(world: World) -> None:
    declared = world.load("tracker")

    def due() -> bool:
        return bool(world.look(declared, "tracker", "count_number_of_predictions")["due"])

    world.predicted(1000)
    assert due()
    world.predicted(900)
    assert not due()
    world.predicted(100)
    assert due()
    assert not due()
    world.control_plane.now += 60
    assert due()
    assert [event.data["new"] for event in told(world, "predictions.counted")] == [1000, 1000]


def test_predictions_that_came_in_pieces_while_the_checker_was_busy_are_told_of_once_they_are_enough(
    world: World,
) -> None:
    declared = world.load("tracker")
    world.predicted(1000)
    world.look(declared, "tracker", "count_number_of_predictions")
    for _ in range(3):
        world.predicted(400)
        world.control_plane.now += 60
        assert world.look(declared, "tracker", "count_number_of_predictions")["due"]
    assert [event.data["new"] for event in told(world, "predictions.counted")] == [1000, 1200]


def test_a_detection_that_ended_is_made_use_of_before_another_begins(world: World) -> None:
    run_id = world.predicted(1000)
    world.control_plane.ran("calm-otter-1", "detector", {})
    assert world.fire("checker", "check_predictions", run_ids=[run_id])["busy"] == "calm-otter-1"
    world.control_plane.now += 500  # its outputs cannot be used
    assert world.fire("checker", "check_predictions", run_ids=[run_id])["busy"] is None


def test_a_retraining_that_is_wanted_is_not_wanted_again_before_it_has_begun(world: World) -> None:
    world.given([f"r:{number}" for number in range(100)])
    intent = world.intent("planner", "count_number_of_pickeddata")
    world.unanswered = [intent]  # its wish is on its way to the server
    found = world.fire("planner", "count_number_of_pickeddata")
    assert (found["batch"], found["busy"]) == (None, f"requested by planner: {intent.id}")
    world.unanswered = []
    assert isinstance(world.intent("planner", "count_number_of_pickeddata"), Intent), "it was refused"
    for state in ("pending", "running"):
        world.control_plane.acted(intent, state)
        assert world.wants("planner", "count_number_of_pickeddata") == []
    world.control_plane.acted(intent, "failed")
    assert isinstance(world.intent("planner", "count_number_of_pickeddata"), Intent)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("pending", "another change is in progress: models:/mnist_cnn/2"),
        ("running", "another change is in progress: models:/mnist_cnn/2"),
        ("succeeded", "another version is being watched: models:/mnist_cnn/2"),
    ],
)
def test_versions_are_put_to_use_and_watched_one_after_the_other(world: World, state: str, why: str) -> None:
    first, second = (world.retrained(f"bold-fox-{number}", 0.8, 0.9) for number in (2, 3))
    intent = world.intent("executor", "change_model", version=first)
    world.control_plane.acted(intent, state)
    assert world.fire("executor", "change_model", version=second)["stands"] == why
    world.control_plane.acted(intent, "succeeded")
    world.control_plane.now += 62.0
    assert world.fire("executor", "change_model", version=second)["stands"] is None


def test_a_version_whose_wish_is_on_its_way_to_the_server_is_not_wanted_again_nor_is_another(world: World) -> None:
    first, second = (world.retrained(f"bold-fox-{number}", 0.8, 0.9) for number in (2, 3))
    intent = world.intent("executor", "change_model", version=first)
    world.unanswered = [intent]
    assert world.fire("executor", "change_model", version=first)["stands"] == describe_progress(intent)
    stands = world.fire("executor", "change_model", version=second)["stands"]
    assert stands == f"another change is in progress: models:/mnist_cnn/{first}"


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_version_that_is_on_its_way_is_not_changed_to_again(world: World, state: str) -> None:
    version = world.retrained("bold-fox-2", 0.8, 0.9)
    intent = world.intent("executor", "change_model", version=version)
    world.control_plane.acted(intent, state)
    assert world.fire("executor", "change_model", version=version)["stands"] == describe_progress(intent)
    world.control_plane.acted(intent, "failed")
    stands = world.fire("executor", "change_model", version=version)["stands"]
    assert stands == f"its last attempt failed, which is not recorded yet: {intent.id}"
    world.fire("executor", "model_changed")
    assert world.fire("executor", "change_model", version=version)["stands"].startswith("it was rejected: ")
    assert isinstance(world.intent("executor", "change_model", version=version, again=True), Intent)


def test_two_sensors_have_nothing_labelled_twice(world: World) -> None:
    (world.folder / "own.py").write_text(
        "asked = []\ndef label(items, context):\n    asked.extend(i['id'] for i in items)\n"
        "    return {i['id']: 7 for i in items}\n"
    )
    world.parameters = {"checker": {"labeller": "own.py:label"}}
    world.control_plane.want_labels("mnist", [{"id": f"r:{n}", "run": "r", "data": {}, "guess": 1} for n in range(50)])
    declared, start = world.load("checker"), Barrier(4)

    def look(_: int) -> int:
        start.wait(PATIENCE_S)
        return int(world.look(declared, "checker", "label_picked")["labelled"])

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(look, range(4))) == [0, 0, 0, 50]
    assert len(world.control_plane.labels("mnist", state="given")) == 50


def test_the_agents_tell_what_they_found_out(world: World) -> None:
    run_id = world.predicted(1000)
    world.detected("calm-otter-1", [f"{run_id}:{n}" for n in range(3)], run_ids=[run_id])
    world.fire("checker", "detection_ended")
    world.detected("calm-otter-2", [], run_ids=[run_id], drifted=0)
    world.fire("checker", "detection_ended")
    version = world.retrained("bold-fox-2", 0.8, 0.9, champion_version=1)
    world.fire("planner", "retraining_ended")
    world.fire("planner", "retraining_ended")
    intent = world.intent("executor", "change_model", version=version)
    world.control_plane.serves(f"models:/mnist_cnn/{version}")
    world.control_plane.acted(intent)
    world.control_plane.now += 100
    world.fire("executor", "model_changed")

    assert [(event.type, event.subject) for event in world.control_plane.told] == [
        ("drift.found", "workflow/detector"),
        ("drift.none", "workflow/detector"),
        ("model.judged", "model/mnist_cnn"),
        ("model.promoted", "model/mnist_cnn"),
    ]
    [judged] = told(world, "model.judged")
    evidence = judged.data.pop("evidence")
    assert isinstance(evidence, dict)
    assert (evidence["verdict"], evidence["n"], evidence["run"]) == ("promote", 1000, "bold-fox-2")
    assert intent.evidence == {}, "the executor was asked by hand"
    assert judged.data == {
        "agent": "planner",
        "run": "bold-fox-2",
        "metric": "accuracy",
        "better": True,
        "version": version,
        "champion": 1,
        "champion_metric": 0.8,
        "challenger_metric": 0.9,
    }
    [promoted] = told(world, "model.promoted")
    assert (promoted.data["version"], promoted.data["before"], promoted.data["action"]) == (version, 1, intent.id)


def test_the_executor_tells_what_the_service_was_asked_since_it_last_looked(world: World) -> None:
    declared, served = world.load("executor"), world.control_plane

    def look(**revisions: tuple[int, int]) -> list[tuple[Any, ...]]:
        served.now += 10
        records = tuple(
            RevisionRecord(id=id, models={"cnn": f"models:/mnist_cnn/{id[1:]}"}, requests=count, errors=bad, p95_s=0.1)
            for id, (count, bad) in revisions.items()
        )
        served.deployed["serve"] = served.deployed["serve"].model_copy(update={"revisions": records})
        before = len(served.told)
        world.look(declared, "executor", "service_measured")
        names = ("version", "requests", "errors", "since", "p95_s")
        return [tuple(event.data[name] for name in names) for event in served.told[before:]]

    served.serves("models:/mnist_cnn/1")
    assert look(r1=(500, 1)) == []  # when that was is not known
    first = served.now
    assert look(r1=(520, 3)) == [("V1", 20, 2, first, 0.1)]
    assert look(r1=(520, 3)) == []  # it was not asked
    third = served.now
    assert look(r1=(530, 3), r2=(5, 0)) == [("V1", 10, 0, third, 0.1), ("V2", 5, 0, third, 0.1)]
    assert [one[:3] for one in look(r2=(2, 1))] == [("V2", 2, 1)]  # it was started anew
    del served.deployed["serve"]
    assert world.look(declared, "executor", "service_measured") == {"requests": 0}
