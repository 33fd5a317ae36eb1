from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scanflow.agent.agent_records import Action, Intent, PrimitiveCall
from scanflow_server.arbiter.arbitration import arbitrate_all, supersede
from scanflow_server.arbiter.arbitration_rules import ArbitrationContext, Owner
from tests.unit.server.arbiter.intent_builders import action, arbitrate, intent


def make_owners(field: str = "replicas", **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"strategy": "tests/mnist/tracker/other", "intent": "i0", "priority": 0, "until": 200.0}
    return {"owners": {field: Owner(**{**fields, **changes})}}


def make_history(*history: Action) -> dict[str, Any]:
    return {"history": history}


def foreign(**more: Any) -> dict[str, Any]:
    return {"observed": {"replicas": 7}, "last_written": {"replicas": 2}, **more}


def make_scaling_action(id: str, was: int, to: int, *, began: float = 100.0, **changes: Any) -> Action:
    back = PrimitiveCall(primitive="update_workflow_replica", arguments={"instances": was})
    return action(intent(id, arguments={"instances": to}), began=began, inverse=back, **changes)


def make_scaling_intent(instances: int, **changes: Any) -> Intent:
    return intent(arguments={"instances": instances}, hysteresis_s=30, **changes)


def promotion(id: str, version: int) -> Intent:
    arguments = {"name": "serve", "model": f"models:/m/{version}"}
    return intent(id, primitive="upgrade_workflow", arguments=arguments, fields=("model",), hysteresis_s=60)


def step(id: str, primitive: str) -> Intent:
    return intent(id, primitive=f"{primitive}_workflow_instance", arguments={"name": "serve"}, hysteresis_s=60)


def ask(**arguments: Any) -> Intent:
    return intent(arguments={"workflow": "serve", **arguments}, autonomy="approve")


THERE = {"observed": {"replicas": 2}}
SIZED = {"observed": {"resource": 2.0, "affinity": "spread"}}
ASKED = ask(instances=2)
DELETES = ask().model_copy(update={"primitive": "delete_workflow"})
BEFORE = action(intent("i0"), began=100.0)
REFUSED = action(intent("i0", key="k"), began=100.0, verdict="refuse")
SPENT = [action(intent(f"h{n}"), began=100.0 + n) for n in range(3)]
HIGHER, NOTHING = make_scaling_action("i0", 2, 4), make_scaling_action("i1", 2, 2, began=105.0)
RUNNING = action(intent("i0"), began=99.0, state="running", ended=None)
SWAPPED = action(promotion("i0", 2), began=100.0).model_copy(
    update={"inverse": PrimitiveCall(primitive="upgrade_workflow", arguments=promotion("i0", 1).arguments)}
)
MORE = action(step("i0", "duplicate"), began=100.0)
COOL: dict[str, Any] = {"cool_down_s": 60}
BUDGET: dict[str, Any] = {"budget": 2, "budget_window_s": 60}
APPROVED = {"approved": {"i1"}}

ACT = ("act", None, None)


