from __future__ import annotations

from typing import Any

import pytest

from scanflow.agent.records import PrimitiveCall
from scanflow_server.arbiter.objections import Owner
from tests.unit.server.arbiter.making import action, arbitrate, intent


def owner(**changes: Any) -> Owner:
    given: dict[str, Any] = {"strategy": "tests/mnist/tracker/other", "intent": "i0", "priority": 0, "until": 200.0}
    return Owner(**{**given, **changes})


def test_what_nothing_stands_against_is_done() -> None:
    decision = arbitrate(intent(), now=100.0)
    assert (decision.verdict, decision.intent, decision.at) == ("act", "i1", 100.0)


def test_a_field_stays_with_who_came_first_while_the_lease_lasts() -> None:
    decision = arbitrate(intent(), now=100.0, owners={"replicas": owner()})
    assert (decision.verdict, decision.winner, decision.retry_at) == ("refuse", "i0", 200.0)
    assert "'replicas' of 'service/serve' belongs to the strategy 'tests/mnist/tracker/other'" in decision.reason
    assert arbitrate(intent(), now=200.0, owners={"replicas": owner()}).verdict == "act"


def test_a_field_stays_with_a_strategy_that_lives_whatever_its_lease() -> None:
    decision = arbitrate(intent(), now=900.0, owners={"replicas": owner(lives=True)})
    assert (decision.verdict, decision.retry_at) == ("refuse", None)


def test_a_higher_priority_takes_a_field_over() -> None:
    assert arbitrate(intent(priority=1), now=100.0, owners={"replicas": owner(lives=True)}).verdict == "act"


def test_an_owner_writes_its_field_again_and_others_write_other_fields() -> None:
    mine = owner(strategy="tests/mnist/planner/scale")
    assert arbitrate(intent(), now=101.0, owners={"replicas": mine}).verdict == "act"
    assert arbitrate(intent(), now=101.0, owners={"traffic": owner()}).verdict == "act"


@pytest.mark.parametrize(
    ("rival", "why"),
    [
        ({"priority": 1}, "its priority is 1, and this one's is 0"),
        ({"at": 99.0}, "it wanted it earlier"),
        ({"key": "a"}, "the smaller key is taken"),
    ],
)
def test_of_two_for_one_field_the_better_wins_and_the_other_is_told(rival: dict[str, Any], why: str) -> None:
    better, worse = intent("i2", strategy="other", **{"key": "b", **rival}), intent("i1", key="c")
    lost = arbitrate(worse, now=100.0, pending=[better])
    assert (lost.verdict, lost.winner) == ("refuse", "i2")
    assert why in lost.reason
    assert arbitrate(better, now=100.0, pending=[worse]).verdict == "act"


def test_a_rival_that_may_not_act_keeps_nobody_from_a_field() -> None:
    spent = intent("i2", strategy="other", priority=9, budget=0)
    assert arbitrate(intent(), now=100.0, pending=[spent]).verdict == "act"


def test_the_same_name_in_another_application_is_another_workflow_but_the_same_service() -> None:
    theirs = {"app": "other", "strategy": "other", "priority": 1}
    mine = intent(target="workflow/train")
    assert arbitrate(mine, now=100.0, pending=[intent("i2", target="workflow/train", **theirs)]).verdict == "act"
    assert arbitrate(intent(), now=100.0, pending=[intent("i2", **theirs)]).verdict == "refuse"


def test_a_strategy_cools_down_for_each_target_by_itself() -> None:
    before = action(intent("i0"), began=100.0)
    decision = arbitrate(intent(cool_down_s=60), now=130.0, history=[before])
    assert (decision.verdict, decision.winner, decision.retry_at) == ("refuse", "i0", 160.0)
    assert "30 s ago, and waits 60 s" in decision.reason
    assert arbitrate(intent(cool_down_s=60), now=160.0, history=[before]).verdict == "act"
    assert arbitrate(intent(cool_down_s=60, target="service/b"), now=130.0, history=[before]).verdict == "act"
    assert arbitrate(intent(cool_down_s=60, strategy="other"), now=130.0, history=[before]).verdict == "act"


def test_what_was_refused_makes_nobody_cool_down_and_spends_nothing() -> None:
    before = action(intent("i0"), began=100.0, verdict="refuse")
    assert arbitrate(intent(cool_down_s=60, budget=1), now=101.0, history=[before]).verdict == "act"


def test_a_budget_is_not_exceeded_and_says_when_there_is_room_again() -> None:
    spent = [action(intent(f"h{n}"), began=100.0 + n) for n in range(3)]
    decision = arbitrate(intent(budget=2, budget_window_s=60), now=110.0, history=spent)
    assert (decision.verdict, decision.retry_at) == ("refuse", 161.0)
    assert "has 2 actions in 60 s, and 3 are used" in decision.reason
    assert arbitrate(intent(budget=2, budget_window_s=60), now=161.0, history=spent).verdict == "act"


@pytest.mark.parametrize(
    ("back", "forth"),
    [
        (PrimitiveCall(primitive="update_workflow_replica", arguments={"instances": 2}), {"instances": 2}),
        (PrimitiveCall(primitive="update_workflow_replica", arguments={"instances": 1}), {"instances": 3}),
    ],
)
def test_a_way_is_not_taken_back_within_the_hysteresis(back: PrimitiveCall, forth: dict[str, Any]) -> None:
    up = action(intent("i0", arguments={"instances": 4}), began=100.0, inverse=back)
    wanted = intent(arguments=forth, hysteresis_s=30)
    decision = arbitrate(wanted, now=110.0, history=[up])
    assert (decision.verdict, decision.winner, decision.retry_at) == ("refuse", "i0", 130.0)
    assert arbitrate(wanted, now=130.0, history=[up]).verdict == "act"
    further = intent(arguments={"instances": 6}, hysteresis_s=30)
    assert arbitrate(further, now=110.0, history=[up]).verdict == "act"


