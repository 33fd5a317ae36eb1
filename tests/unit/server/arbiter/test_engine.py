from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from scanflow.agent.agent_records import Action, Guard, Intent
from scanflow.drift.promotion import decide, format_decision
from scanflow.drift.slices import Slice
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow_server.arbiter.why import explain_action
from scanflow_server.store import event_store
from scanflow_server.store import intent_store as kept
from scanflow_server.store.tables import intents
from tests.unit.server.arbiter.making import intent
from tests.unit.server.arbiter.standin import KilledError, World
from tests.unit.server.keeping import known_by
from tests.waiting import until


def wanted(id: str, instances: int = 4, **changes: Any) -> Intent:
    arguments = {"workflow": changes.pop("service", "serve"), "instances": instances}
    target = f"service/{arguments['workflow']}"
    return intent(
        id, **{"arguments": arguments, "target": target, "key": f"planner/scale/{id}", "at": 1000.0, **changes}
    )


def action(world: World, id: str) -> Action:
    return known_by(world.store, kept.get, id).action


def trail(world: World, id: str) -> list[str]:
    with world.store.read() as connection:
        return [text for _, text in kept.load_trail(connection, id)]


def told(world: World) -> list[str]:
    with world.store.read() as connection:
        return [one.type for one in event_store.list_after(connection, 0)]


def test_what_is_decided_is_done_and_written_down(world: World) -> None:
    assert world.engine.submit(wanted("i1")).verdict == "act"
    world.engine.settle()
    done = action(world, "i1")
    assert (done.state, done.result, world.replicas["serve"]) == ("succeeded", {"instances": 4}, 4)
    assert done.inverse is not None
    assert done.inverse.arguments == {"workflow": "serve", "instances": 2}
    assert told(world) == ["intent", "action.succeeded"]
    assert trail(world, "i1") == ["act: Allowed: no conflict.", "started", "succeeded: instances=4"]


def test_a_key_is_acted_on_once(world: World) -> None:
    world.do(wanted("i1", key="k"))
    again = world.engine.submit(wanted("i2", 7, key="k"))
    world.engine.settle()
    assert (again.verdict, again.winner, world.replicas["serve"]) == ("duplicate", "i1", 4)


def test_agents_choose_their_keys_without_knowing_of_each_other(world: World) -> None:
    world.do(wanted("i1", key="k"))
    assert world.engine.submit(wanted("i2", key="k", agent="executor")).verdict != "duplicate"
    assert world.engine.submit(wanted("i3", key="k", agent="executor")).winner == "i2"
    assert world.engine.submit(wanted("i4", key="k")).winner == "i1"


def test_a_key_of_a_version_whose_agents_shared_them_is_known_again(world: World) -> None:
    world.do(wanted("i1", key="k"))
    with world.store.write() as connection:
        connection.execute(update(intents).values(key="k"))
    assert world.engine.submit(wanted("i2", key="k", agent="executor")).verdict != "duplicate"
    assert world.engine.submit(wanted("i3", key="k")).winner == "i1"


def test_an_approved_action_that_waits_for_its_budget_keeps_nobody_from_another_target(world: World) -> None:
    limits: dict[str, Any] = {"budget": 1, "budget_window_s": 3600, "autonomy": "approve", "priority": 9}
    by_itself: dict[str, Any] = {**limits, "autonomy": "auto"}
    world.do(wanted("i1", **by_itself))
    assert world.engine.submit(wanted("i2", 5, **limits)).verdict == "refuse"
    assert world.engine.approve("i2", by="ada").decision.verdict == "queue"
    assert world.engine.submit(wanted("i3", strategy="other", service="b")).verdict == "act"


def test_two_strategies_do_not_fight_over_replicas(world: World) -> None:
    world.do(wanted("i1"))
    lost = world.engine.submit(wanted("i2", 1, strategy="save"))
    world.engine.settle()
    assert (lost.verdict, lost.winner, world.replicas["serve"]) == ("refuse", "i1", 4)
    assert action(world, "i2").state == "refused"
    world.now += 900
    assert world.engine.submit(wanted("i3", 1, strategy="save")).verdict == "act"


