"""The law: what is acted on never exceeds the strategy that the server stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scanflow.agent.agent_records import Decision, Guard, Intent, PermittedCall, StrategyLimits
from scanflow_server.arbiter.arbitration import arbitrate_all
from scanflow_server.arbiter.arbitration_rules import ArbitrationContext
from scanflow_server.arbiter.strategy_permissions import bound_intent
from tests.unit.server.arbiter.intent_builders import intent, permit

RANK = {"observe": 0, "suggest": 1, "approve": 2, "auto": 3}
GUARDS = st.none() | st.builds(
    Guard,
    metric=st.sampled_from(["service.serve.errors", "service.serve.p95_s"]),
    worse=st.sampled_from(["higher", "lower"]),
    by=st.sampled_from([0.0, 0.5]),
    within_s=st.sampled_from([10.0, 60.0]),
)
SAID: dict[str, st.SearchStrategy[Any]] = {
    "priority": st.integers(-2, 3),
    "autonomy": st.sampled_from(list(RANK)),
    "cool_down_s": st.sampled_from([0.0, 5.0]),
    "hysteresis_s": st.sampled_from([0.0, 5.0]),
    "budget": st.sampled_from([None, 1, 5]),
    "budget_window_s": st.sampled_from([10.0, 3600.0]),
    "guard": GUARDS,
}
DOING = [
    ("update_workflow_replica", {"workflow": "serve", "instances": 2}, "service/serve", "replicas"),
    ("update_workflow_replica", {"workflow": "serve", "instances": 9}, "service/serve", "replicas"),
    ("update_workflow_replica", {"workflow": "other", "instances": 2}, "service/other", "replicas"),
    ("run_workflow", {"workflow": "training"}, "workflow/training", "running"),
    ("delete_workflow", {"workflow": "serve"}, "service/serve", "running"),
]
CALLS = st.builds(
    PermittedCall,
    primitive=st.sampled_from(["update_workflow_replica", "run_workflow", "delete_workflow"]),
    target=st.sampled_from(["service/serve", "service/*", "workflow/training", "*"]),
    arguments=st.sampled_from([None, None, {"workflow": "serve", "instances": 2}]),
)
STORED = st.builds(StrategyLimits, name=st.just("scale"), calls=st.lists(CALLS, max_size=3).map(tuple), **SAID)


@st.composite
def intents(draw: st.DrawFn) -> Intent:
    primitive, arguments, target, field = draw(st.sampled_from(DOING))
    fields = draw(st.sampled_from([(field,), (field, "model")]))
    drawn = {name: draw(values) for name, values in SAID.items()}
    return intent(primitive=primitive, arguments=arguments, target=target, fields=fields, **drawn)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[StrategyLimits | None, Intent]:
    """Return a stored strategy, or none, and an intent that says some things as the strategy has them."""
    sent, stored = draw(intents()), draw(st.none() | STORED)
    if stored is not None:
        names = set(SAID) - draw(st.sets(st.sampled_from(sorted(SAID)), max_size=2))
        sent = sent.model_copy(update={name: getattr(stored, name) for name in names})
        calls = draw(st.sampled_from([stored.calls, permit(sent).calls]))
        stored = stored.model_copy(update={"calls": calls})
    return stored, sent


def decide(
    stored: StrategyLimits | None, sent: Intent, bound: Callable[..., Any] = bound_intent
) -> tuple[Intent, Decision]:
    bounded, excess = bound(sent, stored)
    excesses = {} if excess is None else {bounded.id: excess}
    return bounded, arbitrate_all([bounded], ArbitrationContext(now=200.0, excesses=excesses))[bounded.id]


def exceeds(acted: Intent, stored: StrategyLimits | None) -> list[str]:
    """Return the fields in which what is acted on exceeds the strategy: written down here anew, field by field."""
    if stored is None:
        return ["strategy"]
    wrong = []
    calls = [
        call
        for call in stored.calls
        if call.primitive == acted.primitive
        and (call.target in {"*", acted.target} or (call.target == "service/*" and acted.target.startswith("service/")))
        and call.arguments in (None, acted.arguments)
    ]
    wrong += [] if calls else ["call"]
    wrong += ["priority"] if acted.priority > stored.priority else []
    wrong += ["autonomy"] if RANK[acted.autonomy] > RANK[stored.autonomy] else []
    wrong += ["cool_down"] if acted.cool_down_s < stored.cool_down_s else []
    wrong += ["hysteresis"] if acted.hysteresis_s < stored.hysteresis_s else []
    if stored.budget is not None:
        amount, window_s = acted.budget, acted.budget_window_s
        wrong += ["budget"] if amount is None or amount > stored.budget or window_s < stored.budget_window_s else []
    if stored.guard is not None:
        guard, of = acted.guard, stored.guard
        is_as_strict = (
            guard is not None
            and guard.metric == of.metric
            and guard.worse == of.worse
            and guard.by <= of.by
            and guard.within_s >= of.within_s
        )
        wrong += [] if is_as_strict else ["guard"]
    wrong += ["fields"] if "model" in acted.fields else []
    return wrong


def check_law(stored: StrategyLimits | None, sent: Intent, bound: Callable[..., Any] = bound_intent) -> None:
    acted, decision = decide(stored, sent, bound)
    if decision.verdict == "act":
        assert exceeds(acted, stored) == []
    if exceeds(sent, stored):
        assert decision.verdict in {"approve", "suggest", "observe"}, "it is for a person to say"
        of = (sent.autonomy, "approve" if stored is None else stored.autonomy, "approve")
        assert decision.verdict == min(of, key=RANK.__getitem__)
        exceeded = [] if stored is None else exceeds(acted, stored)
        assert set(exceeded) <= {"call"}, "a person who approves it approves no more than that"
    else:
        assert acted == sent, "what is more cautious stays as it is"


@given(pair=pairs())
def test_what_is_acted_on_never_exceeds_the_saved_strategy(pair: tuple[StrategyLimits | None, Intent]) -> None:
    check_law(*pair)


def mutate(**options: bool) -> Callable[..., Any]:
    """Return a version of the rule that believes what an intent says of one thing."""

    def apply_limits(sent: Intent, stored: StrategyLimits | None) -> tuple[Intent, str | None]:
        believed = {name: getattr(sent, name) for name in options if name in SAID}
        if stored is not None:
            stored = stored.model_copy(update=believed)
            stored = stored.model_copy(update={"calls": permit(sent).calls}) if "calls" in options else stored
        elif "strategy" in options:
            return sent, None
        return bound_intent(sent, stored)

    return apply_limits


@pytest.mark.parametrize("name", [*sorted(set(SAID) - {"budget_window_s"}), "calls", "strategy"])
def test_the_law_fails_where_an_intent_is_believed(name: str) -> None:
    bound = mutate(**{name: True})

    @settings(phases=[Phase.generate], max_examples=1000, derandomize=True, database=None)
    @given(pair=pairs())
    def hold(pair: tuple[StrategyLimits | None, Intent]) -> None:
        check_law(*pair, bound=bound)

    with pytest.raises(AssertionError):
        hold()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"autonomy": "auto"}, "its autonomy is auto, the strategy's approve"),
        ({"priority": 1000}, "its priority is 1000, the strategy's 2"),
        ({"cool_down_s": 1.0}, "its cool-down is 1 s, the strategy's 60 s"),
        ({"hysteresis_s": 0.0}, "its hysteresis is 0 s, the strategy's 30 s"),
        ({"budget": None}, "its budget is unlimited, the strategy's 3 in 3600 s"),
        ({"budget_window_s": 5.0}, "its budget is 3 in 5 s, the strategy's 3 in 3600 s"),
        ({"guard": None}, "its guard is none, the strategy's service.serve.errors not higher by 0.1 within 60 s"),
        ({"fields": ("replicas", "model")}, "the field 'model' is not written by update_workflow_replica"),
        (
            {"primitive": "delete_workflow", "arguments": {"workflow": "serve"}, "fields": ("running",)},
            "delete_workflow on service/serve with these arguments is not what it may request (update_workflow_replica",
        ),
    ],
)
def test_what_exceeds_a_strategy_is_said_with_by_what(changes: dict[str, Any], why: str) -> None:
    guard = Guard(metric="service.serve.errors", worse="higher", by=0.1)
    fields: dict[str, Any] = {
        "autonomy": "approve",
        "priority": 2,
        "cool_down_s": 60.0,
        "hysteresis_s": 30.0,
        "budget": 3,
        "guard": guard,
    }
    stored = permit(intent(**fields))
    assert decide(stored, intent(**fields))[1].reason.startswith("The strategy requires approval by a person.")
    _, decision = decide(stored, intent(**{**fields, **changes}))
    assert decision.verdict == "approve"
    assert f"exceeds the strategy 'scale' as its agent was deployed: {why}" in decision.reason
    assert decision.reason.endswith("Approve it: scanflow approve i1.")


def test_an_intent_of_a_strategy_that_is_not_saved_waits_for_approval_with_no_priority() -> None:
    bounded, decision = decide(None, intent(priority=1000))
    assert (bounded.priority, decision.verdict) == (0, "approve")
    assert "no strategy 'scale' of a running agent mnist/planner" in decision.reason


def test_an_agent_cannot_refer_to_secrets_to_which_its_application_does_not() -> None:
    key = {"$secret": "env:KEY"}
    arguments = {"workflow": "training", "parameters": {"key": [key]}}
    sent = intent(primitive="run_workflow", arguments=arguments, target="workflow/training", fields=("running",))
    free = permit(sent, calls=(PermittedCall(primitive="run_workflow", target="workflow/*"),))
    bounded, excess = bound_intent(sent, free)
    assert (bounded.autonomy, "it refers to a secret, 'env:KEY', to which its application does not" in str(excess)) == (
        "approve",
        True,
    )
    assert bound_intent(sent, free.model_copy(update={"secrets": ("env:KEY",)}))[1] is None
    assert "secrets" not in free.model_copy(update={"secrets": ("env:KEY",)}).model_dump()
