"""Find what the strategies of an agent name that its application does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scanflow.agent.actions import Call
from scanflow.agent.registry import Declared
from scanflow.agent.strategy import Strategy
from scanflow.agent.strategy_limits import describe_limits
from scanflow.app.application import Application
from scanflow.errors import did_you_mean


def describe_unknown_targets(
    app: Application, agent: str, declared: Declared, parameters: Mapping[str, Any]
) -> list[str]:
    """Return a sentence on each workflow, service or agent that strategies name and the application does not have.

    ``parameters``: the agent's. A target that is only known when a function runs is not looked at.
    """
    return [
        f"Agent {agent!r}: the strategy {strategy.name!r} {problem}"
        for strategy in declared.strategies
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
