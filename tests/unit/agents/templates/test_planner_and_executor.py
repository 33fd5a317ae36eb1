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
from tests.unit.agents.templates.fakes import World, answers, describe_progress, told

# -- retraining


def test_99_labels_are_too_few_and_100_are_enough_and_are_kept_as_one_file(world: World) -> None:
    world.given([f"p:{number}" for number in range(99)])
    assert world.wants("planner", "count_number_of_pickeddata") == []
    world.given(["p:99"])
    intent = world.intent("planner", "count_number_of_pickeddata")
    assert (intent.budget, intent.budget_window_s, intent.cool_down_s) == (4, 86_400.0, 300.0)
    assert world.intent("planner", "count_number_of_pickeddata").arguments == intent.arguments


@pytest.mark.parametrize(("learn_from", "count"), [("all", 150), ("new", 50)])
def test_labels_that_were_learnt_from_start_no_retraining(world: World, learn_from: str, count: int) -> None:
    world.parameters["planner"] = {"min_picked": 50, "learn_from": learn_from}
    world.given([f"p:{number}" for number in range(100)])
    labels = _labels(world.intent("planner", "count_number_of_pickeddata"))
    world.retrained("bold-fox-1", 0.9, 0.8, labels=labels)
    assert world.wants("planner", "count_number_of_pickeddata") == [], "it has ended, and nobody has noted that yet"
    world.fire("planner", "retraining_ended")
    assert world.wants("planner", "count_number_of_pickeddata") == []
    world.given([f"p:{number}" for number in range(100, 150)])
    labels = _labels(world.intent("planner", "count_number_of_pickeddata"))
    points = read_json(world.tracker, labels, "labels.json")
    assert (len(points), {one["label"] for one in points}) == (count, {7})


def test_a_run_that_does_not_say_its_labels_had_the_newest_from_before_it(world: World) -> None:
    world.parameters["planner"] = {"min_picked": 1}
    world.given(["p:1"])
    world.intent("planner", "count_number_of_pickeddata")
    world.retrained("bold-fox-1", 0.9, 0.8)
    world.given(["p:2"])
    world.fire("planner", "retraining_ended")
    assert world.fire("planner", "count_number_of_pickeddata")["picked"] == 1


@pytest.mark.parametrize(("state", "wanted"), [("running", 0), ("failed", 1), ("stopped", 1)])
def test_one_retraining_at_a_time_and_a_failed_one_is_made_again(world: World, state: Any, wanted: int) -> None:
    world.given([f"p:{number}" for number in range(100)])
    world.control_plane.ran("bold-fox-1", "training", {}, state=state)
    assert len(world.wants("planner", "count_number_of_pickeddata")) == wanted


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
    world: World, champion: float, challenger: float, min_gain: float, verdict: str
) -> None:
    world.parameters["planner"] = {"min_gain": min_gain}
    version = world.retrained("bold-fox-1", champion, challenger)
    found = world.fire("planner", "retraining_ended")
    assert found["verdict"] == verdict, found
    assert bool(world.wants("planner", "retraining_ended")) is (verdict == "promote")
    assert (world.promotion(version) or "").startswith("rejected: ") is (verdict == "reject")
    world.retrained("bold-fox-2", 0.80, 0.70)
    assert world.wants("planner", "retraining_ended") == [], "only the newest counts"


def forgetting(world: World, *, clean: float, forgets: float = 0.04) -> int:
    """Have a challenger trained that is better on the drift of the run ``r``, and forgets what a share of the traffic
    since is."""
    world.looked_at("r", picked=300, predictions=1000)
    if clean:
        world.looked_at("calm-fox-1", predictions=round(1000 * clean / (1 - clean)), clean=1.0)
    world.given([f"p:{number}" for number in range(100)], run="r")
    labels = _labels(world.intent("planner", "count_number_of_pickeddata"))
    slices = [answers("current", 200, 0.6, 0.8), answers("clean", 1000, 0.97, 0.97 - forgets)]
    return world.retrained("bold-fox-1", 0.6, 0.8, slices=slices, labels=labels)


