"""Evaluate strategies on samples: pure functions, so that recorded samples can be evaluated again."""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from pydantic import BaseModel

from scanflow.agent.actions import Act, Call
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.agent_records import JSON, Intent, Sample
from scanflow.agent.effects import find_effect
from scanflow.agent.error_text import format_error
from scanflow.agent.rules import Rule, explain
from scanflow.agent.static_calls import unwrap_function
from scanflow.agent.strategy import Strategy
from scanflow.agent.strategy_limits import get_limits
from scanflow.app.model import shorten
from scanflow.errors import InvalidError


@dataclass(frozen=True, kw_only=True)
class DecisionContext:
    """The inputs of a decision besides the sample: the same situation and sample give the same decision."""

    app: str
    team: str
    at: float
    """The time of the decision, in seconds since the epoch."""

    parameters: Mapping[str, JSON] = field(default_factory=dict)
    """The agent's parameters: its thresholds."""


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """A function in ``then`` that does something itself: it was not called yet."""

    name: str
    effect: str
    """What it does besides choosing actions: ``it calls 'open' (line 7)``."""

    key: str
    run: Callable[[], tuple[Intent | Call, ...]]
    """Call it, and return what it requests. Raises what its code raises."""

    @property
    def target(self) -> str:
        return f"function/{self.name}"