@pytest.mark.parametrize(
    ("wanted", "now", "fields", "decided", "words"),
    [
        (intent(), 100, {}, ACT, "no conflict"),
        # A field is the strategy's that came first, while its lease lasts or its agent lives; higher ones take it.
        (
            intent(),
            100,
            make_owners(),
            ("refuse", "i0", 200),
            "The strategy 'tests/mnist/tracker/other' owns the field",
        ),
        (intent(), 200, make_owners(), ACT, ""),
        (intent(), 900, make_owners(lives=True), ("refuse", "i0", None), "as long as its agent is running"),
        (intent(priority=1), 100, make_owners(lives=True), ACT, ""),
        (intent(), 101, make_owners(strategy="tests/mnist/planner/scale"), ACT, ""),
        (intent(), 101, make_owners("traffic"), ACT, ""),
        # A strategy cools down for each target by itself; what was refused counts for nothing.
        (intent(**COOL), 130, make_history(BEFORE), ("refuse", "i0", 160), "30 s ago, and waits 60 s"),
        (intent(**COOL), 160, make_history(BEFORE), ACT, ""),
        (intent(**COOL, target="service/b"), 130, make_history(BEFORE), ACT, ""),
        (intent(**COOL, strategy="other"), 130, make_history(BEFORE), ACT, ""),
        (intent(**COOL, budget=1), 101, make_history(REFUSED), ACT, ""),
        # A budget says when there is room again.
        (
            intent(**BUDGET),
            110,
            make_history(*SPENT),
            ("refuse", None, 161),
            "has used 3 of 2 actions in 60 s, those that its calls and functions took left out",
        ),
        (intent(**BUDGET), 161, make_history(*SPENT), ACT, ""),
        # A change is not taken back, or turned, within the hysteresis; what changed nothing does not hide it.
        (
            make_scaling_intent(2),
            110,
            make_history(HIGHER),
            ("refuse", "i0", 130),
            "undo the last change of 'instances'",
        ),
        (make_scaling_intent(3), 110, make_history(make_scaling_action("i0", 1, 4)), ("refuse", "i0", 130), ""),
        (make_scaling_intent(2), 130, make_history(HIGHER), ACT, ""),
        (make_scaling_intent(6), 110, make_history(HIGHER), ACT, ""),
        (
            make_scaling_intent(1),
            110,
            make_history(make_scaling_action("i0", 1, 2), NOTHING),
            ("refuse", "i0", 130),
            "",
        ),
        (make_scaling_intent(1), 130, make_history(make_scaling_action("i0", 1, 2), NOTHING), ACT, ""),
        (make_scaling_intent(2), 110, make_history(make_scaling_action("i0", 2, 4, state="reverted")), ACT, ""),
        (promotion("i1", 1), 110, make_history(SWAPPED), ("refuse", "i0", 160), ""),
        (promotion("i1", 3), 110, make_history(SWAPPED), ACT, ""),
        (step("i1", "delete"), 110, make_history(MORE), ("refuse", "i0", 160), ""),
        (step("i1", "duplicate"), 110, make_history(MORE), ACT, ""),
        # Somebody else's value is left alone for a while, or until a person approves.
        (intent(), 100, foreign(), ("refuse", None, 1000), "it is 7, and the server last wrote 2"),
        (intent(), 100, foreign(**APPROVED), ACT, "Approved by a person"),
        (intent(), 100, foreign(foreign_since={"replicas": 0.0}, foreign_s=50), ACT, ""),
        (intent(), 100, foreign(observed={"replicas": 2.0}), ACT, ""),
        (intent(), 100, make_history(RUNNING), ("queue", "i0", 101), "this action is next"),
        # A strategy goes as far as its autonomy.
        (intent(autonomy="observe"), 100, {}, ("observe", None, None), "The action would start now."),
        (intent(autonomy="suggest"), 100, {}, ("suggest", None, None), "The action would start now."),
        (intent(autonomy="approve"), 100, {}, ("approve", None, None), "The action would start now."),
        (intent(autonomy="observe", budget=0), 100, {}, ("observe", None, None), "The budget is used up"),
        (intent(autonomy="approve", budget=0), 100, {}, ("refuse", None, None), "The budget is used up"),
        (intent(autonomy="approve", **COOL), 100, APPROVED, ACT, ""),
        (intent(autonomy="approve", **COOL), 110, {**make_history(BEFORE), **APPROVED}, ("queue", "i0", 160), ""),
        # What people are asked has something to change.
        (ASKED, 100, THERE, ("refuse", None, None), "Nothing to change: the service serve has 2 instances already."),
        (intent(autonomy="suggest"), 100, THERE, ("refuse", None, None), ""),
        (intent(autonomy="observe"), 100, THERE, ("observe", None, None), ""),
        (intent(), 100, THERE, ACT, ""),
        (ASKED, 100, {**THERE, **APPROVED}, ("refuse", None, None), "Nothing to change"),
        (ASKED, 100, {"observed": {"replicas": 3}, **APPROVED}, ACT, ""),
        (ask(instances=1), 100, {"observed": {"replicas": 1}}, ("refuse", None, None), "has 1 instance already"),
        (ask(instances=1, cores=2.0), 100, {"observed": {"replicas": 1}}, ("approve", None, None), ""),
        (ask(cores=2, affinity="spread"), 100, SIZED, ("refuse", None, None), "2 cores, the affinity spread already"),
        (ask(cores=4, affinity="spread"), 100, SIZED, ("approve", None, None), ""),
        (ask(instances=2, scaling=None), 100, THERE, ("approve", None, None), ""),
        (DELETES, 100, {"observed": {"running": False}}, ("refuse", None, None), "the service serve is gone already"),
        (DELETES, 100, {"observed": {"running": True}}, ("approve", None, None), ""),
        # A key is decided on once, whatever else has changed.
        (intent(key="k", priority=9), 100, make_history(REFUSED), ("duplicate", "i0", None), "refuse. It was so."),
        (intent(key="k", app="other"), 100, make_history(REFUSED), ACT, ""),
        (intent(key="k", agent="other"), 100, make_history(REFUSED), ACT, ""),
        # A rival that may not act keeps nobody from a field.
        (intent(), 100, {"pending": [intent("i2", strategy="other", priority=9, budget=0)]}, ACT, ""),
        (
            intent(strategy="other"),
            110,
            {**make_history(BEFORE), "pending": [intent("i2", priority=9, **COOL)], "approved": {"i2"}},
            ACT,
            "",
        ),
    ],
)
def test_what_is_decided_and_why(
    wanted: Intent, now: float, fields: Mapping[str, Any], decided: tuple[Any, ...], words: str
) -> None:
    decision = arbitrate(wanted, now=float(now), **fields)
    assert (decision.verdict, decision.winner, decision.retry_at) == decided
    assert (decision.intent, decision.at, words in decision.reason) == ("i1", now, True), decision.reason