def test_what_nobody_sends_any_more_keeps_a_better_model_out_no_more(world: World) -> None:
    version = forgetting(world, clean=0.0, forgets=0.02)
    call = world.call("planner", "retraining_ended")
    assert call.kwargs["version"] == version
    [want] = world.passed_on(call)
    assert isinstance(want, Intent)
    assert (want.strategy, want.autonomy) == ("change_model_transition", "auto")


def test_a_person_weighs_what_nobody_sends_any_more_and_is_asked_once(world: World) -> None:
    version = forgetting(world, clean=0.0, forgets=0.10)
    [want] = world.passed_on(world.call("planner", "retraining_ended"))
    assert isinstance(want, Intent)
    assert (want.strategy, want.autonomy) == ("change_model_on_approval", "approve")
    waits = Decision(intent=want.id, verdict="approve", reason="", at=world.control_plane.now)
    world.control_plane.acted(want, "pending", decision=waits)
    assert world.fire("executor", "change_model", version=version)["stands"] == describe_progress(want)
    other = world.version()
    assert world.fire("executor", "change_model", version=other)["stands"] is None, "the next one takes its place"

    no = Decision(intent=want.id, verdict="refuse", reason="ada refused it: too much", by="ada", at=0.0)
    world.control_plane.acted(want, "refused", decision=no)
    world.fire("executor", "model_changed")
    assert world.promotion(version) == "rejected: ada refused it: too much"
    world.control_plane.now += 100.0
    assert world.wants("planner", "retraining_ended") == []


def test_a_better_model_that_forgets_is_rejected_with_the_reason_and_stays_so(world: World) -> None:
    version = forgetting(world, clean=0.5)
    assert world.wants("planner", "retraining_ended") == []
    assert world.promotion(version) == (
        "rejected: worse on 'clean' by 4.0 points, at least 2.9 points, but 0.9 points are allowed"
    )
    world.tracker.set_model_tags("mnist_cnn", version, {"scanflow.promotion": "asked for again"})
    world.fire("planner", "retraining_ended")
    assert world.promotion(version) == "asked for again", "a person's word stands"
    [judged] = told(world, "model.judged")
    assert format_decision(cast("Any", judged.data["evidence"])).startswith(
        "Keep version 1 (60.0 %); version 2 (80.0 %) is rejected, n = "
    )


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"champion_accuracy": 0.5, "challenger_accuracy": 0.9, "champion_version": 1}, "no output 'slices'"),
        ({}, "no output 'slices'"),
        ({"slices": [{"name": "clean"}]}, "no output 'champion_version'"),
    ],
)
def test_a_training_that_does_not_say_both_models_answers_promotes_nothing_and_is_told(
    world: World, outputs: dict[str, Any], said: str
) -> None:
    world.given([f"p:{number}" for number in range(100)])
    intent = world.intent("planner", "count_number_of_pickeddata")
    version = world.version()
    world.control_plane.acted(intent, result={"run": "bold-fox-1"})
    world.control_plane.ran("bold-fox-1", "training", {"version": version, **outputs})
    for _ in range(2):
        assert world.wants("planner", "retraining_ended") == []
    [judged] = told(world, "model.judged")
    assert isinstance(judged.data["evidence"], dict)
    reason = str(judged.data["evidence"]["reason"])
    assert [words in reason for words in (said, "docs/own-data.md", "bold-fox-1")] == [True, True, True], reason
    assert world.promotion(version) is None


def test_while_labels_come_and_more_are_wanted_it_waits_for_them_but_not_for_ever(world: World) -> None:
    world.parameters["planner"] = {"min_picked": 10, "interval_s": 60}
    world.given([f"p:{number}" for number in range(10)])
    world.control_plane.want_labels("mnist", [{"id": "w", "run": "r", "purpose": "train", "data": {}}])
    planner = world.load("planner")
    for number in range(10):
        assert world.look(planner, "planner", "count_number_of_pickeddata")["busy"] == "labels are still coming in", (
            number
        )
        world.given([f"q:{number}"])
        world.control_plane.now += 60.0
    assert world.look(planner, "planner", "count_number_of_pickeddata")["batch"], "it does not wait for ever"