def test_a_strategy_whose_agent_lives_keeps_its_field_and_a_higher_priority_takes_it(world: World) -> None:
    world.living.add("planner")
    world.do(wanted("i1"))
    world.now += 10_000
    assert world.engine.submit(wanted("i2", 1, strategy="save")).verdict == "refuse"
    assert world.engine.submit(wanted("i3", 1, strategy="save", priority=1)).verdict == "act"
    world.engine.settle()
    assert world.replicas["serve"] == 1
    assert world.engine.submit(wanted("i4", 5)).winner == "i3"


@pytest.mark.parametrize("order", [("low", "high"), ("high", "low")])
def test_of_two_that_wait_the_better_is_done_in_either_order(world: World, order: tuple[str, str]) -> None:
    both = {"low": wanted("low", 3, strategy="a"), "high": wanted("high", 5, strategy="b", priority=1)}
    for name in order:
        world.engine.submit(both[name])
    world.engine.settle()
    assert (world.replicas["serve"], action(world, "low").decision.winner) == (5, "high")
    assert [action(world, name).state for name in ("low", "high")] == ["refused", "succeeded"]


def test_somebody_elses_value_is_left_alone_until_a_person_says_yes(world: World) -> None:
    world.do(wanted("i1"))
    world.replicas["serve"] = 9
    assert "it is 9, and the server last wrote 4" in world.engine.submit(wanted("i2", 5)).reason
    world.engine.settle()
    assert world.replicas["serve"] == 9
    approved = world.engine.approve("i2", by="ann")
    assert (approved.decision.verdict, approved.state) == ("act", "pending")
    world.engine.settle()
    assert world.replicas["serve"] == 5
    assert "ann approved it." in trail(world, "i2")


def test_somebody_elses_value_is_overwritten_after_a_while_and_the_while_begins_anew_with_another(world: World) -> None:
    world.restarted(foreign_s=100)
    world.do(wanted("i1"))
    world.replicas["serve"] = 9
    assert world.engine.submit(wanted("i2", 5)).retry_at == 1100
    world.now, world.replicas["serve"] = 1090, 8
    assert world.engine.submit(wanted("i3", 5)).retry_at == 1190
    world.now = 1190
    assert world.engine.submit(wanted("i4", 5)).verdict == "act"


def test_what_is_asked_for_later_replaces_what_waits_for_a_person(world: World) -> None:
    for id, instances in (("i1", 4), ("i2", 5)):
        assert world.engine.submit(wanted(id, instances, autonomy="approve")).verdict == "approve"
        world.now += 1
    replaced = action(world, "i1")
    assert (replaced.state, replaced.decision.winner, replaced.decision.by) == ("refused", "i2", None)
    world.engine.approve("i2", by="ann")
    world.engine.settle()
    assert world.replicas["serve"] == 5


def test_what_waits_for_a_yes_is_done_after_it_and_never_after_a_no(world: World) -> None:
    assert world.engine.submit(wanted("i1", autonomy="approve")).verdict == "approve"
    world.do(wanted("i2", 7, autonomy="suggest", service="other"))
    assert world.done == []
    refused = world.engine.intents.refuse("i2", by="bob", reason="too many")
    assert (refused.state, refused.decision.reason) == ("refused", "bob refused it: too many")
    assert world.engine.submit(wanted("i5", 7, autonomy="observe", service="third")).verdict == "observe"
    assert action(world, "i5").state == "observed"
    world.engine.approve("i1", by="ann", reason="go")
    world.engine.settle()
    assert world.replicas == {"serve": 4, "other": 1}
    with pytest.raises(UsageError, match=r"needs no approval \(state: succeeded\)"):
        world.engine.approve("i1", by="ann")
    with pytest.raises(UsageError, match=r"cannot be refused \(state: succeeded\)"):
        world.engine.intents.refuse("i1", by="bob")
    with pytest.raises(NotFoundError, match="no intent 'i9'"):
        world.engine.intents.refuse("i9", by="bob")


@pytest.mark.parametrize("instant", ["decided", "before", "noted", "after"])
def test_a_kill_at_any_instant_neither_loses_nor_repeats_an_action(world: World, instant: str) -> None:
    world.engine.submit(wanted("i1"))
    if instant != "decided":
        world.kill = instant
        with pytest.raises(KilledError):
            world.engine.settle()
        assert action(world, "i1").state == "running"
    world.kill = None
    world.restarted().settle()
    done = action(world, "i1")
    assert (done.state, len(world.done), world.replicas["serve"]) == ("succeeded", 1, 4)
    assert done.inverse is not None
    assert done.inverse.arguments["instances"] == 2


