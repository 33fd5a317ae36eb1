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
from tests.unit.server.arbiter.arbiter_harness import ArbiterHarness, KilledError
from tests.unit.server.arbiter.intent_builders import intent
from tests.unit.server.server_rows import read_from_store
from tests.waiting import wait_until


def make_intent(id: str, instances: int = 4, **changes: Any) -> Intent:
    arguments = {"workflow": changes.pop("service", "serve"), "instances": instances}
    target = f"service/{arguments['workflow']}"
    return intent(
        id, **{"arguments": arguments, "target": target, "key": f"planner/scale/{id}", "at": 1000.0, **changes}
    )


def action(harness: ArbiterHarness, id: str) -> Action:
    return read_from_store(harness.store, kept.get, id).action


def trail(harness: ArbiterHarness, id: str) -> list[str]:
    with harness.store.read() as connection:
        return [text for _, text in kept.load_trail(connection, id)]


def list_event_types(harness: ArbiterHarness) -> list[str]:
    with harness.store.read() as connection:
        return [event.type for event in event_store.list_after(connection, 0)]


def test_what_is_decided_is_done_and_written_down(harness: ArbiterHarness) -> None:
    assert harness.engine.submit(make_intent("i1")).verdict == "act"
    harness.engine.settle()
    done = action(harness, "i1")
    assert (done.state, done.result, harness.replicas["serve"]) == ("succeeded", {"instances": 4}, 4)
    assert done.inverse is not None
    assert done.inverse.arguments == {"workflow": "serve", "instances": 2}
    assert list_event_types(harness) == ["intent", "action.succeeded"]
    assert trail(harness, "i1") == ["act: Allowed: no conflict.", "started", "succeeded: instances=4"]


