"""How strategies, and what they want, are told: as JSON can hold it, and in words, the same ones for the same wish."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from scanflow.agent.actions import Act, Call
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.records import JSON, Intent
from scanflow.agent.registry import Declared
from scanflow.agent.rules import explain, rule_of
from scanflow.agent.strategy import Strategy


def called(name: str, kwargs: Mapping[str, Any], args: Iterable[Any] = ()) -> str:
    """Return a call as it is written: ``checker.look(5, often=true)``."""
    return f"{name}({', '.join([*map(_plain, args), *(f'{key}={_plain(value)}' for key, value in kwargs.items())])})"


def wanted(want: Intent | Call) -> str:
    """Return what is wanted: the same words for the same wish, whether it was just made or read from a journal.

    An intent that is not simply done says how far it may go: ``run_workflow(workflow="training") [approve]``.
    """
    if isinstance(want, Call):
        return called(f"{want.agent}.{want.sensor}", dict(sorted(want.kwargs.items())), want.args)
    return called(want.primitive, want.arguments) + ("" if want.autonomy == "auto" else f" [{want.autonomy}]")


def strategy_documents(app: str, agent: str, declared: Declared) -> list[dict[str, JSON]]:
    return [_strategy_row(app, agent, declared, one) for one in declared.strategies]


def _strategy_row(app: str, agent: str, declared: Declared, one: Strategy) -> dict[str, JSON]:
    return {
        "app": app,
        "agent": agent,
        "name": one.name,
        "sensor": one.sensor,
        "when": declared.sensor(one.sensor).trigger.model_dump(mode="json"),
        "if": None if one.rule is None else explain(one.rule, {}),
        "then": [_doing(each) for each in one.wanted],
        "priority": one.priority,
        "autonomy": one.autonomy,
        "cool_down_s": _seconds(one.cool_down),
        "hysteresis_s": _seconds(one.hysteresis),
        "budget": one.budget,
        "budget_window_s": _seconds(one.budget_window),
        "guard": None if one.guard is None else one.guard.model_dump(mode="json"),
    }


def _doing(each: Any) -> str:
    """Return what a strategy does; of a lambda what it says, of another function its name."""
    if isinstance(each, Act | Call):
        return str(each)
    if isinstance(each, type) and issubclass(each, Act):
        return f"{each.name}(...)"
    if isinstance(each, Actuator):
        return f"{each.agent}.{each.sensor}(...), by {each.name}"
    made = rule_of(each)
    return f"{made.name}(...)" if made.name else explain(made, {}).replace("a rule without a name", "a function")


def _seconds(held: Any) -> float:
    return float(held)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
