"""What the executor and the planner make of changes that did not go as they should, and of what people do meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.errors import NotFoundError
from scanflow.knowledge.version_tags import (
    BEFORE,
    BY_HAND,
    PROMOTED,
    PROMOTION,
    describe_out_of_use,
    format_decision_tags,
)
from tests.unit.agents.templates.fakes import LoopHarness, describe_progress, list_events

AWAY = "MLflow does not answer"
STUCK = "The service 'serve' does not answer"


def verdicts(harness: LoopHarness) -> dict[int, str]:
    return {change["version"]: change["verdict"] for change in harness.fire("executor", "model_changed")["changes"]}


def asks(harness: LoopHarness) -> bool:
    return bool(harness.wants("planner", "retraining_ended"))


def stands(harness: LoopHarness, version: int, **more: Any) -> Any:
    return harness.fire("executor", "change_model", version=version, **more)["stands"]


# -- what was lost


def test_what_was_lost_is_requested_and_tried_again_after_the_planners_pause(harness: LoopHarness) -> None:
    declared = harness.load("planner")
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    tries: list[float] = []
    for _ in range(19):  # three minutes
        if harness.look(declared, "planner", "retraining_ended")["stands"] is None:
            intent = harness.intent("executor", "change_model", version=version)
            harness.control_plane.record_action(intent, "lost", error=AWAY)
            tries.append(harness.control_plane.now)
        harness.fire("executor", "model_changed")
        harness.control_plane.now += 10.0
    assert [at - tries[0] for at in tries] == [0.0, 60.0, 120.0, 180.0]
    harness.control_plane.now += 60.0
    harness.promote(version)
    assert not asks(harness)


# -- what could not be taken back


def test_a_version_that_could_not_be_taken_back_is_rejected_and_reported_once(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    swap = harness.swap_model(version)
    harness.control_plane.record_action(swap, error=STUCK)
    harness.control_plane.now += 100.0
    assert verdicts(harness) == {version: "reject"}
    assert verdicts(harness) == {}
    assert (harness.promotion(version), harness.champion()) == (f"rejected: it could not be taken back: {STUCK}", 1)
    [event] = list_events(harness, "model.rejected")
    assert event.data["why"] == f"it could not be taken back: {STUCK}"
    assert list_events(harness, "model.promoted") == []
    assert not asks(harness)
    harness.control_plane.record_action(swap, "reverted", reverted_by="ada")  # at last
    harness.control_plane.serves("models:/mnist_cnn/1")
    assert verdicts(harness) == {version: "reject"}
    assert verdicts(harness) == {}
    assert (harness.promotion(version), len(list_events(harness, "model.rejected"))) == ("rejected: reverted by ada", 1)


def test_a_champion_that_a_person_could_not_take_back_stays_what_it_is(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    swap = harness.promote(version)
    harness.control_plane.record_action(swap, error=STUCK)
    assert verdicts(harness) == {}
    assert (harness.champion(), harness.promotion(version)) == (version, "promoted")


# -- what a later change leaves behind


@pytest.mark.parametrize("state", ["failed", "reverted", "lost"])
def test_a_later_change_that_did_not_come_to_be_keeps_no_version_from_its_promotion(
    harness: LoopHarness, state: str
) -> None:
    first = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    harness.swap_model(first)
    harness.control_plane.now += 62.0  # and nobody looks
    second = harness.end_retraining("bold-fox-2", 0.8, 0.95)
    harness.control_plane.record_action(
        harness.intent("executor", "change_model", version=second), state, error="no such layer"
    )
    assert verdicts(harness) == {first: "promote", second: "wait" if state == "lost" else "reject"}
    assert harness.champion() == first


def test_a_version_that_another_took_the_place_of_is_not_promoted(harness: LoopHarness) -> None:
    first = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    harness.swap_model(first)
    harness.control_plane.now += 62.0
    second = harness.end_retraining("bold-fox-2", 0.8, 0.95)
    harness.swap_model(second)
    harness.control_plane.serves(f"models:/mnist_cnn/{first}")  # a person went back to it
    harness.control_plane.now += 62.0
    assert verdicts(harness) == {first: "wait", second: "wait"}
    assert harness.champion() == 1


# -- what a person took out of use


def roll_back(harness: LoopHarness, *, after_promotion: bool) -> int:
    """Have a version put to use and taken out of it by a person; return it."""
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9, champion_version=1)
    if after_promotion:
        harness.promote(version)
        harness.tracker.set_model_alias("mnist_cnn", "champion", 1)
    else:
        harness.swap_model(version)
    harness.control_plane.serves("models:/mnist_cnn/1")
    return version


@pytest.mark.parametrize("after_promotion", [False, True])
def test_the_loop_leaves_a_persons_rollback_alone_for_hours(harness: LoopHarness, after_promotion: bool) -> None:
    version = roll_back(harness, after_promotion=after_promotion)
    harness.parameters["planner"] = {"again_after_s": 0}
    for _ in range(20):
        harness.control_plane.now += 540.0
        for call in harness.wants("planner", "retraining_ended"):
            assert harness.pass_on(call) == []  # type: ignore[arg-type]
        harness.fire("executor", "model_changed")
    assert "out of use" in stands(harness, version)
    assert "again=True" in stands(harness, version)
    assert (harness.champion(), list_events(harness, "model.rejected")) == (1, [])
    harness.control_plane.done.clear()  # its change is long forgotten
    assert "out of use" in harness.fire("planner", "retraining_ended")["stands"]
    assert after_promotion or "out of use" in stands(harness, version)


@pytest.mark.parametrize("after_promotion", [False, True])
def test_who_took_a_version_out_of_use_is_named_while_it_is_known(harness: LoopHarness, after_promotion: bool) -> None:
    version = roll_back(harness, after_promotion=after_promotion)
    harness.control_plane.now += 100.0
    change = harness.control_plane.done[-1].intent
    by_hand = {"id": "by-hand", "key": "by-hand", "source": "person", "agent": "ada", "at": harness.control_plane.now}
    harness.control_plane.record_action(change.model_copy(update=by_hand))
    assert stands(harness, version) == "ada took it out of use. Request it with again=True"
    harness.control_plane.done.clear()
    value = harness.fire("planner", "retraining_ended")["stands"]
    assert value == ("it was taken out of use" if after_promotion else "ada took it out of use")


def test_a_version_that_a_person_replaced_says_by_whom() -> None:
    champion = {PROMOTION: BY_HAND, BEFORE: "2", **format_decision_tags("ada", "the audit")}
    message = "ada promoted another version in its place (the audit)"
    assert describe_out_of_use({PROMOTION: PROMOTED}, champion, number=2) == message
    assert describe_out_of_use({PROMOTION: PROMOTED}, champion, number=3) == "it was taken out of use"
    assert describe_out_of_use({}, champion, number=2) is None


@pytest.mark.parametrize("after_promotion", [False, True])
def test_what_a_person_took_out_of_use_is_tried_again_when_a_user_asks_for_it(
    harness: LoopHarness, after_promotion: bool
) -> None:
    version = roll_back(harness, after_promotion=after_promotion)
    harness.control_plane.now += 100.0
    assert stands(harness, version, again=True) is None
    assert stands(harness, version) is None, "it is asked for until it is in use"
    assert asks(harness)
    harness.promote(version)
    assert harness.promotion(version) == "promoted"
    harness.tracker.set_model_alias("mnist_cnn", "champion", 1)
    harness.control_plane.serves("models:/mnist_cnn/1")
    assert "out of use" in stands(harness, version), "a second rollback counts as the first did"
    harness.fire("executor", "model_changed")
    assert (harness.champion(), asks(harness)) == (1, False)


def test_what_failed_after_it_was_requested_again_is_rejected_once(harness: LoopHarness) -> None:
    version = roll_back(harness, after_promotion=True)
    swap = harness.intent("executor", "change_model", version=version, again=True)
    harness.control_plane.record_action(swap, "failed", error="no such layer")
    assert verdicts(harness) == {version: "reject"}
    assert stands(harness, version) == "it was rejected: no such layer"
    assert stands(harness, version, again=True) is None
    assert stands(harness, version) is None
    assert verdicts(harness) == {}
    assert len(list_events(harness, "model.rejected")) == 1


def test_what_a_person_puts_back_is_promoted_after_all(harness: LoopHarness) -> None:
    version = roll_back(harness, after_promotion=False)
    harness.control_plane.now += 100.0
    stands(harness, version)
    harness.control_plane.serves(f"models:/mnist_cnn/{version}")
    assert verdicts(harness) == {version: "promote"}
    assert (harness.champion(), harness.promotion(version)) == (version, "promoted")


@pytest.mark.parametrize("after_promotion", [False, True])
def test_a_better_version_takes_over_after_a_rollback(harness: LoopHarness, after_promotion: bool) -> None:
    roll_back(harness, after_promotion=after_promotion)
    harness.control_plane.now += 100.0
    better = harness.end_retraining("bold-fox-2", 0.8, 0.95, champion_version=1)
    [call] = harness.wants("planner", "retraining_ended")
    assert len(harness.pass_on(call)) == 1  # type: ignore[arg-type]
    harness.promote(better)


def test_a_service_that_was_redeployed_with_the_champion_gets_the_better_version_again(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9, champion_version=1)
    harness.swap_model(version)
    harness.control_plane.deployed.clear()
    assert "not deployed" in stands(harness, version)
    harness.control_plane.now += 30.0
    harness.control_plane.serves("models:/mnist_cnn/1", created=harness.control_plane.now)
    assert stands(harness, version) is None
    harness.promote(version)


def test_what_the_executor_itself_replaced_may_be_gone_back_to(harness: LoopHarness) -> None:
    first = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    harness.promote(first)
    second = harness.end_retraining("bold-fox-2", 0.8, 0.95)
    harness.promote(second)
    assert stands(harness, first) is None


def test_a_version_is_out_of_use_only_where_the_service_was_looked_at_after_its_change_ended(
    harness: LoopHarness,
) -> None:
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    swap = harness.intent("executor", "change_model", version=version)
    harness.control_plane.record_action(swap, "running")
    look = harness.control_plane.service

    def ends_after_this_look(name: str) -> Any:
        record = look(name)
        harness.control_plane.record_action(swap)
        harness.control_plane.serves(f"models:/mnist_cnn/{version}")
        return record

    harness.control_plane.service = ends_after_this_look  # type: ignore[method-assign]
    assert stands(harness, version) == describe_progress(swap)
    assert harness.promotion(version) is None


def test_another_change_under_way_takes_no_version_out_of_use(harness: LoopHarness) -> None:
    first = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    harness.swap_model(first)
    harness.control_plane.now += 100.0
    second = harness.end_retraining("bold-fox-2", 0.8, 0.95)
    harness.control_plane.record_action(harness.intent("executor", "change_model", version=second), "running")
    harness.control_plane.serves(f"models:/mnist_cnn/{second}")
    assert "another change is in progress" in stands(harness, first)
    assert harness.promotion(first) is None


# -- what was deleted from the registry


def test_a_deleted_version_keeps_no_other_from_what_is_noted_of_it(harness: LoopHarness) -> None:
    first = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    harness.swap_model(first)
    harness.control_plane.now += 62.0
    second = harness.end_retraining("bold-fox-2", 0.8, 0.95)
    swap = harness.intent("executor", "change_model", version=second)
    harness.control_plane.record_action(swap, "failed", error="no such layer")
    harness.registry.deleted.add(second)
    assert verdicts(harness) == {first: "promote"}
    assert harness.champion() == first


def test_a_deleted_challenger_is_not_requested(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    harness.registry.deleted.add(version)
    value = harness.fire("planner", "retraining_ended")
    assert (value["version"], value["stands"]) == (version, "its version was deleted")
    assert not asks(harness)
    with pytest.raises(NotFoundError, match=f"no version {version}"):
        harness.fire("executor", "change_model", version=version)


def test_a_version_is_rejected_although_the_one_before_it_was_deleted(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-1", 0.8, 0.9)
    swap = harness.promote(version)
    harness.registry.deleted.add(1)
    harness.control_plane.record_action(swap, "reverted", reverted_by="ada")
    assert verdicts(harness) == {version: "reject"}
    assert (harness.champion(), harness.promotion(version)) == (version, "rejected: reverted by ada")
