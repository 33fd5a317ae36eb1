"""Nothing is asked for twice: what is on its way, or done and not made use of yet, keeps the agents from beginning it
again, however often they look. And what they find out is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from scanflow.agent.agent_records import Intent
from scanflow.backends.service_records import RevisionRecord
from tests.unit.agents.templates.fakes import LoopHarness, describe_progress, list_events
from tests.waiting import PATIENCE_S


def test_predictions_are_handed_over_again_only_when_as_many_came_or_after_a_while(harness: LoopHarness) -> None:
    declared = harness.load("tracker")

    def due() -> bool:
        return bool(harness.look(declared, "tracker", "count_number_of_predictions")["due"])

    harness.log_predictions(1000)
    assert due()
    harness.log_predictions(900)
    assert not due()
    harness.log_predictions(100)
    assert due()
    assert not due()
    harness.control_plane.now += 60
    assert due()
    assert [event.data["new"] for event in list_events(harness, "predictions.counted")] == [1000, 1000]


def test_predictions_that_came_in_pieces_while_the_checker_was_busy_are_reported_once_they_are_enough(
    harness: LoopHarness,
) -> None:
    declared = harness.load("tracker")
    harness.log_predictions(1000)
    harness.look(declared, "tracker", "count_number_of_predictions")
    for _ in range(3):
        harness.log_predictions(400)
        harness.control_plane.now += 60
        assert harness.look(declared, "tracker", "count_number_of_predictions")["due"]
    assert [event.data["new"] for event in list_events(harness, "predictions.counted")] == [1000, 1200]


def test_a_detection_that_ended_is_made_use_of_before_another_begins(harness: LoopHarness) -> None:
    run_id = harness.log_predictions(1000)
    harness.control_plane.ran("calm-otter-1", "detector", {})
    assert harness.fire("checker", "check_predictions", run_ids=[run_id])["busy"] == "calm-otter-1"
    harness.control_plane.now += 500  # its outputs cannot be used
    assert harness.fire("checker", "check_predictions", run_ids=[run_id])["busy"] is None


def test_a_retraining_that_is_wanted_is_not_wanted_again_before_it_has_begun(harness: LoopHarness) -> None:
    harness.give_labels([f"r:{number}" for number in range(100)])
    intent = harness.intent("planner", "count_number_of_pickeddata")
    harness.unanswered = [intent]  # its wish is on its way to the server
    value = harness.fire("planner", "count_number_of_pickeddata")
    assert (value["batch"], value["busy"]) == (None, f"requested by planner: {intent.id}")
    harness.unanswered = []
    assert isinstance(harness.intent("planner", "count_number_of_pickeddata"), Intent), "it was refused"
    for state in ("pending", "running"):
        harness.control_plane.record_action(intent, state)
        assert harness.wants("planner", "count_number_of_pickeddata") == []
    harness.control_plane.record_action(intent, "failed")
    assert isinstance(harness.intent("planner", "count_number_of_pickeddata"), Intent)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("pending", "another change is in progress: models:/mnist_cnn/2"),
        ("running", "another change is in progress: models:/mnist_cnn/2"),
        ("succeeded", "another version is being watched: models:/mnist_cnn/2"),
    ],
)
def test_versions_are_put_to_use_and_watched_one_after_the_other(harness: LoopHarness, state: str, why: str) -> None:
    first, second = (harness.end_retraining(f"bold-fox-{number}", 0.8, 0.9) for number in (2, 3))
    intent = harness.intent("executor", "change_model", version=first)
    harness.control_plane.record_action(intent, state)
    assert harness.fire("executor", "change_model", version=second)["stands"] == why
    harness.control_plane.record_action(intent, "succeeded")
    harness.control_plane.now += 62.0
    assert harness.fire("executor", "change_model", version=second)["stands"] is None


def test_a_version_with_a_wish_on_its_way_to_the_server_is_not_wanted_again_nor_is_another(
    harness: LoopHarness,
) -> None:
    first, second = (harness.end_retraining(f"bold-fox-{number}", 0.8, 0.9) for number in (2, 3))
    intent = harness.intent("executor", "change_model", version=first)
    harness.unanswered = [intent]
    assert harness.fire("executor", "change_model", version=first)["stands"] == describe_progress(intent)
    stands = harness.fire("executor", "change_model", version=second)["stands"]
    assert stands == f"another change is in progress: models:/mnist_cnn/{first}"


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_version_that_is_on_its_way_is_not_changed_to_again(harness: LoopHarness, state: str) -> None:
    version = harness.end_retraining("bold-fox-2", 0.8, 0.9)
    intent = harness.intent("executor", "change_model", version=version)
    harness.control_plane.record_action(intent, state)
    assert harness.fire("executor", "change_model", version=version)["stands"] == describe_progress(intent)
    harness.control_plane.record_action(intent, "failed")
    stands = harness.fire("executor", "change_model", version=version)["stands"]
    assert stands == f"its last attempt failed, which is not recorded yet: {intent.id}"
    harness.fire("executor", "model_changed")
    assert harness.fire("executor", "change_model", version=version)["stands"].startswith("it was rejected: ")
    assert isinstance(harness.intent("executor", "change_model", version=version, again=True), Intent)


def test_two_sensors_have_nothing_labelled_twice(harness: LoopHarness) -> None:
    (harness.folder / "own.py").write_text(
        "asked = []\ndef label(items, context):\n    asked.extend(i['id'] for i in items)\n"
        "    return {i['id']: 7 for i in items}\n"
    )
    harness.parameters = {"checker": {"labeller": "own.py:label"}}
    harness.control_plane.want_labels(
        "mnist", [{"id": f"r:{n}", "run": "r", "data": {}, "guess": 1} for n in range(50)]
    )
    declared, start = harness.load("checker"), Barrier(4)

    def look(_: int) -> int:
        start.wait(PATIENCE_S)
        return int(harness.look(declared, "checker", "label_picked")["labelled"])

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(look, range(4))) == [0, 0, 0, 50]
    assert len(harness.control_plane.labels("mnist", state="given")) == 50


def test_the_agents_tell_what_they_found_out(harness: LoopHarness) -> None:
    run_id = harness.log_predictions(1000)
    harness.end_detection("calm-otter-1", [f"{run_id}:{n}" for n in range(3)], run_ids=[run_id])
    harness.fire("checker", "detection_ended")
    harness.end_detection("calm-otter-2", [], run_ids=[run_id], drifted=0)
    harness.fire("checker", "detection_ended")
    version = harness.end_retraining("bold-fox-2", 0.8, 0.9, champion_version=1)
    harness.fire("planner", "retraining_ended")
    harness.fire("planner", "retraining_ended")
    intent = harness.intent("executor", "change_model", version=version)
    harness.control_plane.serves(f"models:/mnist_cnn/{version}")
    harness.control_plane.record_action(intent)
    harness.control_plane.now += 100
    harness.fire("executor", "model_changed")

    assert [(event.type, event.subject) for event in harness.control_plane.events] == [
        ("drift.found", "workflow/detector"),
        ("drift.none", "workflow/detector"),
        ("model.judged", "model/mnist_cnn"),
        ("model.promoted", "model/mnist_cnn"),
    ]
    [judged] = list_events(harness, "model.judged")
    evidence = judged.data.pop("evidence")
    assert isinstance(evidence, dict)
    assert (evidence["verdict"], evidence["n"], evidence["run"]) == ("promote", 1000, "bold-fox-2")
    assert intent.evidence == {}, "the executor was asked by hand"
    assert judged.data.pop("began") == judged.at, "of the run, which takes no time here"
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
    [promoted] = list_events(harness, "model.promoted")
    assert (promoted.data["version"], promoted.data["before"], promoted.data["action"]) == (version, 1, intent.id)


def test_the_executor_reports_the_requests_of_the_service_since_it_last_looked(harness: LoopHarness) -> None:
    declared, served = harness.load("executor"), harness.control_plane

    def look(**revisions: tuple[int, int]) -> list[tuple[Any, ...]]:
        served.now += 10
        records = tuple(
            RevisionRecord(id=id, models={"cnn": f"models:/mnist_cnn/{id[1:]}"}, requests=count, errors=bad, p95_s=0.1)
            for id, (count, bad) in revisions.items()
        )
        served.deployed["serve"] = served.deployed["serve"].model_copy(update={"revisions": records})
        before = len(served.events)
        harness.look(declared, "executor", "service_measured")
        names = ("version", "requests", "errors", "since", "p95_s")
        return [tuple(event.data[name] for name in names) for event in served.events[before:]]

    served.serves("models:/mnist_cnn/1")
    assert look(r1=(500, 1)) == []  # when that was is not known
    first = served.now
    assert look(r1=(520, 3)) == [("V1", 20, 2, first, 0.1)]
    assert look(r1=(520, 3)) == []  # it was not asked
    third = served.now
    assert look(r1=(530, 3), r2=(5, 0)) == [("V1", 10, 0, third, 0.1), ("V2", 5, 0, third, 0.1)]
    assert [row[:3] for row in look(r2=(2, 1))] == [("V2", 2, 1)]  # it was started anew
    del served.deployed["serve"]
    assert harness.look(declared, "executor", "service_measured") == {"requests": 0}