def test_what_is_cut_off_again_and_again_is_given_up_and_said_so(world: World) -> None:
    world.engine.submit(wanted("i1"))
    world.kill = "before"
    for _ in range(5):
        with pytest.raises(KilledError):
            world.restarted().settle()
    world.restarted().settle()
    assert action(world, "i1").state == "lost"
    assert "interrupted 5 times" in str(action(world, "i1").error)


def test_what_does_not_answer_is_tried_again_and_not_for_ever(world: World) -> None:
    world.does_not_answer()
    world.do(wanted("i1"))
    assert (action(world, "i1").state, action(world, "i1").error is not None) == ("pending", True)
    world.fail = None
    world.engine.settle()
    assert world.done == []  # not before its time
    world.now += 1
    world.engine.settle()
    assert (action(world, "i1").state, action(world, "i1").error) == ("succeeded", None)
    world.does_not_answer()
    world.engine.submit(wanted("i2", 7))
    for _ in range(9):
        world.engine.settle()
        world.now += 60
    assert (action(world, "i2").state, world.replicas["serve"]) == ("lost", 4)
    assert "The action was attempted 5 times (The tracker does not answer. Try again.)" in str(
        action(world, "i2").error
    )


@pytest.mark.parametrize("error", [UsageError("It does not fit."), ZeroDivisionError("a defect")])
def test_what_cannot_be_done_has_failed_and_says_why(world: World, error: Exception) -> None:
    world.fail = error
    world.do(wanted("i1"))
    assert (action(world, "i1").state, str(error) in str(action(world, "i1").error)) == ("failed", True)
    assert told(world) == ["intent", "action.failed"]


GUARD = Guard(metric="service.serve.p95_s", worse="higher", by=0.05, within_s=60.0)


@pytest.mark.parametrize(
    ("before", "after", "later_s", "said"),
    [
        (0.1, 0.2, 0.0, "went from 0.1 to 0.2"),
        (0.1, 0.14, 0.0, "the guard watches service.serve.p95_s, which was 0.1, for 60 s"),
        (0.1, 0.14, 60.0, "the guard found no regression"),
        (None, 9.0, 0.0, "which was unknown"),
    ],
)
def test_an_action_is_taken_back_when_its_guard_regresses(
    world: World, before: float | None, after: float, later_s: float, said: str
) -> None:
    worse = said.startswith("went")
    if before is not None:
        world.metrics["service.serve.p95_s"] = before
    world.do(wanted("i1", guard=GUARD))
    world.metrics["service.serve.p95_s"] = after
    world.now += later_s
    world.engine.settle()
    if later_s:  # it watches for its time only
        world.metrics["service.serve.p95_s"] = 9.0
        world.engine.settle()
    back = action(world, "i1")
    expected = ("reverted", "the guard", 2) if worse else ("succeeded", None, 4)
    assert (back.state, back.reverted_by, world.replicas["serve"]) == expected
    assert told(world)[-1] == f"action.{expected[0]}"
    assert any(said in text for text in trail(world, "i1"))


def test_a_kill_while_something_is_taken_back_is_gone_on_with(world: World) -> None:
    world.do(wanted("i1"))
    world.kill = "before"
    with pytest.raises(KilledError):
        world.engine.revert("i1", by="ann")
    world.kill = None
    world.restarted().settle()
    assert (action(world, "i1").state, action(world, "i1").reverted_by) == ("reverted", "ann")
    assert world.replicas["serve"] == 2


def test_a_person_takes_back_what_nobody_has_written_over_since(world: World) -> None:
    world.do(wanted("i1"))
    world.do(wanted("i2", 6))
    with pytest.raises(UsageError, match="'i2' has changed 'replicas'"):
        world.engine.revert("i1", by="ann")
    assert world.engine.revert("i2", by="ann").state == "reverted"
    assert world.replicas["serve"] == 4
    with pytest.raises(UsageError, match="it is reverted"):
        world.engine.revert("i2", by="ann")
    assert world.engine.submit(wanted("i3", 5)).verdict == "act"  # what it took back is no foreign writer's


