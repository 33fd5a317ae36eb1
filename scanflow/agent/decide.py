"""What a strategy wants after a sample: a pure function, so that a recorded sample can be decided on again."""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scanflow.agent.actions import Act, Call
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.error_text import error_text
from scanflow.agent.records import JSON, Intent, Sample
from scanflow.agent.rules import Rule, explain
from scanflow.agent.strategy import Strategy
from scanflow.app.model import short
from scanflow.errors import InvalidError

_OURS = ("sample", "parameters", "situation")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What surrounds a decision. All of it is handed in: the same situation and sample give the same decision."""

    app: str
    team: str
    at: float
    """When it is decided: seconds since the epoch."""

    parameters: Mapping[str, JSON] = field(default_factory=dict)
    """The agent's: its thresholds."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    strategy: str
    sample: Sample
    """As it was; where the rule failed, with the error, which is to be recorded with it."""

    held: bool
    rule: str
    """The rule with the values it compared, in words."""

    wants: tuple[Intent | Call, ...] = ()
    error: str | None = None
    """Why nothing could be decided: the rule raised, or returned nonsense."""


def decide(strategy: Strategy, sample: Sample, situation: Situation) -> list[Intent | Call]:
    """Return what the strategy wants: intents for the arbiter, and calls to agents. Nothing where its rule does not
    hold, or failed; :func:`evaluate` tells why."""
    return list(evaluate(strategy, sample, situation).wants)


def evaluate(strategy: Strategy, sample: Sample, situation: Situation) -> Evaluation:
    """Apply a strategy to a sample of its sensor. Never raises for what the author's functions do.

    A rule, or a function in ``then``, is given what it names: ``sample``, ``parameters`` (the agent's), ``situation``.
    Of its other parameters, a single one gets what the sensor returned; several get what is under their names, the
    sensor having returned a mapping, or the items of a list, in order. A rule has to return True or False: anything
    else is an error, and never counts as true.
    """
    if sample.error is not None:
        return Evaluation(strategy=strategy.name, sample=sample, held=False, rule="", error=sample.error)
    said = "always"
    try:
        if strategy.rule is not None:
            values = _values(strategy.rule.function, sample, situation, who=f"the rule{_named(strategy.rule)}")
            said = explain(strategy.rule, values.shown)
            if not _truth(values.apply(), strategy.rule):
                return Evaluation(strategy=strategy.name, sample=sample, held=False, rule=said)
        wants = tuple(_wants(strategy, sample, situation, said))
    except Exception as error:  # noqa: BLE001  whatever an author's function raises is told, and nothing is done
        text = f"Strategy {strategy.name!r}: {_in_short(error)}"
        failed = sample.model_copy(update={"error": text})
        return Evaluation(strategy=strategy.name, sample=failed, held=False, rule=said, error=text)
    return Evaluation(strategy=strategy.name, sample=sample, held=True, rule=said, wants=wants)


class Evaluator:
    """The strategies of one agent, by the sensors whose samples they decide on."""

    def __init__(self, strategies: Iterable[Strategy], *, app: str, team: str, parameters: Mapping[str, Any]) -> None:
        self._app, self._team, self._parameters = app, team, parameters
        self._by_sensor: defaultdict[str, list[Strategy]] = defaultdict(list)
        for strategy in strategies:
            self._by_sensor[strategy.sensor].append(strategy)

    def evaluate(self, sample: Sample) -> list[Evaluation]:
        """Return what each strategy of the sample's sensor makes of it, in the order they were declared.

        Decided as of the moment of the sample, so that the same sample is decided on alike at any later time.
        """
        strategies = self._by_sensor.get(sample.sensor)
        if not strategies:
            return []
        situation = Situation(app=self._app, team=self._team, at=sample.at, parameters=self._parameters)
        return [evaluate(strategy, sample, situation) for strategy in strategies]


@dataclass(frozen=True)
class _Values:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shown: Mapping[str, Any]

    def apply(self) -> Any:
        return self.function(*self.args, **self.kwargs)


def _values(function: Callable[..., Any], sample: Sample, situation: Situation, *, who: str) -> _Values:
    ours = {"sample": sample, "parameters": situation.parameters, "situation": situation}
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some functions of C have none: those take one value
        return _Values(function, (sample.value,), {}, {"value": sample.value})
    values: dict[str, Any] = {}
    free = []
    for name, one in signature.parameters.items():
        if one.kind is one.VAR_KEYWORD or one.kind is one.VAR_POSITIONAL:
            continue
        if name in ours:
            values[name] = ours[name]
        else:
            free.append(one)
    values |= _taken(free, sample.value, who)
    ordered = {name: values[name] for name in signature.parameters if name in values}
    bound = inspect.BoundArguments(signature, ordered)
    shown = {name: value for name, value in ordered.items() if name not in {"sample", "situation"}}
    return _Values(function, bound.args, bound.kwargs, shown)