def test_a_key_is_acted_on_once(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", key="k"))
    again = harness.engine.submit(make_intent("i2", 7, key="k"))
    harness.engine.settle()
    assert (again.verdict, again.winner, harness.replicas["serve"]) == ("duplicate", "i1", 4)


def test_agents_choose_their_keys_without_knowing_of_each_other(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", key="k"))
    assert harness.engine.submit(make_intent("i2", key="k", agent="executor")).verdict != "duplicate"
    assert harness.engine.submit(make_intent("i3", key="k", agent="executor")).winner == "i2"
    assert harness.engine.submit(make_intent("i4", key="k")).winner == "i1"


def test_a_key_of_a_version_where_the_agents_shared_them_is_known_again(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", key="k"))
    with harness.store.write() as connection:
        connection.execute(update(intents).values(key="k"))
    assert harness.engine.submit(make_intent("i2", key="k", agent="executor")).verdict != "duplicate"
    assert harness.engine.submit(make_intent("i3", key="k")).winner == "i1"


def test_an_approved_action_that_waits_for_its_budget_keeps_nobody_from_another_target(harness: ArbiterHarness) -> None:
    limits: dict[str, Any] = {"budget": 1, "budget_window_s": 3600, "autonomy": "approve", "priority": 9}
    by_itself: dict[str, Any] = {**limits, "autonomy": "auto"}
    harness.do(make_intent("i1", **by_itself))
    assert harness.engine.submit(make_intent("i2", 5, **limits)).verdict == "refuse"
    assert harness.engine.approve("i2", by="ada").decision.verdict == "queue"
    assert harness.engine.submit(make_intent("i3", strategy="other", service="b")).verdict == "act"


def test_two_strategies_do_not_fight_over_replicas(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1"))
    lost = harness.engine.submit(make_intent("i2", 1, strategy="save"))
    harness.engine.settle()
    assert (lost.verdict, lost.winner, harness.replicas["serve"]) == ("refuse", "i1", 4)
    assert action(harness, "i2").state == "refused"
    harness.now += 900
    assert harness.engine.submit(make_intent("i3", 1, strategy="save")).verdict == "act"


def test_a_strategy_where_the_agent_lives_keeps_its_field_and_a_higher_priority_takes_it(
    harness: ArbiterHarness,
) -> None:
    harness.living.add("planner")
    harness.do(make_intent("i1"))
    harness.now += 10_000
    assert harness.engine.submit(make_intent("i2", 1, strategy="save")).verdict == "refuse"
    assert harness.engine.submit(make_intent("i3", 1, strategy="save", priority=1)).verdict == "act"
    harness.engine.settle()
    assert harness.replicas["serve"] == 1
    assert harness.engine.submit(make_intent("i4", 5)).winner == "i3"


@pytest.mark.parametrize("order", [("low", "high"), ("high", "low")])
def test_of_two_that_wait_the_better_is_done_in_either_order(harness: ArbiterHarness, order: tuple[str, str]) -> None:
    both = {"low": make_intent("low", 3, strategy="a"), "high": make_intent("high", 5, strategy="b", priority=1)}
    for name in order:
        harness.engine.submit(both[name])
    harness.engine.settle()
    assert (harness.replicas["serve"], action(harness, "low").decision.winner) == (5, "high")
    assert [action(harness, name).state for name in ("low", "high")] == ["refused", "succeeded"]


def test_a_foreign_value_is_left_alone_until_a_person_says_yes(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1"))
    harness.replicas["serve"] = 9
    assert "it is 9, and the server last wrote 4" in harness.engine.submit(make_intent("i2", 5)).reason
    harness.engine.settle()
    assert harness.replicas["serve"] == 9
    approved = harness.engine.approve("i2", by="ann")
    assert (approved.decision.verdict, approved.state) == ("act", "pending")
    harness.engine.settle()
    assert harness.replicas["serve"] == 5
    assert "ann approved it." in trail(harness, "i2")


def test_a_foreign_value_is_overwritten_after_a_while_and_the_while_starts_over_with_another(
    harness: ArbiterHarness,
) -> None:
    harness.restart(foreign_s=100)
    harness.do(make_intent("i1"))
    harness.replicas["serve"] = 9
    assert harness.engine.submit(make_intent("i2", 5)).retry_at == 1100
    harness.now, harness.replicas["serve"] = 1090, 8
    assert harness.engine.submit(make_intent("i3", 5)).retry_at == 1190
    harness.now = 1190
    assert harness.engine.submit(make_intent("i4", 5)).verdict == "act"


def test_what_is_requested_later_replaces_what_waits_for_a_person(harness: ArbiterHarness) -> None:
    for id, instances in (("i1", 4), ("i2", 5)):
        assert harness.engine.submit(make_intent(id, instances, autonomy="approve")).verdict == "approve"
        harness.now += 1
    replaced = action(harness, "i1")
    assert (replaced.state, replaced.decision.winner, replaced.decision.by) == ("refused", "i2", None)
    harness.engine.approve("i2", by="ann")
    harness.engine.settle()
    assert harness.replicas["serve"] == 5


def test_what_waits_for_a_yes_is_done_after_it_and_never_after_a_no(harness: ArbiterHarness) -> None:
    assert harness.engine.submit(make_intent("i1", autonomy="approve")).verdict == "approve"
    harness.do(make_intent("i2", 7, autonomy="suggest", service="other"))
    assert harness.done == []
    refused = harness.engine.intents.refuse("i2", by="bob", reason="too many")
    assert (refused.state, refused.decision.reason) == ("refused", "bob refused it: too many")
    assert harness.engine.submit(make_intent("i5", 7, autonomy="observe", service="third")).verdict == "observe"
    assert action(harness, "i5").state == "observed"
    harness.engine.approve("i1", by="ann", reason="go")
    harness.engine.settle()
    assert harness.replicas == {"serve": 4, "other": 1}
    with pytest.raises(UsageError, match=r"needs no approval \(state: succeeded\)"):
        harness.engine.approve("i1", by="ann")
    with pytest.raises(UsageError, match=r"cannot be refused \(state: succeeded\)"):
        harness.engine.intents.refuse("i1", by="bob")
    with pytest.raises(UsageError, match=r"cannot be refused \(state: refused\)\. bob refused it: too many\."):
        harness.engine.intents.refuse("i2", by="ann")
    with pytest.raises(NotFoundError, match="no action 'i9'"):
        harness.engine.intents.refuse("i9", by="bob")


@pytest.mark.parametrize("instant", ["decided", "before", "noted", "after"])
def test_a_kill_at_any_instant_neither_loses_nor_repeats_an_action(harness: ArbiterHarness, instant: str) -> None:
    harness.engine.submit(make_intent("i1"))
    if instant != "decided":
        harness.kill = instant
        with pytest.raises(KilledError):
            harness.engine.settle()
        assert action(harness, "i1").state == "running"
    harness.kill = None
    harness.restart().settle()
    done = action(harness, "i1")
    assert (done.state, len(harness.done), harness.replicas["serve"]) == ("succeeded", 1, 4)
    assert done.inverse is not None
    assert done.inverse.arguments["instances"] == 2


def test_what_is_cut_off_again_and_again_is_given_up_and_said_so(harness: ArbiterHarness) -> None:
    harness.engine.submit(make_intent("i1"))
    harness.kill = "before"
    for _ in range(5):
        with pytest.raises(KilledError):
            harness.restart().settle()
    harness.restart().settle()
    assert action(harness, "i1").state == "lost"
    assert "interrupted 5 times" in str(action(harness, "i1").error)


def test_what_does_not_answer_is_tried_again_and_not_for_ever(harness: ArbiterHarness) -> None:
    harness.does_not_answer()
    harness.do(make_intent("i1"))
    assert (action(harness, "i1").state, action(harness, "i1").error is not None) == ("pending", True)
    harness.fail = None
    harness.engine.settle()
    assert harness.done == []  # not before its time
    harness.now += 1
    harness.engine.settle()
    assert (action(harness, "i1").state, action(harness, "i1").error) == ("succeeded", None)
    harness.does_not_answer()
    harness.engine.submit(make_intent("i2", 7))
    for _ in range(9):
        harness.engine.settle()
        harness.now += 60
    assert (action(harness, "i2").state, harness.replicas["serve"]) == ("lost", 4)
    assert "The action was attempted 5 times (The tracker does not answer. Try again.)" in str(
        action(harness, "i2").error
    )


@pytest.mark.parametrize("error", [UsageError("It does not fit."), ZeroDivisionError("a defect")])
def test_what_cannot_be_done_has_failed_and_says_why(harness: ArbiterHarness, error: Exception) -> None:
    harness.fail = error
    harness.do(make_intent("i1"))
    assert (action(harness, "i1").state, str(error) in str(action(harness, "i1").error)) == ("failed", True)
    assert list_event_types(harness) == ["intent", "action.failed"]


GUARD = Guard(metric="service.serve.p95_s", worse="higher", by=0.05, within_s=60.0)


@pytest.mark.parametrize(
    ("before", "after", "later_s", "message"),
    [
        (0.1, 0.2, 0.0, "went from 0.1 to 0.2"),
        (0.1, 0.14, 0.0, "the guard watches service.serve.p95_s, which was 0.1, for 60 s"),
        (0.1, 0.14, 60.0, "the guard found no regression"),
        (None, 9.0, 0.0, "which was unknown"),
    ],
)
def test_an_action_is_taken_back_when_its_guard_regresses(
    harness: ArbiterHarness, before: float | None, after: float, later_s: float, message: str
) -> None:
    worse = message.startswith("went")
    if before is not None:
        harness.metrics["service.serve.p95_s"] = before
    harness.do(make_intent("i1", guard=GUARD))
    harness.metrics["service.serve.p95_s"] = after
    harness.now += later_s
    harness.engine.settle()
    if later_s:  # it watches for its time only
        harness.metrics["service.serve.p95_s"] = 9.0
        harness.engine.settle()
    back = action(harness, "i1")
    expected = ("reverted", "the guard", 2) if worse else ("succeeded", None, 4)
    assert (back.state, back.reverted_by, harness.replicas["serve"]) == expected
    assert list_event_types(harness)[-1] == f"action.{expected[0]}"
    assert any(message in text for text in trail(harness, "i1"))


def test_a_kill_while_something_is_taken_back_is_gone_on_with(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1"))
    harness.kill = "before"
    with pytest.raises(KilledError):
        harness.engine.revert("i1", by="ann")
    harness.kill = None
    harness.restart().settle()
    assert (action(harness, "i1").state, action(harness, "i1").reverted_by) == ("reverted", "ann")
    assert harness.replicas["serve"] == 2


def test_a_person_takes_back_what_nobody_has_written_over_since(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1"))
    harness.do(make_intent("i2", 6))
    with pytest.raises(UsageError, match="'i2' has changed 'replicas'"):
        harness.engine.revert("i1", by="ann")
    assert harness.engine.revert("i2", by="ann").state == "reverted"
    assert harness.replicas["serve"] == 4
    with pytest.raises(UsageError, match="it is reverted"):
        harness.engine.revert("i2", by="ann")
    assert harness.engine.submit(make_intent("i3", 5)).verdict == "act"  # what it took back is no foreign writer's


def test_an_intent_with_parts_that_do_not_fit_is_refused_when_it_is_sent(harness: ArbiterHarness) -> None:
    with pytest.raises(NotFoundError, match="no primitive"):
        harness.engine.submit(make_intent("i1", primitive="update_workflow_replicas"))
    with pytest.raises(InvalidError, match="has the target 'service/serve'"):
        harness.engine.submit(make_intent("i1", target="service/other"))
    with pytest.raises(InvalidError, match="does not list 'replicas'"):
        harness.engine.submit(make_intent("i1", fields=("traffic",)))


def test_actions_are_carried_out_in_threads_of_its_own(harness: ArbiterHarness) -> None:
    with harness.restart() as engine:
        engine.submit(make_intent("i1", 3))
        engine.submit(make_intent("i2", 3, service="other"))
        wait_until(
            lambda: [action(harness, id).state for id in ("i1", "i2")] == ["succeeded"] * 2, "both actions are over"
        )
        assert engine.revert("i1", by="ann").state == "reverted"
    assert harness.replicas == {"serve": 2, "other": 3}


def test_what_waits_for_its_turn_is_done_when_it_comes(harness: ArbiterHarness) -> None:
    decisions: list[str] = []
    first = harness.perform

    def perform(*arguments: Any) -> Any:
        if not decisions:
            decisions.append(harness.engine.submit(make_intent("i2", 6)).verdict)
        return first(*arguments)

    harness.perform = perform  # type: ignore[method-assign,assignment]
    harness.do(make_intent("i1", 4))
    harness.now += 1
    harness.engine.settle()
    assert (decisions, harness.replicas["serve"]) == (["queue"], 6)


def test_why_tells_the_whole_history(harness: ArbiterHarness) -> None:
    sample = {"id": "s1", "agent": "planner", "sensor": "load", "at": 999.0, "value": 31, "cause": "interval:16:39"}
    harness.do(make_intent("i1", sample=sample, rule="load 31 > 20"))
    with harness.store.read() as connection:
        lines = explain_action(action(harness, "i1"), kept.load_trail(connection, "i1"))
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == ["sample", "trigger", "rule", "intent", "decision", "action", "effect"]
    text = "\n".join(lines)
    for part in ("load of planner at 1970-01-01 00:16:39Z: 31", "interval:16:39", "load 31 > 20", "instances=4"):
        assert part in text
    assert lines[-1] == 'effect    {"instances": 4}; inverse: update_workflow_replica'


def test_why_tells_the_evidence_that_a_model_is_better(harness: ArbiterHarness) -> None:
    part = Slice(name="current", n=59, champion_right=42, challenger_right=55, gained=14)
    evidence = decide([part]).evidence(champion=1, version=3, run="bold-fox-1").model_dump(mode="json")
    sample = {"id": "s1", "agent": "executor", "sensor": "change_model", "at": 999.0, "cause": "call:1"}
    harness.do(make_intent("i1", sample={**sample, "value": {"version": 3, "evidence": evidence}}))
    lines = explain_action(action(harness, "i1"), [])
    assert lines[2] == f"evidence  {format_decision(evidence)}"
    assert lines[0].endswith('{"version": 3} (in 0 s)'), "the evidence is told once"


def test_strategies_of_one_agent_with_the_same_priority_above_0_hand_a_field_on(harness: ArbiterHarness) -> None:
    harness.living.add("planner")
    harness.do(make_intent("i1", 3, priority=10))
    harness.now += 10_000
    assert harness.engine.submit(make_intent("i2", 1, strategy="save", priority=9)).winner == "i1"
    assert harness.engine.submit(make_intent("i3", 1, strategy="save", priority=10, agent="executor")).winner == "i1"
    assert harness.engine.submit(make_intent("i4", 1, strategy="save", priority=10)).verdict == "act"


def test_strategies_that_start_the_same_workflow_take_nothing_from_each_other(harness: ArbiterHarness) -> None:
    harness.living.add("planner")
    start = {"primitive": "run_workflow", "target": "workflow/training", "fields": ("running",)}
    for number, strategy in enumerate(["retrain", "evaluate", "retrain"]):
        start_intent = intent(
            f"i{number}", arguments={"workflow": "training"}, strategy=strategy, at=harness.now, **start
        )
        assert harness.engine.submit(start_intent).verdict == "act"
        harness.engine.settle()
        harness.now += 60
    assert len(harness.done) == 3


def test_a_refusal_that_repeats_is_reported_once_and_counted(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i0", cool_down_s=60.0))
    decisions = []
    for number in range(1, 6):
        harness.now += 2.0
        decisions.append(harness.engine.submit(make_intent(f"i{number}", 5, cool_down_s=60.0, at=harness.now)))
    assert {decision.verdict for decision in decisions} == {"refuse"}
    assert "This repeats the decision on i1" in decisions[-1].reason
    assert (action(harness, "i1").repeats, action(harness, "i1").repeated) == (4, harness.now)
    assert list_event_types(harness) == ["intent", "action.succeeded", "intent"], "one event for five refusals"
    assert any("4 times more" in line for line in explain_action(action(harness, "i1"), []))


def test_a_refusal_is_reported_again_after_something_was_done(harness: ArbiterHarness) -> None:
    for number in range(3):
        harness.do(make_intent(f"i{number}", number + 3, cool_down_s=60.0, at=harness.now))
        harness.now += 30.0
        harness.engine.submit(make_intent(f"r{number}", 9, cool_down_s=60.0, at=harness.now))
        harness.now += 31.0
    assert list_event_types(harness).count("intent") == 6


def test_a_suggestion_pauses_as_its_strategy_says_and_the_same_one_is_reported_once(harness: ArbiterHarness) -> None:
    verdicts = []
    for number in range(6):
        suggestion = make_intent(f"i{number}", autonomy="suggest", cool_down_s=5.0, at=harness.now)
        verdicts.append(harness.engine.submit(suggestion).verdict)
        harness.now += 2.0
    assert verdicts == ["suggest", "refuse", "refuse", "suggest", "suggest", "suggest"]
    assert list_event_types(harness) == ["intent", "intent"]
    assert harness.engine.approve("i0", by="ada").state == "pending"


def test_people_are_not_consulted_again_within_the_pause_after_they_refused(harness: ArbiterHarness) -> None:
    harness.engine.submit(make_intent("i1", autonomy="approve", cool_down_s=60.0))
    harness.engine.intents.refuse("i1", by="ada", reason="not today")
    harness.now += 30.0
    assert harness.engine.submit(make_intent("i2", autonomy="approve", cool_down_s=60.0)).verdict == "refuse"
    harness.now += 31.0
    assert harness.engine.submit(make_intent("i3", autonomy="approve", cool_down_s=60.0)).verdict == "approve"


def test_what_a_person_refused_is_refused_for_a_while_also_without_a_cool_down(harness: ArbiterHarness) -> None:
    for number in range(4):
        harness.engine.submit(make_intent(f"i{number}", autonomy="approve", at=harness.now))
        harness.now += 1.0
    harness.engine.intents.refuse("i0", by="ada", reason="not today")
    lines = explain_action(action(harness, "i0"), [])
    assert "          before that, the same was requested 3 times more, last at 1970-01-01 00:16:43Z" in lines
    harness.now += 1.0
    again = harness.engine.submit(make_intent("j1", autonomy="approve"))
    assert (again.verdict, again.winner, again.retry_at) == ("refuse", "i0", 1904.0)
    assert "ada (a person) refused the same request 1 s ago (see scanflow why i0). It is held off" in again.reason
    assert harness.engine.submit(make_intent("j2", autonomy="suggest")).verdict == "refuse"
    assert action(harness, "j1").repeats == 1
    for other in ({"instances": 5}, {"strategy": "other"}, {"agent": "executor"}, {"service": "other"}):
        asked = make_intent(f"k-{next(iter(other))}", autonomy="approve", **{"instances": 4, **other})  # type: ignore[arg-type]
        assert harness.engine.submit(asked).verdict == "approve", other
    assert harness.engine.approve("j1", by="bea").decision.verdict == "act"
    harness.engine.settle()
    harness.now += 900.0
    assert harness.engine.submit(make_intent("j3", 6, autonomy="approve")).verdict == "approve"


def change_by_person(harness: ArbiterHarness, id: str, instances: int, by: str = "ada") -> None:
    """Have a person change the service, as a command does."""
    command = make_intent(
        id, instances, source="person", agent=by, strategy="command", priority=1_000_001, at=harness.now
    )
    with harness.store.write() as connection:
        harness.engine.intents.admit(connection, command, harness.look(command))
    harness.engine.settle()


def test_what_a_person_changed_is_theirs_by_name_and_is_left_alone_for_a_while(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", 4))
    harness.now += 10.0
    change_by_person(harness, "scale-1", 7)
    harness.now += 5.0
    refused = harness.engine.submit(make_intent("i2", 5, at=harness.now))
    assert (refused.verdict, refused.winner) == ("refuse", "scale-1")
    assert "ada (a person) changed the field 'replicas' of 'service/serve' to 7 5 s ago" in refused.reason
    assert "nother client" not in refused.reason
    harness.now += 900.0
    assert harness.engine.submit(make_intent("i3", 5, at=harness.now)).verdict == "act"


@pytest.mark.parametrize("autonomy", ["approve", "suggest"])
def test_people_are_consulted_also_about_what_another_person_changed(harness: ArbiterHarness, autonomy: str) -> None:
    harness.do(make_intent("i1", 4))
    change_by_person(harness, "scale-1", 7)
    harness.now += 5.0
    asked = harness.engine.submit(make_intent("i2", 5, autonomy=autonomy, at=harness.now))
    assert asked.verdict == autonomy
    assert "ada (a person) changed the field" in asked.reason
    harness.engine.approve("i2", by="bea")
    harness.engine.settle()
    assert harness.replicas["serve"] == 5


def test_a_command_that_changes_nothing_keeps_the_field_with_its_owner(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", 4))
    change_by_person(harness, "scale-1", 4)
    assert harness.engine.submit(make_intent("i2", 5, at=harness.now)).verdict == "act"


def test_who_approved_an_action_and_why_is_in_its_explanation(harness: ArbiterHarness) -> None:
    harness.engine.submit(make_intent("i1", autonomy="approve"))
    harness.engine.approve("i1", by="ada", reason="seen with the team")
    harness.engine.settle()
    done = action(harness, "i1")
    assert (done.approved_by, done.approved_why) == ("ada", "seen with the team")
    assert any("Approved by ada (a person): seen with the team" in line for line in explain_action(done, []))


def test_what_waits_for_a_person_is_withdrawn_where_its_target_came_to_be_so(harness: ArbiterHarness) -> None:
    for id, instances, strategy in (("i1", 4, "more"), ("i2", 1, "less"), ("i3", 9, "most")):
        asked = make_intent(id, instances, strategy=strategy, autonomy="suggest" if id == "i1" else "approve")
        harness.engine.submit(asked)
    harness.replicas["serve"] = 4
    for _ in range(2):
        harness.engine.intents.withdraw_needless("service/tests/serve")
    assert [action(harness, id).state for id in ("i1", "i2", "i3")] == ["refused", "pending", "pending"]
    why = "Nothing to change: the service serve has 4 instances already."
    assert (action(harness, "i1").decision.reason, action(harness, "i1").decision.by) == (why, None)
    assert trail(harness, "i1")[1:] == [f"refuse: {why}"]


def test_an_approval_of_what_has_nothing_to_change_any_more_says_so(harness: ArbiterHarness) -> None:
    harness.engine.submit(make_intent("i1", 1, autonomy="approve"))
    harness.replicas["serve"] = 1
    approved = harness.engine.approve("i1", by="ada")
    harness.engine.settle()
    assert (approved.state, harness.done) == ("refused", [])
    assert approved.decision.reason == "Nothing to change: the service serve has 1 instance already."
