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
from tests.unit.agents.templates.fakes import World, describe_progress, told

AWAY = "MLflow does not answer"
STUCK = "The service 'serve' does not answer"


def verdicts(world: World) -> dict[int, str]:
    return {one["version"]: one["verdict"] for one in world.fire("executor", "model_changed")["changes"]}


def asks(world: World) -> bool:
    return bool(world.wants("planner", "retraining_ended"))


def stands(world: World, version: int, **more: Any) -> Any:
    return world.fire("executor", "change_model", version=version, **more)["stands"]


# -- what was lost


def test_what_was_lost_is_asked_for_and_tried_again_after_the_planners_pause(world: World) -> None:
    declared = world.load("planner")
    version = world.retrained("bold-fox-1", 0.8, 0.9)
    tries: list[float] = []
    for _ in range(19):  # three minutes
        if world.look(declared, "planner", "retraining_ended")["stands"] is None:
            intent = world.intent("executor", "change_model", version=version)
            world.control_plane.acted(intent, "lost", error=AWAY)
            tries.append(world.control_plane.now)
        world.fire("executor", "model_changed")
        world.control_plane.now += 10.0
    assert [at - tries[0] for at in tries] == [0.0, 60.0, 120.0, 180.0]
    world.control_plane.now += 60.0
    world.promoted(version)
    assert not asks(world)


# -- what could not be taken back


def test_a_version_that_could_not_be_taken_back_is_rejected_and_told_of_once(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.8, 0.9)
    swap = world.swapped(version)
    world.control_plane.acted(swap, error=STUCK)
    world.control_plane.now += 100.0
    assert verdicts(world) == {version: "reject"}
    assert verdicts(world) == {}
    assert (world.promotion(version), world.champion()) == (f"rejected: it could not be taken back: {STUCK}", 1)
    [event] = told(world, "model.rejected")
    assert event.data["why"] == f"it could not be taken back: {STUCK}"
    assert told(world, "model.promoted") == []
    assert not asks(world)
    world.control_plane.acted(swap, "reverted", reverted_by="ada")  # at last
    world.control_plane.serves("models:/mnist_cnn/1")
    assert verdicts(world) == {version: "reject"}
    assert verdicts(world) == {}
    assert (world.promotion(version), len(told(world, "model.rejected"))) == ("rejected: reverted by ada", 1)


def test_a_champion_that_a_person_could_not_take_back_stays_what_it_is(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.8, 0.9)
    swap = world.promoted(version)
    world.control_plane.acted(swap, error=STUCK)
    assert verdicts(world) == {}
    assert (world.champion(), world.promotion(version)) == (version, "promoted")


# -- what a later change leaves behind


@pytest.mark.parametrize("state", ["failed", "reverted", "lost"])
def test_a_later_change_that_did_not_come_to_be_keeps_no_version_from_its_promotion(world: World, state: str) -> None:
    first = world.retrained("bold-fox-1", 0.8, 0.9)
    world.swapped(first)
    world.control_plane.now += 62.0  # and nobody looks
    second = world.retrained("bold-fox-2", 0.8, 0.95)
    world.control_plane.acted(world.intent("executor", "change_model", version=second), state, error="no such layer")
    assert verdicts(world) == {first: "promote", second: "wait" if state == "lost" else "reject"}
    assert world.champion() == first


def test_a_version_that_another_took_the_place_of_is_not_promoted(world: World) -> None:
    first = world.retrained("bold-fox-1", 0.8, 0.9)
    world.swapped(first)
    world.control_plane.now += 62.0
    second = world.retrained("bold-fox-2", 0.8, 0.95)
    world.swapped(second)
    world.control_plane.serves(f"models:/mnist_cnn/{first}")  # a person went back to it
    world.control_plane.now += 62.0
    assert verdicts(world) == {first: "wait", second: "wait"}
    assert world.champion() == 1


# -- what a person took out of use