def test_an_intent_whose_parts_do_not_fit_is_refused_at_the_door(world: World) -> None:
    with pytest.raises(NotFoundError, match="no primitive"):
        world.engine.submit(wanted("i1", primitive="update_workflow_replicas"))
    with pytest.raises(InvalidError, match="has the target 'service/serve'"):
        world.engine.submit(wanted("i1", target="service/other"))
    with pytest.raises(InvalidError, match="does not list 'replicas'"):
        world.engine.submit(wanted("i1", fields=("traffic",)))


def test_actions_are_carried_out_in_threads_of_its_own(world: World) -> None:
    with world.restarted() as engine:
        engine.submit(wanted("i1", 3))
        engine.submit(wanted("i2", 3, service="other"))
        until(lambda: [action(world, id).state for id in ("i1", "i2")] == ["succeeded"] * 2, "both actions are over")
        assert engine.revert("i1", by="ann").state == "reverted"
    assert world.replicas == {"serve": 2, "other": 3}


def test_what_waits_for_its_turn_is_done_when_it_comes(world: World) -> None:
    decisions: list[str] = []
    first = world.perform

    def perform(*given: Any) -> Any:
        if not decisions:
            decisions.append(world.engine.submit(wanted("i2", 6)).verdict)
        return first(*given)

    world.perform = perform  # type: ignore[method-assign,assignment]
    world.do(wanted("i1", 4))
    world.now += 1
    world.engine.settle()
    assert (decisions, world.replicas["serve"]) == (["queue"], 6)


def test_why_tells_the_whole_story(world: World) -> None:
    sample = {"id": "s1", "agent": "planner", "sensor": "load", "at": 999.0, "value": 31, "cause": "interval:16:39"}
    world.do(wanted("i1", sample=sample, rule="load 31 > 20"))
    with world.store.read() as connection:
        lines = explain_action(action(world, "i1"), kept.load_trail(connection, "i1"))
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["sample", "trigger", "rule", "intent", "decision", "action", "effect"]
    text = "\n".join(lines)
    for part in ("load of planner at 1970-01-01 00:16:39Z: 31", "interval:16:39", "load 31 > 20", "instances=4"):
        assert part in text
    assert lines[-1] == 'effect    {"instances": 4}; inverse: update_workflow_replica'


def test_why_tells_the_evidence_that_a_model_is_better(world: World) -> None:
    part = Slice(name="current", n=59, champion_right=42, challenger_right=55, gained=14)
    evidence = decide([part]).evidence(champion=1, version=3, run="bold-fox-1").model_dump(mode="json")
    sample = {"id": "s1", "agent": "executor", "sensor": "change_model", "at": 999.0, "cause": "call:1"}
    world.do(wanted("i1", sample={**sample, "value": {"version": 3, "evidence": evidence}}))
    lines = explain_action(action(world, "i1"), [])
    assert lines[2] == f"evidence  {format_decision(evidence)}"
    assert lines[0].endswith('{"version": 3} (in 0 s)'), "the evidence is told once"


def test_strategies_of_one_agent_with_the_same_priority_above_0_hand_a_field_on(world: World) -> None:
    world.living.add("planner")
    world.do(wanted("i1", 3, priority=10))
    world.now += 10_000
    assert world.engine.submit(wanted("i2", 1, strategy="save", priority=9)).winner == "i1"
    assert world.engine.submit(wanted("i3", 1, strategy="save", priority=10, agent="executor")).winner == "i1"
    assert world.engine.submit(wanted("i4", 1, strategy="save", priority=10)).verdict == "act"


def test_strategies_that_start_the_same_workflow_take_nothing_from_each_other(world: World) -> None:
    world.living.add("planner")
    start = {"primitive": "run_workflow", "target": "workflow/training", "fields": ("running",)}
    for number, strategy in enumerate(["retrain", "evaluate", "retrain"]):
        given = intent(f"i{number}", arguments={"workflow": "training"}, strategy=strategy, at=world.now, **start)
        assert world.engine.submit(given).verdict == "act"
        world.engine.settle()
        world.now += 60
    assert len(world.done) == 3


