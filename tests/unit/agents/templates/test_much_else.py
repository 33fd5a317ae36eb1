"""The built-in agents beside much else: workflows that run all the time, strategies that are refused all the time, and
a clock that was ahead."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.agent.agent_records import Action, Decision, Intent
from scanflow_agents.templates import bookmarks
from tests.unit.agents.templates.fakes import LoopHarness, describe_progress


def an_intent(id: str, **changes: Any) -> Intent:
    whose = {"app": "mnist", "team": "data", "agent": "tracker", "strategy": "own"}
    what = {"primitive": "run_workflow", "arguments": {"workflow": "training"}, "target": "workflow/training"}
    fields = {"id": id, "fields": ("running",), "key": f"tracker/own/{id}", "at": 1.0}
    return Intent.model_validate({**whose, **what, **fields, **changes})


def much_is_refused(harness: LoopHarness, *, state: Any = "refused", verdict: Any = "refuse", **changes: Any) -> None:
    """Let a user's strategy want something for some minutes, once a second."""
    for number in range(300):
        decision = Decision(intent=f"n{number}", verdict=verdict, reason="So it was.", at=harness.control_plane.now)
        intent = an_intent(f"n{number}", **changes)
        harness.control_plane.done.append(
            Action(id=intent.id, intent=intent, state=state, decision=decision, began=None, ended=None)
        )


def much_runs(harness: LoopHarness) -> None:
    for number in range(300):
        harness.control_plane.ran(f"run-{number}", "inference", {})


def test_a_training_that_goes_on_is_seen_beside_a_workflow_that_runs_all_the_time(harness: LoopHarness) -> None:
    harness.control_plane.ran("long-run-1", "training", {}, state="running")
    much_runs(harness)
    busy = bookmarks.find_unfinished_run(harness.context("planner"), "training", "learnt", interval_s=0.0)
    assert busy == "long-run-1"


def test_a_training_is_judged_and_noted_beside_a_workflow_that_runs_all_the_time(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-2", 0.81, 0.93)
    much_runs(harness)
    value = harness.fire("planner", "retraining_ended")
    assert (value["run"], value["version"]) == ("bold-fox-2", version)
    assert bookmarks.list_noted_runs(harness.context("planner"), "learnt") == {"bold-fox-2"}


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_run_that_is_wanted_is_seen_beside_a_strategy_that_is_refused_all_the_time(
    harness: LoopHarness, state: Any
) -> None:
    harness.control_plane.record_action(an_intent("wanted"), state=state)
    much_is_refused(harness)
    much_is_refused(harness, state="pending", verdict="suggest", primitive="stop_workflow")
    much_is_refused(harness, state="pending", verdict="suggest", target="workflow/detector")
    busy = bookmarks.find_unfinished_run(harness.context("planner"), "training", "learnt", interval_s=0.0)
    assert busy == "requested by tracker: wanted"


def test_a_swap_is_promoted_beside_strategies_that_are_refused_all_the_time(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-2", 0.81, 0.93)
    [swap] = harness.pass_on(harness.call("planner", "retraining_ended"))
    assert isinstance(swap, Intent)
    harness.control_plane.serves(f"models:/mnist_cnn/{version}")
    harness.control_plane.record_action(swap)
    much_is_refused(harness)
    much_is_refused(harness, agent="executor", strategy=swap.strategy)
    harness.control_plane.now += 62.0
    harness.fire("executor", "model_changed")
    assert harness.champion() == version


def test_a_swap_on_its_way_keeps_another_waiting_beside_suggestions_of_its_own(harness: LoopHarness) -> None:
    version = harness.end_retraining("bold-fox-2", 0.81, 0.93)
    call = harness.call("planner", "retraining_ended")
    [swap] = harness.pass_on(call)
    assert isinstance(swap, Intent)
    harness.control_plane.record_action(swap, state="running")
    much_is_refused(harness, state="succeeded", verdict="act")
    much_is_refused(harness, state="pending", verdict="suggest", agent="executor", strategy=swap.strategy)
    value = harness.fire("executor", "change_model", version=version)
    assert value["stands"] == describe_progress(swap)


def test_a_detection_noted_by_a_clock_that_was_ahead_does_not_hide_what_comes(harness: LoopHarness) -> None:
    context = harness.context("checker")

    def note_check(until: float) -> None:
        bookmarks.note(context, "checked", tags={bookmarks.RUN_FIELD: "r"}, metrics={"until": until})

    now = harness.control_plane.now
    assert bookmarks.get_check_time(context) == 0.0
    note_check(now - 100)
    note_check(now + 7200)
    assert bookmarks.get_check_time(context) == now - 100
    harness.log_predictions(1000)
    assert harness.fire("tracker", "count_number_of_predictions")["due"]
    note_check(now + 15)  # by a clock a little ahead
    assert bookmarks.get_check_time(context) == now + 15
    harness.control_plane.now = now + 8000
    assert bookmarks.get_check_time(context) == now + 7200


def test_what_a_clock_that_was_ahead_has_seen_handed_over_keeps_nobody_waiting_until_it_is_there_again(
    harness: LoopHarness,
) -> None:
    tracker, planner = harness.load("tracker"), harness.load("planner")
    now = harness.control_plane.now

    def due() -> Any:
        return harness.look(tracker, "tracker", "count_number_of_predictions")["due"]

    def stands() -> Any:
        return harness.look(planner, "planner", "retraining_ended")["stands"]

    harness.end_retraining("bold-fox-2", 0.8, 0.9)
    harness.control_plane.now += 7200
    harness.log_predictions(1000)
    assert due()
    assert stands() is None
    harness.control_plane.now = now
    harness.log_predictions(1000)
    assert due()
    assert stands() is None
    assert stands() == "it was already requested"