def _taken(free: Sequence[inspect.Parameter], value: JSON, who: str) -> dict[str, Any]:
    """Return what the sensor returned, dealt to the parameters that are not ours."""
    needed = [one for one in free if one.default is one.empty]
    if len(needed) == 1 or (not needed and len(free) == 1):
        return {(needed or free)[0].name: value}
    if isinstance(value, Mapping):
        missing = [one.name for one in needed if one.name not in value]
        if missing:
            raise InvalidError(f"{who} needs {missing[0]!r}, which is not in what the sensor returned: {short(value)}.")
        return {one.name: value[one.name] for one in free if one.name in value}
    if isinstance(value, list) and len(needed) <= len(value) <= len(free):
        return {one.name: item for one, item in zip(free, value, strict=False)}
    if needed:
        names = ", ".join(one.name for one in needed)
        raise InvalidError(f"{who} needs {names}, but the sensor returned {short(value)}. Return a mapping of those.")
    return {}


def _truth(answer: Any, rule: Rule) -> bool:
    if not isinstance(answer, bool) and getattr(answer, "shape", None) == () and hasattr(answer, "item"):
        answer = answer.item()  # a truth value of NumPy's
    if isinstance(answer, bool):
        return answer
    raise InvalidError(f"the rule{_named(rule)} returned {short(answer)}, which is neither True nor False.")


def _named(rule: Rule) -> str:
    return f" {rule.name!r}" if rule.name else ""


def _wants(strategy: Strategy, sample: Sample, situation: Situation, said: str) -> Iterator[Intent | Call]:
    key = f"{sample.agent}/{strategy.name}/{sample.cause}"
    for index, doing in enumerate(_doings(strategy, sample, situation), 1):
        own = key if index == 1 else f"{key}/{index}"  # one cause may want several things: each is done once
        if isinstance(doing, Call):
            yield doing.replace(key=own)
        else:
            yield _intent(strategy, doing, sample, situation, key=own, said=said)


def _doings(strategy: Strategy, sample: Sample, situation: Situation) -> Iterator[Act | Call]:
    for one in strategy.wanted:
        yield from [one] if isinstance(one, Act | Call) else _made(one, sample, situation)


def _made(function: Callable[..., Any], sample: Sample, situation: Situation) -> list[Act | Call]:
    name = getattr(function, "__name__", "a function")
    if isinstance(function, Actuator):
        made: Any = function.call(sample.value)
    else:
        made = _values(function, sample, situation, who=f"{name!r} in then").apply()
    some = [] if made is None else list(made) if isinstance(made, list | tuple) else [made]
    for one in some:
        if not isinstance(one, Act | Call):
            raise InvalidError(f"{name!r} in then returned {short(one)}. Return a primitive, a call, a list, or None.")
    return some


def _intent(strategy: Strategy, act: Act, sample: Sample, situation: Situation, *, key: str, said: str) -> Intent:
    return intent_of(
        act,
        app=situation.app,
        team=situation.team,
        agent=sample.agent,
        strategy=strategy.name,
        priority=strategy.priority,
        autonomy=strategy.autonomy,
        cool_down_s=_seconds(strategy.cool_down),
        hysteresis_s=_seconds(strategy.hysteresis),
        budget=strategy.budget,
        budget_window_s=_seconds(strategy.budget_window),
        guard=strategy.guard,
        sample=sample,
        rule=said,
        key=key,
        at=situation.at,
    )


def intent_of(act: Act, *, app: str, team: str, key: str, **given: Any) -> Intent:
    """Return what an agent sends to the arbiter; the same key makes the same id."""
    return Intent(
        id=hashlib.sha256(f"{app}/{team}/{key}".encode(errors="surrogatepass")).hexdigest()[:16],
        app=app,
        team=team,
        primitive=act.primitive,
        arguments=act.arguments,
        target=act.target,
        fields=act.fields,
        key=key,
        **given,
    )


def _seconds(held: Any) -> float:
    return float(held)


def _in_short(error: Exception) -> str:
    text = str(error) if isinstance(error, InvalidError) else error_text(error)
    return " ".join(text.split())