def test_when_no_more_labels_came_it_waits_no_longer_for_those_that_are_wanted(world: World) -> None:
    world.parameters["planner"] = {"min_picked": 10}
    world.given([f"p:{number}" for number in range(10)])
    world.control_plane.want_labels("mnist", [{"id": "w", "run": "r", "purpose": "train", "data": {}}])
    planner = world.load("planner")
    found = [world.look(planner, "planner", "count_number_of_pickeddata")["batch"] for _ in range(2)]
    assert [batch is None for batch in found] == [True, False]


# -- a challenger that waits for labels


def waiting(world: World, n: int = 40) -> tuple[int, str]:
    """Have a challenger trained that is better, by too few points."""
    world.parameters["planner"] = {"min_picked": 10}
    world.given([f"e:{number}" for number in range(n)], purpose="evaluate")
    world.given([f"p:{number}" for number in range(10)])
    labels = _labels(world.intent("planner", "count_number_of_pickeddata"))
    slices = [answers("current", n, 0.5, 0.9), answers("clean", 2000, 0.97, 0.97)]
    return world.retrained("bold-fox-1", 0.5, 0.9, slices=slices, labels=labels), labels


def test_a_challenger_waits_for_labels_and_is_evaluated_again_when_they_came(world: World) -> None:
    version, _ = waiting(world)
    for _ in range(2):
        assert world.fire("planner", "retraining_ended")["evidence"]["needed"] == 10
        world.control_plane.now += 100.0
    world.given([f"e:{number}" for number in range(40, 49)], purpose="evaluate")
    assert world.wants("planner", "retraining_ended") == []
    world.given(["e:49"], purpose="evaluate")
    again = world.intent("planner", "retraining_ended")
    given = again.arguments["parameters"]
    assert isinstance(given, dict)
    assert (given["evaluate"], given["model_uri"]) == (f"models:/mnist_cnn/{version}", "models:/mnist_cnn/1")
    points = read_json(world.tracker, str(given["labels"]), "labels.json")
    assert Counter(one["purpose"] for one in points) == {"evaluate": 50, "train": 10}
    world.unanswered = [again]
    assert world.wants("planner", "retraining_ended") == [], "it was asked for"
    world.unanswered = []

    slices = [answers("current", 50, 0.5, 0.9), answers("clean", 2000, 0.97, 0.97)]
    outputs = {"champion_accuracy": 0.5, "challenger_accuracy": 0.9, "version": version, "champion_version": 1}
    world.control_plane.ran("bold-fox-2", "training", {**outputs, "slices": slices, "labels": given["labels"]})
    found = world.call("planner", "retraining_ended").kwargs["evidence"]
    assert (found["verdict"], found["look"]) == ("promote", 1), "what could not promote was no look"
    assert world.wants("planner", "count_number_of_pickeddata") == [], "an evaluation has learnt nothing anew"


def test_each_look_at_the_same_challenger_has_less_of_the_level(world: World) -> None:
    version, labels = waiting(world, 60)
    known = {"version": version, "champion_version": 1, "labels": labels}
    for look in (2, 3):
        part = answers("current", 60 * look, 0.7, 0.72, churn=5)
        accuracies = {"champion_accuracy": 0.7, "challenger_accuracy": 0.72}
        world.control_plane.ran(f"bold-fox-{look}", "training", {**accuracies, **known, "slices": [part]})
        world.fire("planner", "retraining_ended")
    levels = [cast("Any", event.data["evidence"])["level"] for event in told(world, "model.judged")]
    assert levels == pytest.approx([0.04, 0.005, 0.01 / 6])
    world.control_plane.now += 1000.0
    assert world.fire("planner", "retraining_ended")["evidence"]["look"] == 3, "a restart forgets no look"