def test_an_action_that_changed_nothing_does_not_hide_the_change_before_it() -> None:
    def to(id: str, count: int, was: int, began: float) -> Any:
        back = PrimitiveCall(primitive="update_workflow_replica", arguments={"instances": was})
        return action(intent(id, arguments={"instances": count}), began=began, inverse=back)

    history = [to("i0", 2, 1, 100.0), to("i1", 2, 2, 105.0)]
    down = intent(arguments={"instances": 1}, hysteresis_s=30)
    decision = arbitrate(down, now=110.0, history=history)
    assert (decision.verdict, decision.winner, decision.retry_at) == ("refuse", "i0", 130.0)
    assert arbitrate(down, now=130.0, history=history).verdict == "act"


def test_going_back_to_the_model_before_is_a_reversal_and_going_on_to_a_third_is_none() -> None:
    def promote(version: int) -> PrimitiveCall:
        return PrimitiveCall(primitive="upgrade_workflow", arguments={"name": "serve", "model": f"models:/m/{version}"})

    def wanted(id: str, version: int) -> Any:
        call = promote(version)
        return intent(id, primitive=call.primitive, arguments=call.arguments, fields=("model",), hysteresis_s=60)

    swapped = action(wanted("i0", 2), began=100.0, inverse=promote(1))
    assert arbitrate(wanted("i1", 1), now=110.0, history=[swapped]).verdict == "refuse"
    assert arbitrate(wanted("i1", 3), now=110.0, history=[swapped]).verdict == "act"


def test_an_instance_more_and_then_one_fewer_is_a_reversal() -> None:
    more = action(intent("i0", primitive="duplicate_workflow_instance", arguments={"name": "serve"}), began=100.0)
    fewer = intent(primitive="delete_workflow_instance", arguments={"name": "serve"}, hysteresis_s=60)
    assert arbitrate(fewer, now=110.0, history=[more]).verdict == "refuse"
    again = intent(primitive="duplicate_workflow_instance", arguments={"name": "serve"}, hysteresis_s=60)
    assert arbitrate(again, now=110.0, history=[more]).verdict == "act"


def test_what_failed_or_was_taken_back_may_be_tried_the_other_way() -> None:
    back = PrimitiveCall(primitive="update_workflow_replica", arguments={"instances": 2})
    up = action(intent("i0", arguments={"instances": 4}), began=100.0, inverse=back, state="reverted")
    assert arbitrate(intent(arguments={"instances": 2}, hysteresis_s=60), now=110.0, history=[up]).verdict == "act"


def test_somebody_elses_value_is_left_alone_and_both_values_are_named() -> None:
    seen: dict[str, Any] = {"observed": {"replicas": 7}, "last_written": {"replicas": 2}}
    decision = arbitrate(intent(), now=100.0, **seen)
    assert decision.verdict == "refuse"
    assert "'replicas' of 'service/serve': it is 7, and 2 was written here last" in decision.reason
    assert arbitrate(intent(), now=100.0, **seen, approved={"i1"}).verdict == "act"
    assert arbitrate(intent(), now=100.0, **seen, foreign_since={"replicas": 0.0}, foreign_s=50).verdict == "act"
    assert arbitrate(intent(), now=100.0, observed={"replicas": 2.0}, last_written={"replicas": 2}).verdict == "act"


def test_a_busy_target_is_waited_for() -> None:
    running = action(intent("i0", strategy="scale"), began=99.0, state="running", ended=None)
    decision = arbitrate(intent(), now=100.0, history=[running])
    assert (decision.verdict, decision.winner, decision.retry_at) == ("queue", "i0", 101.0)


@pytest.mark.parametrize(
    ("autonomy", "verdict"), [("observe", "observe"), ("suggest", "suggest"), ("approve", "approve")]
)
def test_a_strategy_goes_as_far_as_its_autonomy(autonomy: str, verdict: str) -> None:
    decision = arbitrate(intent(autonomy=autonomy), now=100.0)
    assert decision.verdict == verdict
    assert "It would be done now." in decision.reason


def test_what_only_observes_says_what_would_have_kept_it() -> None:
    decision = arbitrate(intent(autonomy="observe", budget=0), now=100.0)
    assert (decision.verdict, "The budget is spent" in decision.reason) == ("observe", True)
    assert arbitrate(intent(autonomy="approve", budget=0), now=100.0).verdict == "refuse"


def test_a_persons_yes_is_acted_on_and_waits_for_what_passes() -> None:
    wanted = intent(autonomy="approve", cool_down_s=60)
    assert arbitrate(wanted, now=100.0, approved={"i1"}).verdict == "act"
    before = action(intent("i0"), began=100.0)
    decision = arbitrate(wanted, now=110.0, history=[before], approved={"i1"})
    assert (decision.verdict, decision.retry_at) == ("queue", 160.0)


def test_a_key_is_decided_on_once() -> None:
    first = action(intent("i0", key="k"), began=50.0, verdict="refuse")
    decision = arbitrate(intent(key="k", priority=9), now=100.0, history=[first])
    assert (decision.verdict, decision.winner) == ("duplicate", "i0")
    assert "refuse. It was so." in decision.reason
    assert arbitrate(intent(key="k", app="other"), now=100.0, history=[first]).verdict == "act"