def rolled_back(world: World, *, after_promotion: bool) -> int:
    """Have a version put to use and taken out of it by a person; return it."""
    version = world.retrained("bold-fox-1", 0.8, 0.9, champion_version=1)
    if after_promotion:
        world.promoted(version)
        world.tracker.set_model_alias("mnist_cnn", "champion", 1)
    else:
        world.swapped(version)
    world.control_plane.serves("models:/mnist_cnn/1")
    return version


@pytest.mark.parametrize("after_promotion", [False, True])
def test_the_loop_leaves_a_persons_rollback_alone_for_hours(world: World, after_promotion: bool) -> None:
    version = rolled_back(world, after_promotion=after_promotion)
    world.parameters["planner"] = {"again_after_s": 0}
    for _ in range(20):
        world.control_plane.now += 540.0
        for call in world.wants("planner", "retraining_ended"):
            assert world.passed_on(call) == []  # type: ignore[arg-type]
        world.fire("executor", "model_changed")
    assert "out of use" in stands(world, version)
    assert "again=True" in stands(world, version)
    assert (world.champion(), told(world, "model.rejected")) == (1, [])
    world.control_plane.done.clear()  # its change is long forgotten
    assert "out of use" in world.fire("planner", "retraining_ended")["stands"]
    assert after_promotion or "out of use" in stands(world, version)


@pytest.mark.parametrize("after_promotion", [False, True])
def test_who_took_a_version_out_of_use_is_named_while_it_is_known(world: World, after_promotion: bool) -> None:
    version = rolled_back(world, after_promotion=after_promotion)
    world.control_plane.now += 100.0
    change = world.control_plane.done[-1].intent
    by_hand = {"id": "by-hand", "key": "by-hand", "source": "person", "agent": "ada", "at": world.control_plane.now}
    world.control_plane.acted(change.model_copy(update=by_hand))
    assert stands(world, version) == "ada took it out of use. Request it with again=True"
    world.control_plane.done.clear()
    found = world.fire("planner", "retraining_ended")["stands"]
    assert found == ("it was taken out of use" if after_promotion else "ada took it out of use")


def test_a_version_that_a_person_replaced_says_by_whom() -> None:
    champion = {PROMOTION: BY_HAND, BEFORE: "2", **format_decision_tags("ada", "the audit")}
    said = "ada promoted another version in its place (the audit)"
    assert describe_out_of_use({PROMOTION: PROMOTED}, champion, number=2) == said
    assert describe_out_of_use({PROMOTION: PROMOTED}, champion, number=3) == "it was taken out of use"
    assert describe_out_of_use({}, champion, number=2) is None


@pytest.mark.parametrize("after_promotion", [False, True])
def test_what_a_person_took_out_of_use_is_tried_again_when_somebody_asks_for_it(
    world: World, after_promotion: bool
) -> None:
    version = rolled_back(world, after_promotion=after_promotion)
    world.control_plane.now += 100.0
    assert stands(world, version, again=True) is None
    assert stands(world, version) is None, "it is asked for until it is in use"
    assert asks(world)
    world.promoted(version)
    assert world.promotion(version) == "promoted"
    world.tracker.set_model_alias("mnist_cnn", "champion", 1)
    world.control_plane.serves("models:/mnist_cnn/1")
    assert "out of use" in stands(world, version), "a second rollback counts as the first did"
    world.fire("executor", "model_changed")
    assert (world.champion(), asks(world)) == (1, False)


def test_what_failed_after_it_was_asked_for_again_is_rejected_once(world: World) -> None:
    version = rolled_back(world, after_promotion=True)
    swap = world.intent("executor", "change_model", version=version, again=True)
    world.control_plane.acted(swap, "failed", error="no such layer")
    assert verdicts(world) == {version: "reject"}
    assert stands(world, version) == "it was rejected: no such layer"
    assert stands(world, version, again=True) is None
    assert stands(world, version) is None
    assert verdicts(world) == {}
    assert len(told(world, "model.rejected")) == 1