def test_the_columns_that_drifted_are_part_of_the_evidence(world: World) -> None:
    world.parameters["planner"] = {"min_picked": 10}
    ids = [f"p:{number}" for number in range(10)]
    world.detected("calm-otter-1", ids, columns=[{"name": "latitude"}, {"name": "age"}])
    world.fire("checker", "detection_ended")
    world.given(ids)
    world.detected("calm-otter-2", [], columns=[{"name": "colour"}])
    world.fire("checker", "detection_ended")
    labels = _labels(world.intent("planner", "count_number_of_pickeddata"))
    world.retrained("bold-fox-1", 0.5, 0.9, labels=labels)
    assert world.call("planner", "retraining_ended").kwargs["evidence"]["drifted"] == ["latitude", "age"]


def test_a_challenger_is_asked_for_until_it_is_in_use_or_rejected(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.80, 0.95)
    assert world.wants("planner", "retraining_ended")
    assert world.wants("planner", "retraining_ended")
    world.tracker.set_model_tags("mnist_cnn", version, {"scanflow.promotion": "rejected: it fails to load"})
    assert world.wants("planner", "retraining_ended") == []
    world.tracker.set_model_tags("mnist_cnn", version, {"scanflow.promotion": "asked for again"})
    assert world.wants("planner", "retraining_ended")
    world.tracker.set_model_alias("mnist_cnn", "champion", version)
    assert world.wants("planner", "retraining_ended") == []


@pytest.mark.parametrize(("against", "stands"), [(1, "compared with version 1"), (2, None)])
def test_a_comparison_with_another_champion_does_not_count(world: World, against: int, stands: str | None) -> None:
    world.version()
    world.tracker.set_model_alias("mnist_cnn", "champion", 2)
    world.retrained("bold-fox-1", 0.80, 0.95, champion_version=against)
    found = world.fire("planner", "retraining_ended")["stands"]
    assert found is None if stands is None else stands in found


def test_a_version_older_than_the_one_in_use_does_not_come_back(world: World) -> None:
    world.retrained("bold-fox-1", 0.80, 0.95)
    world.version()
    world.tracker.set_model_alias("mnist_cnn", "champion", 3)
    assert "newer" in world.fire("planner", "retraining_ended")["stands"]


@pytest.mark.parametrize("accuracy", ["0.9", None, True, float("nan")])
def test_a_run_without_two_numbers_is_no_challenger(world: World, accuracy: Any) -> None:
    outputs = {"champion_accuracy": 0.5, "challenger_accuracy": accuracy, "version": 1}
    world.control_plane.ran("bold-fox-1", "training", outputs)
    assert world.wants("planner", "retraining_ended") == []


# -- what is noted of a change


def test_a_version_that_is_taken_back_is_rejected_and_not_asked_for_again(world: World) -> None:
    version, swap = _swapped(world)
    world.control_plane.serves("models:/mnist_cnn/1")
    world.fire("executor", "change_model", version=version)  # it is taken back, and not marked so yet
    world.control_plane.acted(swap, "reverted", reverted_by="service.serve.errors")
    assert world.fire("executor", "model_changed")["changes"][0]["verdict"] == "reject"
    assert world.promotion(version) == "rejected: reverted by service.serve.errors"
    assert len(told(world, "model.rejected")) == 1
    assert world.champion() == 1
    assert world.wants("planner", "retraining_ended") == []
    assert world.wants("executor", "change_model", version=version) == []
    assert world.wants("executor", "change_model", version=version, again=True)


def test_a_model_that_fails_to_load_is_rejected_with_the_reason(world: World) -> None:
    version, swap = _swapped(world)
    world.control_plane.serves("models:/mnist_cnn/1")
    world.control_plane.acted(swap, "failed", error="The model cannot be loaded:\nno such layer")
    world.fire("executor", "model_changed")
    assert world.promotion(version) == "rejected: The model cannot be loaded: no such layer"


def test_a_champion_stays_where_a_person_puts_the_alias_and_taken_back_it_gives_it_back(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.80, 0.95)
    swap = world.promoted(version)
    world.tracker.set_model_alias("mnist_cnn", "champion", 1)
    assert world.fire("executor", "model_changed") == {"changes": []}
    assert world.champion() == 1
    world.tracker.set_model_alias("mnist_cnn", "champion", version)
    world.control_plane.acted(swap, "reverted", reverted_by="ada")
    world.control_plane.serves("models:/mnist_cnn/1")
    world.fire("executor", "model_changed")
    assert world.champion() == 1
    assert world.fire("executor", "model_changed") == {"changes": []}