@pytest.mark.parametrize(
    ("rival", "why"),
    [
        ({"priority": 1}, "its priority is 1, and this intent's is 0"),
        ({"at": 99.0}, "it was requested earlier"),
        ({"key": "a"}, "the smaller key wins"),
    ],
)
def test_of_two_for_one_field_the_better_wins_and_the_other_learns_it(rival: dict[str, Any], why: str) -> None:
    better, worse = intent("i2", strategy="other", **{"key": "b", **rival}), intent("i1", key="c")
    lost = arbitrate(worse, now=100.0, pending=[better])
    assert (lost.verdict, lost.winner, why in lost.reason) == ("refuse", "i2", True)
    assert arbitrate(better, now=100.0, pending=[worse]).verdict == "act"


def test_the_same_name_in_another_application_is_another_workflow_but_the_same_service() -> None:
    theirs = {"app": "other", "strategy": "other", "priority": 1}
    mine = intent(target="workflow/train")
    assert arbitrate(mine, now=100.0, pending=[intent("i2", target="workflow/train", **theirs)]).verdict == "act"
    assert arbitrate(intent(), now=100.0, pending=[intent("i2", **theirs)]).verdict == "refuse"


def test_what_a_strategy_asks_for_later_replaces_what_waits_for_a_person() -> None:
    earlier, later = intent("i1", at=99.0), intent("i2")
    replaced = supersede(later, earlier, 100.0)
    assert replaced is not None
    assert (replaced.intent, replaced.verdict, replaced.winner) == ("i1", "refuse", "i2")
    others: dict[str, Any] = {"agent": "other", "strategy": "other", "target": "service/b", "primitive": "run_workflow"}
    for name, value in others.items():
        assert supersede(later.model_copy(update={name: value}), earlier, 100.0) is None, name


@pytest.mark.parametrize(
    ("tags", "verdicts"), [(("a", "b", "c"), ["act"] * 3), (("a", "a", "b"), ["act", "refuse", "act"])]
)
def test_strategies_that_start_one_workflow_with_other_parameters_take_nothing_from_each_other(
    tags: tuple[str, ...], verdicts: list[str]
) -> None:
    def start(number: int, tag: str) -> Intent:
        arguments = {"workflow": "job", "parameters": {"tag": tag}}
        return intent(
            f"i{number}",
            strategy=f"s{number}",
            primitive="run_workflow",
            arguments=arguments,
            target="workflow/job",
            fields=("running",),
        )

    starts = [start(number, tag) for number, tag in enumerate(tags)]
    decisions = arbitrate_all(starts, ArbitrationContext(now=100.0))
    assert [decisions[wanted.id].verdict for wanted in starts] == verdicts