StrategyAction: TypeAlias = Intent | Call | FunctionCall
"""What a strategy requests on a sample."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    strategy: str
    sample: Sample
    """The sample; with the error to record, where the rule failed."""

    held: bool
    rule: str
    """The rule and the values it compared, as text."""

    actions: tuple[StrategyAction, ...] = ()
    error: str | None = None
    """Why the evaluation failed: the rule raised an error or returned no bool."""


def decide(strategy: Strategy, sample: Sample, situation: DecisionContext) -> list[StrategyAction]:
    """Return what a strategy requests on a sample; nothing if its rule does not hold or fails, see :func:`evaluate`."""
    return list(evaluate(strategy, sample, situation).actions)


def evaluate(strategy: Strategy, sample: Sample, situation: DecisionContext) -> Evaluation:
    """Evaluate a strategy on a sample of its sensor. Never raises for errors in the author's functions.

    A function in ``then`` that only chooses is called; one that does something itself
    (:func:`~scanflow.agent.effects.find_effect`) is not: it is among the ``actions``.

    A rule, or a function in ``then``, gets by name: ``sample``, ``parameters`` (the agent's), ``situation``.
    Of its other parameters, a single one gets what the sensor returned; several get what is under their names, the
    sensor having returned a mapping, or the items of a list, in order. A single one that is annotated with a model gets
    that, made of what the sensor returned; a field that is missing is an error. A rule has to return True or False:
    anything else is an error, and never counts as true.
    """
    if sample.error is not None:
        return Evaluation(strategy=strategy.name, sample=sample, held=False, rule="", error=sample.error)
    rule_text = "always"
    try:
        if strategy.rule is not None:
            values = _bind_values(
                strategy.rule.function, sample, situation, who=f"the rule{_format_name(strategy.rule)}"
            )
            rule_text = explain(strategy.rule, values.shown)
            if not _to_bool(values.apply(), strategy.rule):
                return Evaluation(strategy=strategy.name, sample=sample, held=False, rule=rule_text)
        actions = tuple(_build_actions(strategy, sample, situation, rule_text))
    except Exception as error:  # noqa: BLE001  whatever an author's function raises is told, and nothing is done
        text = f"Strategy {strategy.name!r}: {_summarize_error(error)}"
        failed = sample.model_copy(update={"error": text})
        return Evaluation(strategy=strategy.name, sample=failed, held=False, rule=rule_text, error=text)
    return Evaluation(strategy=strategy.name, sample=sample, held=True, rule=rule_text, actions=actions)


class Evaluator:
    """Evaluates the strategies of one agent, grouped by sensor."""

    def __init__(self, strategies: Iterable[Strategy], *, app: str, team: str, parameters: Mapping[str, Any]) -> None:
        self._app, self._team, self._parameters = app, team, parameters
        self._by_sensor: defaultdict[str, list[Strategy]] = defaultdict(list)
        for strategy in strategies:
            self._by_sensor[strategy.sensor].append(strategy)
            for action in strategy.actions:  # now, as the file may be changed while the agent runs
                find_effect(action, declared=strategy.may is not None)

    def evaluate(self, sample: Sample) -> list[Evaluation]:
        """Evaluate each strategy of the sample's sensor, in the order of declaration.

        Evaluated as of the time of the sample, so that the result is the same at any later time.
        """
        strategies = self._by_sensor.get(sample.sensor)
        if not strategies:
            return []
        situation = DecisionContext(app=self._app, team=self._team, at=sample.at, parameters=self._parameters)
        return [evaluate(strategy, sample, situation) for strategy in strategies]


@dataclass(frozen=True)
class _BoundValues:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shown: Mapping[str, Any]

    def apply(self) -> Any:
        return self.function(*self.args, **self.kwargs)


def _bind_values(function: Callable[..., Any], sample: Sample, situation: DecisionContext, *, who: str) -> _BoundValues:
    reserved = {"sample": sample, "parameters": situation.parameters, "situation": situation}
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some functions of C have none: those take one value
        return _BoundValues(function, (sample.value,), {}, {"value": sample.value})
    values: dict[str, Any] = {}
    rest = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if name in reserved:
            values[name] = reserved[name]
        else:
            rest.append(parameter)
    values |= _bind_value(rest, sample.value, who)
    values |= {
        parameter.name: _build_model(model, values[parameter.name], who)
        for parameter in rest
        if parameter.name in values and (model := _find_model(parameter.annotation, function)) is not None
    }
    ordered = {name: values[name] for name in signature.parameters if name in values}
    bound = inspect.BoundArguments(signature, ordered)
    shown = {name: value for name, value in ordered.items() if name not in {"sample", "situation"}}
    return _BoundValues(function, bound.args, bound.kwargs, shown)


def _bind_value(rest: Sequence[inspect.Parameter], value: JSON, who: str) -> dict[str, Any]:
    """Return the sensor's value by parameter name, for the parameters that are not reserved."""
    needed = [parameter for parameter in rest if parameter.default is parameter.empty]
    if len(needed) == 1 or (not needed and len(rest) == 1):
        return {(needed or rest)[0].name: value}
    if isinstance(value, Mapping):
        missing = [parameter.name for parameter in needed if parameter.name not in value]
        if missing:
            raise InvalidError(
                f"{who} needs {missing[0]!r}, which is missing from the sensor's result: {shorten(value)}."
            )
        return {parameter.name: value[parameter.name] for parameter in rest if parameter.name in value}
    if isinstance(value, list) and len(needed) <= len(value) <= len(rest):
        return {parameter.name: item for parameter, item in zip(rest, value, strict=False)}
    if needed:
        names = ", ".join(parameter.name for parameter in needed)
        raise InvalidError(
            f"{who} needs {names}, but the sensor returned {shorten(value)}. Return a mapping with these names."
        )
    return {}


def _find_model(annotation: Any, function: Callable[..., Any]) -> type[BaseModel] | None:
    """Return the model that a parameter is annotated with; None: it is annotated with something else, or not at all."""
    if isinstance(annotation, str):
        annotation = getattr(unwrap_function(function)[0], "__globals__", {}).get(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _build_model(model: type[BaseModel], value: JSON, who: str) -> BaseModel:
    if not isinstance(value, Mapping):
        raise InvalidError(f"{who} needs a {model.__name__}, but the sensor returned {shorten(value)}.")
    return model(**value)


def _to_bool(answer: Any, rule: Rule) -> bool:
    if not isinstance(answer, bool) and getattr(answer, "shape", None) == () and hasattr(answer, "item"):
        answer = answer.item()  # a truth value of NumPy's
    if isinstance(answer, bool):
        return answer
    raise InvalidError(f"the rule{_format_name(rule)} returned {shorten(answer)}, which is neither True nor False.")


def _format_name(rule: Rule) -> str:
    return f" {rule.name!r}" if rule.name else ""


def _build_actions(
    strategy: Strategy, sample: Sample, situation: DecisionContext, rule_text: str
) -> Iterator[StrategyAction]:
    key = f"{sample.agent}/{strategy.name}/{sample.cause}"

    def build(action: Act | Call, action_key: str) -> Intent | Call:
        if isinstance(action, Call):
            return action.replace(key=action_key)
        return _build_intent(strategy, action, sample, situation, key=action_key, rule_text=rule_text)

    def run(function: Callable[..., Any], function_key: str) -> tuple[Intent | Call, ...]:
        actions = _call_action(function, sample, situation)
        return tuple(build(action, f"{function_key}.{index}") for index, action in enumerate(actions, 1))

    # One cause may request several actions: each is done once.
    for index, action in enumerate(_iterate_actions(strategy, sample, situation), 1):
        own_key = key if index == 1 else f"{key}/{index}"
        if isinstance(action, _Effectful):
            call = partial(run, action.function, own_key)
            name = str(getattr(action.function, "__name__", None) or type(action.function).__name__)
            yield FunctionCall(name=name, effect=action.effect, key=own_key, run=call)
        else:
            yield build(action, own_key)


@dataclass(frozen=True)
class _Effectful:
    function: Callable[..., Any]
    effect: str


def _iterate_actions(
    strategy: Strategy, sample: Sample, situation: DecisionContext
) -> Iterator[Act | Call | _Effectful]:
    for action in strategy.actions:
        if isinstance(action, Act | Call):
            yield action
        elif (effect := find_effect(action, declared=strategy.may is not None)) is not None:
            yield _Effectful(action, effect)
        else:
            yield from _call_action(action, sample, situation)


def _call_action(function: Callable[..., Any], sample: Sample, situation: DecisionContext) -> list[Act | Call]:
    name = getattr(function, "__name__", "a function")
    if isinstance(function, Actuator):
        returned: Any = function.call(sample.value)
    else:
        returned = _bind_values(function, sample, situation, who=f"{name!r} in then").apply()
    actions = [] if returned is None else list(returned) if isinstance(returned, list | tuple) else [returned]
    for action in actions:
        if not isinstance(action, Act | Call):
            raise InvalidError(
                f"{name!r} in 'then' returned {shorten(action)}. Return a primitive, a call, a list, or None."
            )
    return actions


def _build_intent(
    strategy: Strategy, act: Act, sample: Sample, situation: DecisionContext, *, key: str, rule_text: str
) -> Intent:
    return build_intent(
        act,
        app=situation.app,
        team=situation.team,
        agent=sample.agent,
        strategy=strategy.name,
        **get_limits(strategy),
        sample=sample,
        rule=rule_text,
        key=key,
        at=situation.at,
    )


def build_intent(act: Act, *, app: str, team: str, key: str, **details: Any) -> Intent:
    """Return the intent to send to the arbiter; the same key gives the same id."""
    return Intent(
        id=hashlib.sha256(f"{app}/{team}/{key}".encode(errors="surrogatepass")).hexdigest()[:16],
        app=app,
        team=team,
        primitive=act.primitive,
        arguments=act.arguments,
        target=act.target,
        fields=act.fields,
        key=key,
        **details,
    )


def _summarize_error(error: Exception) -> str:
    text = str(error) if isinstance(error, InvalidError) else format_error(error)
    if isinstance(error, TypeError | AttributeError) and "'Sample' object" in text:
        text += ". A parameter 'sample' is the whole record: read sample.value, or name the parameter otherwise."
    return " ".join(text.split())