def test_a_version_that_is_served_or_whose_service_is_not_there_changes_nothing(world: World) -> None:
    assert world.fire("executor", "change_model", version=1)["stands"] == "it is served"
    world.control_plane.deployed.clear()
    assert "not deployed" in world.fire("executor", "change_model", version=1)["stands"]


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
    world: World, state: str, served: bool, waited_s: float, verdict: str
) -> None:
    version, swap = _swapped(world)
    if state == "being taken back":
        world.control_plane.acted(swap, reverted_by="the guard")
    else:
        world.control_plane.acted(swap, state)
    world.control_plane.serves(f"models:/mnist_cnn/{version if served else 1}")
    world.control_plane.now += waited_s
    assert world.fire("executor", "model_changed")["changes"][0]["verdict"] == verdict
    assert world.champion() == (version if verdict == "promote" else 1)
    if verdict == "wait":
        assert (world.promotion(version), told(world, "model.rejected")) == (None, [])


def test_what_was_wanted_earlier_and_begun_later_is_the_newest(world: World) -> None:
    first, second = (world.retrained(f"bold-fox-{number}", 0.80, 0.95) for number in (1, 2))
    late, early = (world.intent("executor", "change_model", version=version) for version in (first, second))
    world.control_plane.now += 10.0
    world.control_plane.acted(late)
    world.control_plane.now -= 10.0
    world.control_plane.acted(early)
    world.control_plane.serves(f"models:/mnist_cnn/{first}")
    world.control_plane.now += 100.0
    world.fire("executor", "model_changed")
    assert world.champion() == first


# -- the layer below


@given(
    given=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=30),
    most=st.integers(1, 10),
    least=st.integers(0, 40),
)
def test_cut_off_runs_are_the_later_ones_and_all_of_a_moment_and_what_is_left_is_enough(
    given: list[tuple[int, int]], most: int, least: int
) -> None:
    runs, sizes = _runs(sorted(end for end, _ in given)), [size for _, size in given]
    held = {run.run_id: size for run, size in zip(runs, sizes, strict=True)}
    taken = select_oldest(runs, most, least=least, size=lambda run: held[run.run_id])
    left = runs[len(taken) :]
    assert taken == runs[: len(taken)]
    assert bool(taken) is bool(runs)
    assert sum(held[run.run_id] for run in taken) >= min(least, sum(sizes))
    if left:
        assert get_end_time(taken[-1]) < get_end_time(left[0])
    before = [run for run in taken if get_end_time(run) < get_end_time(taken[-1])] if taken else []
    if len(taken) > most and before:
        assert sum(held[run.run_id] for run in before) < least, "it is more than asked for only where it has to be"


def _labels(intent: Intent) -> str:
    given = intent.arguments["parameters"]
    assert isinstance(given, dict)
    return str(given["labels"])


def _swapped(world: World) -> tuple[int, Intent]:
    version = world.retrained("bold-fox-1", 0.80, 0.95)
    swap = world.intent("executor", "change_model", version=version)
    world.control_plane.serves(f"models:/mnist_cnn/{version}")
    return version, swap


def _runs(ends: list[int]) -> list[Run]:
    tracker = MemoryKnowledge(clock=lambda: datetime.fromtimestamp(9, UTC))
    moments = [datetime.fromtimestamp(end, UTC) for end in ends]
    made = [tracker.log_run("mnist", "data", started_at=moment, ended_at=moment) for moment in moments]
    return [Run(**{name: getattr(one, name) for name in type(one).model_fields}) for one in made]


def test_another_team_s_labels_are_not_learnt_from(world: World) -> None:
    items: list[dict[str, Any]] = [{"id": f"p{number}", "run": "r", "data": {}, "guess": 1} for number in range(150)]
    world.control_plane.want_labels("mnist", items, team="others")
    world.control_plane.give_labels("mnist", {one["id"]: 7 for one in items}, by="ada")
    found = world.fire("planner", "count_number_of_pickeddata")
    assert (found["labels"], found["batch"]) == (0, None)
