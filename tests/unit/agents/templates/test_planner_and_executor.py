"""The planner's and the executor's decisions: when to retrain, whether to change, and what is noted of a change."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.agent.agent_records import Decision, Intent
from scanflow.agent.sensors.sensed_runs import Run
from scanflow.drift.promotion import format_decision
from scanflow.knowledge.labelled_points import read_json
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow_agents.templates.bookmarks import get_end_time, select_oldest
from tests.unit.agents.templates.fakes import LoopHarness, answers, describe_progress, list_events

# -- retraining


def test_99_labels_are_too_few_and_100_are_enough_and_are_kept_as_one_file(harness: LoopHarness) -> None:
    harness.give_labels([f"p:{number}" for number in range(99)])
    assert harness.wants("planner", "count_number_of_pickeddata") == []
    harness.give_labels(["p:99"])
    intent = harness.intent("planner", "count_number_of_pickeddata")
    assert (intent.budget, intent.budget_window_s, intent.cool_down_s) == (4, 86_400.0, 300.0)
    assert harness.intent("planner", "count_number_of_pickeddata").arguments == intent.arguments


@pytest.mark.parametrize(("learn_from", "count"), [("all", 150), ("new", 50)])
def test_labels_that_were_learnt_from_start_no_retraining(harness: LoopHarness, learn_from: str, count: int) -> None:
    harness.parameters["planner"] = {"min_picked": 50, "learn_from": learn_from}
    harness.give_labels([f"p:{number}" for number in range(100)])
    labels = _labels(harness.intent("planner", "count_number_of_pickeddata"))
    harness.end_retraining("bold-fox-1", 0.9, 0.8, labels=labels)
    assert harness.wants("planner", "count_number_of_pickeddata") == [], "it has ended, and nobody has noted that yet"
    harness.fire("planner", "retraining_ended")
    assert harness.wants("planner", "count_number_of_pickeddata") == []
    harness.give_labels([f"p:{number}" for number in range(100, 150)])
    labels = _labels(harness.intent("planner", "count_number_of_pickeddata"))
    points = read_json(harness.tracker, labels, "labels.json")
    assert (len(points), {point["label"] for point in points}) == (count, {7})


def test_a_run_that_does_not_say_its_labels_had_the_newest_from_before_it(harness: LoopHarness) -> None:
    harness.parameters["planner"] = {"min_picked": 1}
    harness.give_labels(["p:1"])
    harness.intent("planner", "count_number_of_pickeddata")
    harness.end_retraining("bold-fox-1", 0.9, 0.8)
    harness.give_labels(["p:2"])
    harness.fire("planner", "retraining_ended")
    assert harness.fire("planner", "count_number_of_pickeddata")["picked"] == 1


@pytest.mark.parametrize(("state", "wanted"), [("running", 0), ("failed", 1), ("stopped", 1)])
def test_one_retraining_at_a_time_and_a_failed_one_is_made_again(harness: LoopHarness, state: Any, wanted: int) -> None:
    harness.give_labels([f"p:{number}" for number in range(100)])
    harness.control_plane.ran("bold-fox-1", "training", {}, state=state)
    assert len(harness.wants("planner", "count_number_of_pickeddata")) == wanted


# -- the gate


@pytest.mark.parametrize(
    ("champion", "challenger", "min_gain", "verdict"),
    [
        (0.90, 0.92, 0.0, "promote"),
        (0.90, 0.90, 0.0, "reject"),
        (0.90, 0.85, 0.0, "reject"),
        (0.90, 0.91, 0.02, "reject"),
        (0.90, 0.925, 0.02, "wait"),
        (0.90, 0.96, 0.02, "promote"),
    ],
)
def test_a_challenger_has_to_be_better_by_more_than_the_gain_for_certain(
    harness: LoopHarness, champion: float, challenger: float, min_gain: float, verdict: str
) -> None:
    harness.parameters["planner"] = {"min_gain": min_gain}
    version = harness.end_retraining("bold-fox-1", champion, challenger)
    value = harness.fire("planner", "retraining_ended")
    assert value["verdict"] == verdict, value
    assert bool(harness.wants("planner", "retraining_ended")) is (verdict == "promote")
    assert (harness.promotion(version) or "").startswith("rejected: ") is (verdict == "reject")
    harness.end_retraining("bold-fox-2", 0.80, 0.70)
    assert harness.wants("planner", "retraining_ended") == [], "only the newest counts"


def forgetting(harness: LoopHarness, *, clean: float, forgets: float = 0.04) -> int:
    """Have a challenger trained that is better on the drift of the run ``r``, and forgets what a share of the traffic
    since is."""
    harness.note_look("r", picked=300, predictions=1000)
    if clean:
        harness.note_look("calm-fox-1", predictions=round(1000 * clean / (1 - clean)), clean=1.0)
    harness.give_labels([f"p:{number}" for number in range(100)], run="r")
    labels = _labels(harness.intent("planner", "count_number_of_pickeddata"))
    slices = [answers("current", 200, 0.6, 0.8), answers("clean", 1000, 0.97, 0.97 - forgets)]
    return harness.end_retraining("bold-fox-1", 0.6, 0.8, slices=slices, labels=labels)


def test_what_nobody_sends_any_more_keeps_a_better_model_out_no_more(harness: LoopHarness) -> None:
    version = forgetting(harness, clean=0.0, forgets=0.02)
    call = harness.call("planner", "retraining_ended")
    assert call.kwargs["version"] == version
    [want] = harness.pass_on(call)
    assert isinstance(want, Intent)
    assert (want.strategy, want.autonomy) == ("change_model_transition", "auto")


def test_a_person_weighs_what_nobody_sends_any_more_and_is_consulted_once(harness: LoopHarness) -> None:
    version = forgetting(harness, clean=0.0, forgets=0.10)
    [want] = harness.pass_on(harness.call("planner", "retraining_ended"))
    assert isinstance(want, Intent)
    assert (want.strategy, want.autonomy) == ("change_model_on_approval", "approve")
    waits = Decision(intent=want.id, verdict="approve", reason="", at=harness.control_plane.now)
    harness.control_plane.record_action(want, "pending", decision=waits)
    assert harness.fire("executor", "change_model", version=version)["stands"] == describe_progress(want)
    other = harness.version()
    assert harness.fire("executor", "change_model", version=other)["stands"] is None, "the next one takes its place"

    no = Decision(intent=want.id, verdict="refuse", reason="ada refused it: too much", by="ada", at=0.0)
    harness.control_plane.record_action(want, "refused", decision=no)
    harness.fire("executor", "model_changed")
    assert harness.promotion(version) == "rejected: ada refused it: too much"
    harness.control_plane.now += 100.0
    assert harness.wants("planner", "retraining_ended") == []


def test_a_better_model_that_forgets_is_rejected_with_the_reason_and_stays_so(harness: LoopHarness) -> None:
    version = forgetting(harness, clean=0.5)
    assert harness.wants("planner", "retraining_ended") == []
    assert harness.promotion(version) == (
        "rejected: worse on 'clean' by 4.0 points, at least 2.9 points, but 0.9 points are allowed"
    )
    harness.tracker.set_model_tags("mnist_cnn", version, {"scanflow.promotion": "asked for again"})
    harness.fire("planner", "retraining_ended")
    assert harness.promotion(version) == "asked for again", "a person's word stands"
    [judged] = list_events(harness, "model.judged")
    assert format_decision(cast("Any", judged.data["evidence"])).startswith(
        "Keep version 1 (60.0 %); version 2 (80.0 %) is rejected, n = "
    )


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"champion_accuracy": 0.5, "challenger_accuracy": 0.9, "champion_version": 1}, "no output 'slices'"),
        ({}, "no output 'slices'"),
        ({"slices": [{"name": "clean"}]}, "no output 'champion_version'"),
    ],
)
def test_a_training_that_does_not_say_both_models_answers_promotes_nothing_and_is_reported(
    harness: LoopHarness, outputs: dict[str, Any], message: str
) -> None:
    harness.give_labels([f"p:{number}" for number in range(100)])
    intent = harness.intent("planner", "count_number_of_pickeddata")
    version = harness.version()
    harness.control_plane.record_action(intent, result={"run": "bold-fox-1"})
    harness.control_plane.ran("bold-fox-1", "training", {"version": version, **outputs})
    for _ in range(2):
        assert harness.wants("planner", "retraining_ended") == []
    [judged] = list_events(harness, "model.judged")
    assert isinstance(judged.data["evidence"], dict)
    reason = str(judged.data["evidence"]["reason"])
    assert [words in reason for words in (message, "docs/own-data.md", "bold-fox-1")] == [True, True, True], reason
    assert harness.promotion(version) is None


def test_while_labels_come_and_more_are_wanted_it_waits_for_them_but_not_for_ever(harness: LoopHarness) -> None:
    harness.parameters["planner"] = {"min_picked": 10, "interval_s": 60}
    harness.give_labels([f"p:{number}" for number in range(10)])
    harness.control_plane.want_labels("mnist", [{"id": "w", "run": "r", "purpose": "train", "data": {}}])
    planner = harness.load("planner")
    for number in range(10):
        assert harness.look(planner, "planner", "count_number_of_pickeddata")["busy"] == "labels are still coming in", (
            number
        )
        harness.give_labels([f"q:{number}"])
        harness.control_plane.now += 60.0
    assert harness.look(planner, "planner", "count_number_of_pickeddata")["batch"], "it does not wait for ever"


def test_when_no_more_labels_came_it_waits_no_longer_for_those_that_are_wanted(harness: LoopHarness) -> None:
    harness.parameters["planner"] = {"min_picked": 10}
    harness.give_labels([f"p:{number}" for number in range(10)])
    harness.control_plane.want_labels("mnist", [{"id": "w", "run": "r", "purpose": "train", "data": {}}])
    planner = harness.load("planner")
    batches = [harness.look(planner, "planner", "count_number_of_pickeddata")["batch"] for _ in range(2)]
    assert [batch is None for batch in batches] == [True, False]


# -- a challenger that waits for labels


def waiting(harness: LoopHarness, n: int = 40) -> tuple[int, str]:
    """Have a challenger trained that is better, by too few points."""
    harness.parameters["planner"] = {"min_picked": 10}
    harness.give_labels([f"e:{number}" for number in range(n)], purpose="evaluate")
    harness.give_labels([f"p:{number}" for number in range(10)])
    labels = _labels(harness.intent("planner", "count_number_of_pickeddata"))
    slices = [answers("current", n, 0.5, 0.9), answers("clean", 2000, 0.97, 0.97)]
    return harness.end_retraining("bold-fox-1", 0.5, 0.9, slices=slices, labels=labels), labels


def test_a_challenger_waits_for_labels_and_is_evaluated_again_when_they_came(harness: LoopHarness) -> None:
    version, _ = waiting(harness)
    for _ in range(2):
        assert harness.fire("planner", "retraining_ended")["evidence"]["needed"] == 10
        harness.control_plane.now += 100.0
    harness.give_labels([f"e:{number}" for number in range(40, 49)], purpose="evaluate")
    assert harness.wants("planner", "retraining_ended") == []
    harness.give_labels(["e:49"], purpose="evaluate")
    again = harness.intent("planner", "retraining_ended")
    run_parameters = again.arguments["parameters"]
    assert isinstance(run_parameters, dict)
    assert (run_parameters["evaluate"], run_parameters["model_uri"]) == (
        f"models:/mnist_cnn/{version}",
        "models:/mnist_cnn/1",
    )
    points = read_json(harness.tracker, str(run_parameters["labels"]), "labels.json")
    assert Counter(point["purpose"] for point in points) == {"evaluate": 50, "train": 10}
    harness.unanswered = [again]
    assert harness.wants("planner", "retraining_ended") == [], "it was asked for"
    harness.unanswered = []

    slices = [answers("current", 50, 0.5, 0.9), answers("clean", 2000, 0.97, 0.97)]
    outputs = {"champion_accuracy": 0.5, "challenger_accuracy": 0.9, "version": version, "champion_version": 1}
    harness.control_plane.ran(
        "bold-fox-2", "training", {**outputs, "slices": slices, "labels": run_parameters["labels"]}
    )
    value = harness.call("planner", "retraining_ended").kwargs["evidence"]
    assert (value["verdict"], value["look"]) == ("promote", 1), "what could not promote was no look"
    assert harness.wants("planner", "count_number_of_pickeddata") == [], "an evaluation has learnt nothing anew"


def test_each_look_at_the_same_challenger_has_less_of_the_level(harness: LoopHarness) -> None:
    version, labels = waiting(harness, 60)
    fields = {"version": version, "champion_version": 1, "labels": labels}
    for look in (2, 3):
        part = answers("current", 60 * look, 0.7, 0.72, churn=5)
        accuracies = {"champion_accuracy": 0.7, "challenger_accuracy": 0.72}
        harness.control_plane.ran(f"bold-fox-{look}", "training", {**accuracies, **fields, "slices": [part]})
        harness.fire("planner", "retraining_ended")
    levels = [cast("Any", event.data["evidence"])["level"] for event in list_events(harness, "model.judged")]
    assert levels == pytest.approx([0.04, 0.005, 0.01 / 6])
    harness.control_plane.now += 1000.0
    assert harness.fire("planner", "retraining_ended")["evidence"]["look"] == 3, "a restart forgets no look"


def test_the_columns_that_drifted_are_part_of_the_evidence(harness: LoopHarness) -> None:
    harness.parameters["planner"] = {"min_picked": 10}
    ids = [f"p:{number}" for number in range(10)]
    harness.end_detection("calm-otter-1", ids, columns=[{"name": "latitude"}, {"name": "age"}])
    harness.fire("checker", "detection_ended")
    harness.give_labels(ids)
    harness.end_detection("calm-otter-2", [], columns=[{"name": "colour"}])
    harness.fire("checker", "detection_ended")
    labels = _labels(harness.intent("planner", "count_number_of_pickeddata"))
    harness.end_retraining("bold-fox-1", 0.5, 0.9, labels=labels)
    assert harness.call("planner", "retraining_ended").kwargs["evidence"]["drifted"] == ["latitude", "age"]


def test_a_challenger_is_requested_until_it_is_in_use_or_rejected(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-1", 0.80, 0.95)
    assert harness.wants("planner", "retraining_ended")
    assert harness.wants("planner", "retraining_ended")
    harness.tracker.set_model_tags("mnist_cnn", version, {"scanflow.promotion": "rejected: it fails to load"})
    assert harness.wants("planner", "retraining_ended") == []
    harness.tracker.set_model_tags("mnist_cnn", version, {"scanflow.promotion": "asked for again"})
    assert harness.wants("planner", "retraining_ended")
    harness.tracker.set_model_alias("mnist_cnn", "champion", version)
    assert harness.wants("planner", "retraining_ended") == []


@pytest.mark.parametrize(("against", "stands"), [(1, "compared with version 1"), (2, None)])
def test_a_comparison_with_another_champion_does_not_count(
    harness: LoopHarness, against: int, stands: str | None
) -> None:
    harness.version()
    harness.tracker.set_model_alias("mnist_cnn", "champion", 2)
    harness.end_retraining("bold-fox-1", 0.80, 0.95, champion_version=against)
    value = harness.fire("planner", "retraining_ended")["stands"]
    assert value is None if stands is None else stands in value


def test_a_version_older_than_the_one_in_use_does_not_come_back(harness: LoopHarness) -> None:
    harness.end_retraining("bold-fox-1", 0.80, 0.95)
    harness.version()
    harness.tracker.set_model_alias("mnist_cnn", "champion", 3)
    assert "newer" in harness.fire("planner", "retraining_ended")["stands"]


@pytest.mark.parametrize("accuracy", ["0.9", None, True, float("nan")])
def test_a_run_without_two_numbers_is_no_challenger(harness: LoopHarness, accuracy: Any) -> None:
    outputs = {"champion_accuracy": 0.5, "challenger_accuracy": accuracy, "version": 1}
    harness.control_plane.ran("bold-fox-1", "training", outputs)
    assert harness.wants("planner", "retraining_ended") == []


# -- what is noted of a change


def test_a_version_that_is_taken_back_is_rejected_and_not_requested_again(harness: LoopHarness) -> None:
    version, swap = _swap(harness)
    harness.control_plane.serves("models:/mnist_cnn/1")
    harness.fire("executor", "change_model", version=version)  # it is taken back, and not marked so yet
    harness.control_plane.record_action(swap, "reverted", reverted_by="service.serve.errors")
    assert harness.fire("executor", "model_changed")["changes"][0]["verdict"] == "reject"
    assert harness.promotion(version) == "rejected: reverted by service.serve.errors"
    assert len(list_events(harness, "model.rejected")) == 1
    assert harness.champion() == 1
    assert harness.wants("planner", "retraining_ended") == []
    assert harness.wants("executor", "change_model", version=version) == []
    assert harness.wants("executor", "change_model", version=version, again=True)


def test_a_model_that_fails_to_load_is_rejected_with_the_reason(harness: LoopHarness) -> None:
    version, swap = _swap(harness)
    harness.control_plane.serves("models:/mnist_cnn/1")
    harness.control_plane.record_action(swap, "failed", error="The model cannot be loaded:\nno such layer")
    harness.fire("executor", "model_changed")
    assert harness.promotion(version) == "rejected: The model cannot be loaded: no such layer"


def test_a_champion_stays_where_a_person_puts_the_alias_and_taken_back_it_gives_it_back(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-1", 0.80, 0.95)
    swap = harness.promote(version)
    harness.tracker.set_model_alias("mnist_cnn", "champion", 1)
    assert harness.fire("executor", "model_changed") == {"changes": []}
    assert harness.champion() == 1
    harness.tracker.set_model_alias("mnist_cnn", "champion", version)
    harness.control_plane.record_action(swap, "reverted", reverted_by="ada")
    harness.control_plane.serves("models:/mnist_cnn/1")
    harness.fire("executor", "model_changed")
    assert harness.champion() == 1
    assert harness.fire("executor", "model_changed") == {"changes": []}


def test_a_version_that_is_served_or_where_the_service_is_not_there_changes_nothing(harness: LoopHarness) -> None:
    assert harness.fire("executor", "change_model", version=1)["stands"] == "it is served"
    harness.control_plane.deployed.clear()
    assert "not deployed" in harness.fire("executor", "change_model", version=1)["stands"]


@pytest.mark.parametrize(
    ("state", "served", "waited_s", "verdict"),
    [
        ("succeeded", True, 62.0, "promote"),
        ("succeeded", True, 61.0, "wait"),
        ("succeeded", False, 100.0, "wait"),
        ("being taken back", True, 100.0, "wait"),
        ("lost", True, 62.0, "promote"),
        ("lost", False, 100.0, "wait"),
        ("failed", True, 0.0, "reject"),
        ("reverted", False, 0.0, "reject"),
    ],
)
def test_a_change_is_judged_by_its_state_its_time_and_what_is_served(
    harness: LoopHarness, state: str, served: bool, waited_s: float, verdict: str
) -> None:
    version, swap = _swap(harness)
    if state == "being taken back":
        harness.control_plane.record_action(swap, reverted_by="the guard")
    else:
        harness.control_plane.record_action(swap, state)
    harness.control_plane.serves(f"models:/mnist_cnn/{version if served else 1}")
    harness.control_plane.now += waited_s
    assert harness.fire("executor", "model_changed")["changes"][0]["verdict"] == verdict
    assert harness.champion() == (version if verdict == "promote" else 1)
    if verdict == "wait":
        assert (harness.promotion(version), list_events(harness, "model.rejected")) == (None, [])


def test_what_was_wanted_earlier_and_begun_later_is_the_newest(harness: LoopHarness) -> None:
    first, second = (harness.end_retraining(f"bold-fox-{number}", 0.80, 0.95) for number in (1, 2))
    late, early = (harness.intent("executor", "change_model", version=version) for version in (first, second))
    harness.control_plane.now += 10.0
    harness.control_plane.record_action(late)
    harness.control_plane.now -= 10.0
    harness.control_plane.record_action(early)
    harness.control_plane.serves(f"models:/mnist_cnn/{first}")
    harness.control_plane.now += 100.0
    harness.fire("executor", "model_changed")
    assert harness.champion() == first


# -- the layer below


@given(
    value=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=30),
    most=st.integers(1, 10),
    least=st.integers(0, 40),
)
def test_cut_off_runs_are_the_later_ones_and_all_of_a_moment_and_what_is_left_is_enough(
    value: list[tuple[int, int]], most: int, least: int
) -> None:
    runs, sizes = _runs(sorted(end for end, _ in value)), [size for _, size in value]
    held = {run.run_id: size for run, size in zip(runs, sizes, strict=True)}
    taken = select_oldest(runs, most, least=least, size=lambda run: held[run.run_id])
    rest = runs[len(taken) :]
    assert taken == runs[: len(taken)]
    assert bool(taken) is bool(runs)
    assert sum(held[run.run_id] for run in taken) >= min(least, sum(sizes))
    if rest:
        assert get_end_time(taken[-1]) < get_end_time(rest[0])
    before = [run for run in taken if get_end_time(run) < get_end_time(taken[-1])] if taken else []
    if len(taken) > most and before:
        assert sum(held[run.run_id] for run in before) < least, "it is more than asked for only where it has to be"


def _labels(intent: Intent) -> str:
    run_parameters = intent.arguments["parameters"]
    assert isinstance(run_parameters, dict)
    return str(run_parameters["labels"])


def _swap(harness: LoopHarness) -> tuple[int, Intent]:
    version = harness.end_retraining("bold-fox-1", 0.80, 0.95)
    swap = harness.intent("executor", "change_model", version=version)
    harness.control_plane.serves(f"models:/mnist_cnn/{version}")
    return version, swap


def _runs(ends: list[int]) -> list[Run]:
    tracker = MemoryKnowledge(clock=lambda: datetime.fromtimestamp(9, UTC))
    moments = [datetime.fromtimestamp(end, UTC) for end in ends]
    logged = [tracker.log_run("mnist", "data", started_at=moment, ended_at=moment) for moment in moments]
    return [Run(**{name: getattr(run, name) for name in type(run).model_fields}) for run in logged]


def test_another_team_s_labels_are_not_learnt_from(harness: LoopHarness) -> None:
    items: list[dict[str, Any]] = [{"id": f"p{number}", "run": "r", "data": {}, "guess": 1} for number in range(150)]
    harness.control_plane.want_labels("mnist", items, team="others")
    harness.control_plane.give_labels("mnist", {item["id"]: 7 for item in items}, by="ada")
    value = harness.fire("planner", "count_number_of_pickeddata")
    assert (value["labels"], value["batch"]) == (0, None)
