"""Format strategies and their actions, for JSON and for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from scanflow.agent.actions import Act, Call
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.agent_records import JSON, Action
from scanflow.agent.decide import FunctionCall, StrategyAction
from scanflow.agent.registry import Declared
from scanflow.agent.rules import explain, make_rule
from scanflow.agent.strategy import Strategy
from scanflow.agent.strategy_limits import describe_limits, format_calls
from scanflow.text.masking import mask_secrets
from scanflow.text.printable import make_one_line

_ABOUT = frozenset({"app", "team", "workflow", "service", "run", "node", "kind", "reason"})
"""The arguments that say what is changed, and why."""

MAX_VALUE_LENGTH = 160
"""The most characters of a sample's value among other words."""


def format_call(name: str, kwargs: Mapping[str, Any], args: Iterable[Any] = ()) -> str:
    """Format a call: ``checker.look(5, often=true)``."""
    named = (f"{key}={_format_value(value)}" for key, value in kwargs.items())
    return f"{name}({', '.join([*map(_format_value, args), *named])})"


def describe_action(action: StrategyAction) -> str:
    """Describe an intent or a call: the same text whether it was just made or read from a journal.

    An intent without the autonomy ``auto`` shows it: ``run_workflow(workflow="training") [approve]``.
    """
    if isinstance(action, FunctionCall):
        return f"{action.name}(...)"
    if isinstance(action, Call):
        return format_call(f"{action.agent}.{action.sensor}", dict(sorted(action.kwargs.items())), action.args)
    return format_call(action.primitive, action.arguments) + (
        "" if action.autonomy == "auto" else f" [{action.autonomy}]"
    )


def describe_entry(kind: str, body: Any) -> str:
    """Describe an entry of an agent's journal: what happened, and why. Of another program's it is the JSON."""
    match kind, body:
        case "sample", {"error": str() as error}:
            return f"failed: {error}"
        case "sample", {"value": value, "cause": cause}:
            return f"{make_one_line(_format_json(value), MAX_VALUE_LENGTH)} ({cause})"
        case "intent", {"primitive": primitive, "target": target}:
            call = format_call(str(primitive), mask_secrets(body.get("arguments") or {}))
            return f"{call} on {target}, by the rule: {body.get('rule') or 'always'}"
        case "call", {"agent": agent, "sensor": sensor}:
            return format_call(f"{agent}.{sensor}", mask_secrets(body.get("kwargs") or {}), body.get("args") or ())
        case "function", {"requests": requests}:
            return f"{requests} was called"
        case "withheld", {"requests": requests, "reason": reason}:
            return f"{requests} was not done: {reason}"
        case "decision", {"answer": {"verdict": verdict, "reason": reason}}:
            return f"{verdict}: {reason}"
        case "decision", {"answer": {"sample": sample}}:
            return f"accepted as the sample {sample}"
        case "missed", {"reason": reason, "count": count}:
            return f"{count} ({reason})"
        case (("error" | "refused"), {"error": str() as error}):
            return error
    return _format_json(body)


def describe_changes(action: Action, now: Mapping[str, Any] | None = None) -> str:
    """Describe what an action changes, as far as its record has it: ``model models:/cnn/1 → models:/cnn/2``.

    What was before is known by its inverse or its result, once it has begun; until then it is what is ``now``. An
    argument without is shown alone.
    """
    back, intent, before = action.inverse, action.intent, now or {}
    if back is not None and back.primitive == intent.primitive:
        before = back.arguments
    elif isinstance(action.result, dict) and isinstance(original := action.result.get("before"), dict):
        before = original
    arguments = mask_secrets(intent.arguments)
    sizing = arguments.pop("sizing", None)  # of a deployment
    arguments |= sizing if isinstance(sizing, dict) else {}
    wanted = {name: value for name, value in arguments.items() if name not in _ABOUT}
    return ", ".join(
        f"{name} {_format_plain(before[name])} → {_format_plain(value)}"
        if before.get(name) is not None
        else f"{name} {_format_plain(value)}"
        for name, value in wanted.items()
        if value is not None and (name not in before or before[name] != value)
    )


def build_strategy_documents(
    app: str, agent: str, declared: Declared, parameters: Mapping[str, Any]
) -> list[dict[str, JSON]]:
    """Describe the strategies of an agent. ``parameters``: the agent's."""
    return [_build_strategy_row(app, agent, declared, strategy, parameters) for strategy in declared.strategies]


def _build_strategy_row(
    app: str, agent: str, declared: Declared, strategy: Strategy, parameters: Mapping[str, Any]
) -> dict[str, JSON]:
    limits = describe_limits(strategy, parameters)
    return {
        "app": app,
        "agent": agent,
        "name": strategy.name,
        "sensor": strategy.sensor,
        "when": declared.sensor(strategy.sensor).trigger.model_dump(mode="json"),
        "if": None if strategy.rule is None else explain(strategy.rule, {}),
        "then": [format_strategy_action(action) for action in strategy.actions],
        "may": list(format_calls(limits.calls)),
        **limits.model_dump(mode="json", exclude={"name", "calls"}),
    }


def format_strategy_action(action: Any) -> str:
    """Format an action of a strategy; for a lambda its source, for another function its name."""
    if isinstance(action, Act | Call):
        return str(action)
    if isinstance(action, type) and issubclass(action, Act):
        return f"{action.name}(...)"
    if isinstance(action, Actuator):
        return f"{action.agent}.{action.sensor}(...), by {action.name}"
    rule = make_rule(action)
    return f"{rule.name}(...)" if rule.name else explain(rule, {}).replace("a rule without a name", "a function")


def _format_plain(value: Any) -> str:
    return make_one_line(value if isinstance(value, str) else _format_json(value), MAX_VALUE_LENGTH)


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _format_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
