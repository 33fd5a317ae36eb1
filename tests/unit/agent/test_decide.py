"""Strategies: what is wanted after a sample, and why; nonsense never counts as true."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act, Call, call
from scanflow.agent.actuators.actuator import actuator
from scanflow.agent.agent_records import Intent
from scanflow.agent.decide import decide, evaluate
from scanflow.agent.rules import explain, make_rule, rule
from scanflow.agent.sensors.sensor import sensor
from scanflow.app.agent import collect_declarations
from scanflow.app.model import Model
from scanflow.errors import InvalidError
from tests.unit.agent.agent_builders import sample, situation
from tests.unit.app.app_builders import make_unchecked, message, plain_values, texts

LEAST = 1000
CHECK = call("checker", "check_predictions")
RETRAIN = do.run_workflow("training", retrain=True)


@sensor(sf.every(hours=1))
def count() -> int:
    return 0


def number_of_predictions_threshold(number_of_predictions: int) -> bool:
    return number_of_predictions > 999


@rule("enough to check")
def enough(n: int) -> bool:
    """Tell whether there are enough."""
    return n >= LEAST


def strategy(if_: Callable[..., Any] | None = None, then: Any = CHECK, **fields: Any) -> sf.Strategy:
    return make_unchecked(sf.Strategy, **{"name": "count", "when": count, "if_": if_, "then": then, **fields})


def test_a_rule_that_holds_makes_an_intent_with_all_that_the_arbiter_needs() -> None:
    guard = sf.Guard(metric="model.cnn.accuracy", by=0.01)
    made_so = strategy(
        lambda n: n >= 1000,
        RETRAIN,
        priority=3,
        autonomy="approve",
        cool_down="5m",
        hysteresis=30,
        budget=2,
        budget_window="1d",
        guard=guard,
    )
    taken = sample(1204)
    [intent] = decide(made_so, taken, situation())
    assert isinstance(intent, Intent)
    assert (intent.app, intent.team, intent.agent, intent.strategy) == ("shop", "data", "tracker", "count")
    assert (intent.primitive, intent.arguments) == (
        "run_workflow",
        {"workflow": "training", "parameters": {"retrain": True}},
    )
    assert (intent.target, intent.fields, intent.priority, intent.autonomy) == (
        "workflow/training",
        ("running",),
        3,
        "approve",
    )
    assert (intent.cool_down_s, intent.hysteresis_s, intent.budget, intent.budget_window_s) == (300, 30, 2, 86_400)
    assert (intent.guard, intent.sample, intent.at) == (guard, taken, 101.0)
    assert intent.key == "tracker/count/interval:1"
    assert intent.rule == "n >= 1000, n=1204"


def test_a_rule_that_does_not_hold_and_a_sample_with_an_error_want_nothing_and_say_why() -> None:
    evaluation = evaluate(strategy(lambda n: n >= 1000), sample(12), situation())
    assert (evaluation.held, evaluation.actions, evaluation.error, evaluation.rule) == (
        False,
        (),
        None,
        "n >= 1000, n=12",
    )
    evaluation = evaluate(strategy(), sample(None, error="it hung"), situation())
    assert (evaluation.held, evaluation.actions, evaluation.error) == (False, (), "it hung")


def with_parameters(n: int, parameters: dict[str, int]) -> bool:
    return n >= parameters["least"]


@pytest.mark.parametrize(
    ("if_", "value", "message"),
    [
        (None, 1, "always"),
        (
            number_of_predictions_threshold,
            1204,
            "number_of_predictions_threshold: number_of_predictions > 999, number_of_predictions=1204",
        ),
        (enough, 1204, "enough to check: n >= LEAST, n=1204, LEAST=1000"),
        (
            with_parameters,
            7,
            "with_parameters: n >= parameters['least'], n=7, parameters={'least': 5}, parameters['least']=5",
        ),
        (lambda new, current: new > current, {"current": 0.9, "new": 0.95}, "new > current, new=0.95, current=0.9"),
        (lambda new, current: new > current, [0.95, 0.9], "new > current, new=0.95, current=0.9"),
        (lambda n, least=3: n > least, 4, "n > least, n=4"),
        (lambda: True, 4, "True"),
        (math.isfinite, 4, "isfinite, x=4"),
    ],
)
def test_the_intents_rule_explains_it_with_the_values(if_: Any, value: Any, message: str) -> None:
    evaluation = evaluate(strategy(if_), sample(value), situation(least=5))
    assert (evaluation.held, evaluation.error) == (True, None)
    assert evaluation.rule == message


class Counted(Model):
    n: int
    due: bool = False


def is_enough(counted: Counted) -> bool:
    return counted.n >= LEAST and counted.due


def check(counted: Counted) -> Call:
    return call("checker", "check_predictions", n=counted.n)


def test_a_parameter_that_is_annotated_with_a_model_gets_that() -> None:
    evaluation = evaluate(strategy(is_enough, check), sample({"n": 1204, "due": True}), situation())
    assert (evaluation.error, evaluation.actions) == (
        None,
        (call("checker", "check_predictions", n=1204).replace(key="tracker/count/interval:1"),),
    )
    message = "is_enough: counted.n >= LEAST and counted.due, counted=Counted(n=1204, due=True), LEAST=1000"
    assert evaluation.rule == f"{message}, counted.due=True, counted.n=1204"
    adapted = rule("there are enough")(partial(is_enough))
    assert evaluate(strategy(adapted), sample({"n": 999, "due": True}), situation()).held is False


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"due": True}, "Counted needs the field 'n'"),
        ({"n": "many"}, "Counted: n cannot be 'many'"),
        ({"n": 1, "m": 2}, "Counted has no field 'm'"),
        (7, "the rule 'is_enough' needs a Counted, but the sensor returned 7"),
    ],
)
def test_a_sample_that_is_not_the_model_of_a_rule_is_an_error(value: Any, why: str) -> None:
    evaluation = evaluate(strategy(is_enough, check), sample(value), situation())
    assert (evaluation.held, evaluation.actions) == (False, ())
    assert why in (evaluation.error or "")


def test_an_adapted_function_is_explained_as_itself_or_by_its_sentence() -> None:
    def is_above(n: int, least: int) -> bool:
        return n > least

    adapted = partial(is_above, least=3)
    assert evaluate(strategy(adapted), sample(5), situation()).rule == "is_above: n > least, n=5"
    named = rule("there are enough")(adapted)
    assert evaluate(strategy(named), sample({"n": 5}["n"]), situation()).rule == "there are enough"


def test_two_rules_on_one_line_are_distinguished_and_one_without_source_by_its_values() -> None:
    rules = [lambda n: n > 1, lambda n: n > 2, eval("lambda n: n > 1")]
    texts = [evaluate(strategy(rule), sample(3), situation()).rule for rule in rules]
    assert texts == ["n > 1, n=3", "n > 2, n=3", "a rule without a name, n=3"]


def test_a_rule_where_the_file_was_changed_since_is_not_explained_by_what_it_now_says(tmp_path: Path) -> None:
    explanations = []
    for line, least in enumerate((1000, 2000)):  # equal code on another line is other code
        file = tmp_path / f"rules{line}.py"
        file.write_text("\n" * line + f"enough = lambda n: n > {least}\n")
        space: dict[str, Any] = {}
        exec(compile("\n" * line + "enough = lambda n: n > 1000\n", str(file), "exec", dont_inherit=True), space)
        explanations.append(explain(make_rule(space["enough"]), {"n": 1204}))
    assert explanations == ["n > 1000, n=1204", "a rule without a name, n=1204"]


@pytest.mark.parametrize(
    ("if_", "value", "message"),
    [
        (lambda n: "no", 1, "the rule returned 'no', which is neither True nor False."),
        (lambda n: 1, 1, "the rule returned 1, which is neither True nor False."),
        (lambda n: None, 1, "the rule returned None, which is neither True nor False."),
        (lambda n: [True], 1, "the rule returned [True], which is neither True nor False."),
        (lambda n: 1 / n > 0, 0, "ZeroDivisionError: division by zero"),
        (enough, "many", "TypeError: '>=' not supported between instances of 'str' and 'int'"),
        (lambda new, current: True, {"new": 1}, "the rule needs 'current', which is missing from the sensor's result"),
        (lambda new, current: True, 3, "the rule needs new, current, but the sensor returned 3."),
    ],
)
def test_a_rule_that_fails_is_recorded_with_the_sample_and_never_taken_for_true(
    if_: Any, value: Any, message: str
) -> None:
    evaluation = evaluate(strategy(if_), sample(value), situation())
    assert (evaluation.held, evaluation.actions) == (False, ())
    assert evaluation.error is not None
    assert evaluation.error.startswith("Strategy 'count': ")
    assert message in evaluation.error
    assert evaluation.sample == sample(value, error=evaluation.error)
    assert decide(strategy(if_), sample(value), situation()) == []


@given(plain_values.filter(lambda value: not isinstance(value, bool)))
def test_nothing_but_true_is_true(answer: Any) -> None:
    assert decide(strategy(lambda n: answer), sample(1), situation()) == []


def test_a_truth_value_of_numpys_is_one() -> None:
    import numpy as np

    assert decide(strategy(lambda n: np.float64(n) > 1), sample(2), situation()) != []
    assert decide(strategy(lambda n: np.float64(n) > 1), sample(0), situation()) == []


def test_several_actions_of_one_cause_have_keys_of_their_own() -> None:
    wants = decide(strategy(then=[CHECK, RETRAIN, do.delete_workflow("digits")]), sample(1), situation())
    keys = [want.key for want in wants]
    assert keys == ["tracker/count/interval:1", "tracker/count/interval:1/2", "tracker/count/interval:1/3"]
    assert [type(want) for want in wants] == [Call, Intent, Intent]


@given(plain_values, texts, st.integers(1, 4))
def test_the_same_sample_gives_the_same_decision_and_another_cause_another_key(
    value: Any, cause: str, many: int
) -> None:
    wanted = strategy(then=[RETRAIN] * many)
    first = decide(wanted, sample(value, cause=cause), situation())
    assert first == decide(wanted, sample(value, cause=cause), situation())
    others = decide(wanted, sample(value, cause=cause + "!"), situation())
    ids = {want.id for want in [*first, *others] if isinstance(want, Intent)}
    assert len(ids) == len({want.key for want in [*first, *others]}) == 2 * many


def choose_actions(n: int, parameters: dict[str, Any]) -> list[Act | Call] | None:
    return [call("checker", "check", n), do.run_workflow("training", n=n)] if parameters["both"] else None


@actuator(path="/sensors/check_predictions", depender="checker")
def return_arguments(args: Any, kwargs: Any) -> Any:
    return args, kwargs


def test_a_function_in_then_gets_what_the_rule_gets() -> None:
    wants = decide(strategy(then=choose_actions), sample(7), situation(both=True))
    assert [getattr(want, "args", None) or getattr(want, "arguments", None) for want in wants] == [
        (7,),
        {"workflow": "training", "parameters": {"n": 7}},
    ]
    assert decide(strategy(then=choose_actions), sample(7), situation(both=False)) == []
    [called] = decide(strategy(then=return_arguments), sample([1, 2]), situation())
    assert called == call("checker", "check_predictions", [1, 2]).replace(key="tracker/count/interval:1")
    [ended] = decide(strategy(then=do.delete_workflow), sample("digits"), situation())  # a primitive is one as well
    assert isinstance(ended, Intent)
    assert ended.target == "service/digits"


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda n: "retrain", "returned 'retrain'. Return a primitive, a call, a list, or None."),
        (lambda n: do.run_workflow("No Such"), "The workflow name 'No Such' cannot be used"),
        (choose_actions, "KeyError: 'both'"),
    ],
)
def test_a_function_in_then_that_fails_is_recorded_and_nothing_is_done(then: Any, message: str) -> None:
    evaluation = evaluate(strategy(then=[CHECK, then]), sample(1), situation())
    assert (evaluation.held, evaluation.actions) == (False, ())
    assert message in (evaluation.error or "")
    assert evaluation.sample.error == evaluation.error


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"then": []}, "Strategy 'count': 'then' is empty"),
        ({"then": "retrain"}, "Strategy 'count': 'then' cannot be 'retrain'"),
        ({"when": 3}, "Strategy 'count': when cannot be 3. Give it a function decorated with @sensor"),
        ({"when": number_of_predictions_threshold}, "Give it a function decorated with @sensor"),
        ({"if_": "n > 3"}, "A rule is a function that returns True or False; 'n > 3' is not a function."),
        ({"name": "Count it"}, "Write 'count_it' instead."),
        ({"autonomy": "full"}, "autonomy cannot be 'full': it should be 'observe', 'suggest', 'approve' or 'auto'"),
        ({"budget": 0}, "Strategy 'count': budget cannot be 0"),
        ({"cool_down": "soon"}, "cool_down 'soon' cannot be read"),
        ({"priorty": 3}, "Strategy 'count' has no field 'priorty'. Did you mean 'priority'?"),
    ],
)
def test_a_wrong_strategy_cannot_be_made(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidError) as error:
        make_unchecked(strategy, **fields)
    assert reason in message(error)


async def waits(n: int) -> bool:
    return True


def test_what_waits_is_no_rule_and_no_action() -> None:
    with pytest.raises(InvalidError, match="The rule 'waits' is not a plain function"):
        strategy(waits)
    with pytest.raises(InvalidError, match="'then' has 'waits', which is async"):
        strategy(then=waits)


def test_a_strategy_cannot_be_changed_and_declares_itself() -> None:
    with collect_declarations() as declarations:
        declared = strategy()
    assert declarations == [declared]
    with pytest.raises(InvalidError, match="cannot be changed"):
        declared.priority = 3  # type: ignore[misc]  # which is the point
    assert (declared.sensor, strategy(when="counted").sensor, strategy(when=sf.on_call()).sensor) == (
        "count",
        "counted",
        "when_count",
    )


def test_a_named_rule_is_still_its_function() -> None:
    assert (enough(1000), enough.name, enough.__doc__) == (True, "enough to check", "Tell whether there are enough.")
    assert rule(number_of_predictions_threshold).name == "number_of_predictions_threshold"
    with pytest.raises(InvalidError, match="has no name"):
        rule(" ")


def test_a_parameter_that_is_the_record_of_the_sample_says_so() -> None:
    with collect_declarations():
        strategy = sf.Strategy(name="s", when=count, if_=lambda sample: sample["count"] > 1, then=CHECK)
    error = evaluate(strategy, sample({"count": 2}), situation()).error
    assert error is not None
    assert "read sample.value, or name the parameter otherwise" in error
