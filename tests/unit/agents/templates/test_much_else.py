"""The built-in agents beside much else: workflows that run all the time, strategies that are refused all the time, and
a clock that was ahead."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.agent.agent_records import Action, Decision, Intent
from scanflow_agents.templates import bookmarks
from tests.unit.agents.templates.fakes import World, describe_progress


def an_intent(id: str, **changes: Any) -> Intent:
    whose = {"app": "mnist", "team": "data", "agent": "tracker", "strategy": "own"}
    what = {"primitive": "run_workflow", "arguments": {"workflow": "training"}, "target": "workflow/training"}
    given = {"id": id, "fields": ("running",), "key": f"tracker/own/{id}", "at": 1.0}
    return Intent.model_validate({**whose, **what, **given, **changes})


def much_is_refused(world: World, *, state: Any = "refused", verdict: Any = "refuse", **changes: Any) -> None:
    """Let a user's strategy want something for some minutes, once a second."""
    for number in range(300):
        decision = Decision(intent=f"n{number}", verdict=verdict, reason="So it was.", at=world.control_plane.now)
        intent = an_intent(f"n{number}", **changes)
        world.control_plane.done.append(
            Action(id=intent.id, intent=intent, state=state, decision=decision, began=None, ended=None)
        )


def much_runs(world: World) -> None:
    for number in range(300):
        world.control_plane.ran(f"run-{number}", "inference", {})


def test_a_training_that_goes_on_is_seen_beside_a_workflow_that_runs_all_the_time(world: World) -> None:
    world.control_plane.ran("long-run-1", "training", {}, state="running")
    much_runs(world)
    busy = bookmarks.find_unfinished_run(world.context("planner"), "training", "learnt", interval_s=0.0)
    assert busy == "long-run-1"


def test_a_training_is_judged_and_noted_beside_a_workflow_that_runs_all_the_time(world: World) -> None:
    version = world.retrained("bold-fox-2", 0.81, 0.93)
    much_runs(world)
    found = world.fire("planner", "retraining_ended")
    assert (found["run"], found["version"]) == ("bold-fox-2", version)
    assert bookmarks.list_noted_runs(world.context("planner"), "learnt") == {"bold-fox-2"}


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_run_that_is_wanted_is_seen_beside_a_strategy_that_is_refused_all_the_time(world: World, state: Any) -> None:
    world.control_plane.acted(an_intent("wanted"), state=state)
    much_is_refused(world)
    much_is_refused(world, state="pending", verdict="suggest", primitive="stop_workflow")
    much_is_refused(world, state="pending", verdict="suggest", target="workflow/detector")
    busy = bookmarks.find_unfinished_run(world.context("planner"), "training", "learnt", interval_s=0.0)
    assert busy == "requested by tracker: wanted"


def test_a_swap_is_promoted_beside_strategies_that_are_refused_all_the_time(world: World) -> None:
    version = world.retrained("bold-fox-2", 0.81, 0.93)
    [swap] = world.passed_on(world.call("planner", "retraining_ended"))
    assert isinstance(swap, Intent)
    world.control_plane.serves(f"models:/mnist_cnn/{version}")
    world.control_plane.acted(swap)
    much_is_refused(world)
    much_is_refused(world, agent="executor", strategy=swap.strategy)
    world.control_plane.now += 62.0
    world.fire("executor", "model_changed")
    assert world.champion() == version


def test_a_swap_on_its_way_keeps_another_waiting_beside_suggestions_of_its_own(world: World) -> None:
    version = world.retrained("bold-fox-2", 0.81, 0.93)
    call = world.call("planner", "retraining_ended")
    [swap] = world.passed_on(call)
    assert isinstance(swap, Intent)
    world.control_plane.acted(swap, state="running")
    much_is_refused(world, state="succeeded", verdict="act")
    much_is_refused(world, state="pending", verdict="suggest", agent="executor", strategy=swap.strategy)
    found = world.fire("executor", "change_model", version=version)
    assert found["stands"] == describe_progress(swap)


def test_a_detection_noted_by_a_clock_that_was_ahead_does_not_hide_what_comes(world: World) -> None:
    context = world.context("checker")

    def checked(until: float) -> None:
        bookmarks.note(context, "checked", tags={bookmarks.RUN_FIELD: "r"}, metrics={"until": until})

    now = world.control_plane.now
    assert bookmarks.get_check_time(context) == 0.0
    checked(now - 100)
    checked(now + 7200)
    assert bookmarks.get_check_time(context) == now - 100
    world.predicted(1000)
    assert world.fire("tracker", "count_number_of_predictions")["due"]
    checked(now + 15)  # by a clock a little ahead
    assert bookmarks.get_check_time(context) == now + 15
    world.control_plane.now = now + 8000
    assert bookmarks.get_check_time(context) == now + 7200


def test_what_a_clock_that_was_ahead_has_seen_handed_over_keeps_nobody_waiting_until_it_is_there_again(
    world: World,
) -> None:
    tracker, planner = world.load("tracker"), world.load("planner")
    now = world.control_plane.now

    def due() -> Any:
        return world.look(tracker, "tracker", "count_number_of_predictions")["due"]

    def stands() -> Any:
        return world.look(planner, "planner", "retraining_ended")["stands"]

    world.retrained("bold-fox-2", 0.8, 0.9)
    world.control_plane.now += 7200
    world.predicted(1000)
    assert due()
    assert stands() is None
    world.control_plane.now = now
    world.predicted(1000)
    assert due()
    assert stands() is None
    assert stands() == "it was already requested"