def test_what_a_person_puts_back_is_promoted_after_all(world: World) -> None:
    version = rolled_back(world, after_promotion=False)
    world.control_plane.now += 100.0
    stands(world, version)
    world.control_plane.serves(f"models:/mnist_cnn/{version}")
    assert verdicts(world) == {version: "promote"}
    assert (world.champion(), world.promotion(version)) == (version, "promoted")


@pytest.mark.parametrize("after_promotion", [False, True])
def test_a_better_version_takes_over_after_a_rollback(world: World, after_promotion: bool) -> None:
    rolled_back(world, after_promotion=after_promotion)
    world.control_plane.now += 100.0
    better = world.retrained("bold-fox-2", 0.8, 0.95, champion_version=1)
    [call] = world.wants("planner", "retraining_ended")
    assert len(world.passed_on(call)) == 1  # type: ignore[arg-type]
    world.promoted(better)


def test_a_service_that_was_deployed_anew_with_the_champion_gets_the_better_version_again(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.8, 0.9, champion_version=1)
    world.swapped(version)
    world.control_plane.deployed.clear()
    assert "not deployed" in stands(world, version)
    world.control_plane.now += 30.0
    world.control_plane.serves("models:/mnist_cnn/1", created=world.control_plane.now)
    assert stands(world, version) is None
    world.promoted(version)


def test_what_the_executor_itself_replaced_may_be_gone_back_to(world: World) -> None:
    first = world.retrained("bold-fox-1", 0.8, 0.9)
    world.promoted(first)
    second = world.retrained("bold-fox-2", 0.8, 0.95)
    world.promoted(second)
    assert stands(world, first) is None


def test_a_version_is_out_of_use_only_where_the_service_was_looked_at_after_its_change_ended(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.8, 0.9)
    swap = world.intent("executor", "change_model", version=version)
    world.control_plane.acted(swap, "running")
    look = world.control_plane.service

    def ends_after_this_look(name: str) -> Any:
        record = look(name)
        world.control_plane.acted(swap)
        world.control_plane.serves(f"models:/mnist_cnn/{version}")
        return record

    world.control_plane.service = ends_after_this_look  # type: ignore[method-assign]
    assert stands(world, version) == describe_progress(swap)
    assert world.promotion(version) is None


def test_another_change_under_way_takes_no_version_out_of_use(world: World) -> None:
    first = world.retrained("bold-fox-1", 0.8, 0.9)
    world.swapped(first)
    world.control_plane.now += 100.0
    second = world.retrained("bold-fox-2", 0.8, 0.95)
    world.control_plane.acted(world.intent("executor", "change_model", version=second), "running")
    world.control_plane.serves(f"models:/mnist_cnn/{second}")
    assert "another change is in progress" in stands(world, first)
    assert world.promotion(first) is None


# -- what was deleted from the registry


def test_a_deleted_version_keeps_no_other_from_what_is_noted_of_it(world: World) -> None:
    first = world.retrained("bold-fox-1", 0.8, 0.9)
    world.swapped(first)
    world.control_plane.now += 62.0
    second = world.retrained("bold-fox-2", 0.8, 0.95)
    swap = world.intent("executor", "change_model", version=second)
    world.control_plane.acted(swap, "failed", error="no such layer")
    world.registry.deleted.add(second)
    assert verdicts(world) == {first: "promote"}
    assert world.champion() == first


def test_a_deleted_challenger_is_not_asked_for(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.8, 0.9)
    world.registry.deleted.add(version)
    found = world.fire("planner", "retraining_ended")
    assert (found["version"], found["stands"]) == (version, "its version was deleted")
    assert not asks(world)
    with pytest.raises(NotFoundError, match=f"no version {version}"):
        world.fire("executor", "change_model", version=version)


def test_a_version_is_rejected_although_the_one_before_it_was_deleted(world: World) -> None:
    version = world.retrained("bold-fox-1", 0.8, 0.9)
    swap = world.promoted(version)
    world.registry.deleted.add(1)
    world.control_plane.acted(swap, "reverted", reverted_by="ada")
    assert verdicts(world) == {version: "reject"}
    assert (world.champion(), world.promotion(version)) == (version, "rejected: reverted by ada")
