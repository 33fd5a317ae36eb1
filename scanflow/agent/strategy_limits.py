"""What strategies may do: computed from their code where an agent is loaded, and stored by the server.

An :class:`~scanflow.agent.agent_records.Intent` that exceeds it waits for approval by a person.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scanflow.agent.actions import Act, Call
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.agent_records import PermittedCall, StrategyLimits
from scanflow.agent.static_calls import list_calls
from scanflow.agent.strategy import Strategy
from scanflow.app.application import Application
from scanflow.errors import did_you_mean


def describe_limits(strategy: Strategy, parameters: Mapping[str, Any]) -> StrategyLimits:
    """Return what a strategy may do. ``parameters``: its agent's."""
    return StrategyLimits(name=strategy.name, calls=tuple(_list_calls(strategy, parameters)), **get_limits(strategy))


def get_limits(strategy: Strategy) -> dict[str, Any]:
    """Return the fields that :class:`StrategyLimits` and an :class:`~scanflow.agent.agent_records.Intent` share."""
    return {
        "priority": strategy.priority,
        "autonomy": strategy.autonomy,
        "cool_down_s": _to_seconds(strategy.cool_down),
        "hysteresis_s": _to_seconds(strategy.hysteresis),
        "budget": strategy.budget,
        "budget_window_s": _to_seconds(strategy.budget_window),
        "guard": strategy.guard,
    }


def compute_digest(strategies: Iterable[StrategyLimits]) -> str:
    """Return a digest of what strategies may do, whatever their order."""
    documents = sorted((limits.model_dump(mode="json") for limits in strategies), key=lambda document: document["name"])
    return hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()


def matches_target(target: str, pattern: str) -> bool:
    """Whether a target is one of a :class:`~scanflow.agent.agent_records.PermittedCall`'s."""
    kind, _, name = pattern.partition("/")
    return pattern in {"*", target} or (name == "*" and target.partition("/")[0] == kind)


def format_calls(calls: Sequence[PermittedCall]) -> list[str]:
    """Format calls for people: ``run_workflow on workflow/training``."""
    return [f"{call.primitive} on {call.target}" for call in calls]


def _list_calls(strategy: Strategy, parameters: Mapping[str, Any]) -> Iterator[PermittedCall]:
    yield from (
        PermittedCall(primitive=action.primitive, target=action.target, arguments=action.arguments)
        for action in strategy.actions
        if isinstance(action, Act)
    )
    if strategy.may is not None:
        yield from (
            PermittedCall(primitive=primitive, target=target)
            for primitive, targets in strategy.may.items()
            for target in targets
        )
        return
    for action in strategy.actions:
        if not isinstance(action, Act | Call | Actuator):
            yield from list_calls(action, parameters)


def _to_seconds(duration: Any) -> float:
    return float(duration)


def describe_unknown_targets(
    app: Application, agent: str, strategies: Iterable[Strategy], parameters: Mapping[str, Any]
) -> list[str]:
    """Return a sentence on each workflow, service or agent that strategies name and the application does not have.

    ``parameters``: the agent's. A target that is only known when a function runs is not looked at.
    """
    return [
        f"Agent {agent!r}: the strategy {strategy.name!r} {problem}"
        for strategy in strategies
        for problem in dict.fromkeys(_list_problems(app, strategy, parameters))
    ]


def _list_problems(app: Application, strategy: Strategy, parameters: Mapping[str, Any]) -> Iterator[str]:
    workflows = {workflow.name for workflow in app.workflows}
    for call in describe_limits(strategy, parameters).calls:
        kind, _, name = call.target.partition("/")
        if kind not in {"workflow", "service"} or name == "*" or name in workflows:
            continue
        yield (
            f"requests {call.primitive} on {name!r}, which is no workflow of {app.name!r}."
            f"{did_you_mean(name, workflows)} Workflows: {', '.join(sorted(workflows)) or 'none'}."
        )
    agents = {other.name for other in app.agents}
    for action in strategy.actions:
        if isinstance(action, Call) and action.agent not in agents:
            yield (
                f"calls {action.agent!r}, which is no agent of {app.name!r}.{did_you_mean(action.agent, agents)} "
                f"Agents: {', '.join(sorted(agents)) or 'none'}."
            )