def test_a_refusal_that_repeats_is_told_once_and_counted(world: World) -> None:
    world.do(wanted("i0", cool_down_s=60.0))
    decisions = []
    for number in range(1, 6):
        world.now += 2.0
        decisions.append(world.engine.submit(wanted(f"i{number}", 5, cool_down_s=60.0, at=world.now)))
    assert {decision.verdict for decision in decisions} == {"refuse"}
    assert "This repeats the decision on i1" in decisions[-1].reason
    assert (action(world, "i1").repeats, action(world, "i1").repeated) == (4, world.now)
    assert told(world) == ["intent", "action.succeeded", "intent"], "one event for five refusals"
    assert any("4 times more" in line for line in explain_action(action(world, "i1"), []))


def test_a_refusal_is_told_again_after_something_was_done(world: World) -> None:
    for number in range(3):
        world.do(wanted(f"i{number}", number + 3, cool_down_s=60.0, at=world.now))
        world.now += 30.0
        world.engine.submit(wanted(f"r{number}", 9, cool_down_s=60.0, at=world.now))
        world.now += 31.0
    assert told(world).count("intent") == 6


def test_a_suggestion_pauses_as_its_strategy_says_and_the_same_one_is_told_once(world: World) -> None:
    verdicts = []
    for number in range(6):
        suggestion = wanted(f"i{number}", autonomy="suggest", cool_down_s=5.0, at=world.now)
        verdicts.append(world.engine.submit(suggestion).verdict)
        world.now += 2.0
    assert verdicts == ["suggest", "refuse", "refuse", "suggest", "suggest", "suggest"]
    assert told(world) == ["intent", "intent"]
    assert world.engine.approve("i0", by="ada").state == "pending"


def test_people_are_not_asked_again_within_the_pause_after_they_refused(world: World) -> None:
    world.engine.submit(wanted("i1", autonomy="approve", cool_down_s=60.0))
    world.engine.intents.refuse("i1", by="ada", reason="not today")
    world.now += 30.0
    assert world.engine.submit(wanted("i2", autonomy="approve", cool_down_s=60.0)).verdict == "refuse"
    world.now += 31.0
    assert world.engine.submit(wanted("i3", autonomy="approve", cool_down_s=60.0)).verdict == "approve"


def ordered(world: World, id: str, instances: int, by: str = "ada") -> None:
    """Have a person change the service, as a command does."""
    command = wanted(id, instances, source="person", agent=by, strategy="command", priority=1_000_001, at=world.now)
    with world.store.write() as connection:
        world.engine.intents.admit(connection, command, world.look(command))
    world.engine.settle()


def test_what_a_person_changed_is_theirs_by_name_and_is_left_alone_for_a_while(world: World) -> None:
    world.do(wanted("i1", 4))
    world.now += 10.0
    ordered(world, "scale-1", 7)
    world.now += 5.0
    refused = world.engine.submit(wanted("i2", 5, at=world.now))
    assert (refused.verdict, refused.winner) == ("refuse", "scale-1")
    assert "ada (a person) changed the field 'replicas' of 'service/serve' to 7 5 s ago" in refused.reason
    assert "nother client" not in refused.reason
    world.now += 900.0
    assert world.engine.submit(wanted("i3", 5, at=world.now)).verdict == "act"


@pytest.mark.parametrize("autonomy", ["approve", "suggest"])
def test_people_are_asked_also_about_what_another_person_changed(world: World, autonomy: str) -> None:
    world.do(wanted("i1", 4))
    ordered(world, "scale-1", 7)
    world.now += 5.0
    asked = world.engine.submit(wanted("i2", 5, autonomy=autonomy, at=world.now))
    assert asked.verdict == autonomy
    assert "ada (a person) changed the field" in asked.reason
    world.engine.approve("i2", by="bea")
    world.engine.settle()
    assert world.replicas["serve"] == 5


def test_a_command_that_changes_nothing_keeps_the_field_with_its_owner(world: World) -> None:
    world.do(wanted("i1", 4))
    ordered(world, "scale-1", 4)
    assert world.engine.submit(wanted("i2", 5, at=world.now)).verdict == "act"


def test_who_approved_an_action_and_why_is_in_its_explanation(world: World) -> None:
    world.engine.submit(wanted("i1", autonomy="approve"))
    world.engine.approve("i1", by="ada", reason="seen with the team")
    world.engine.settle()
    done = action(world, "i1")
    assert (done.approved_by, done.approved_why) == ("ada", "seen with the team")
    assert any("Approved by ada (a person): seen with the team" in line for line in explain_action(done, []))
