"""Agents whose strategies a server has stored, without a process: their intents may do what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from scanflow.agent.agent_records import Intent, PermittedCall, StrategyLimits
from scanflow.agent.decide import StrategyAction
from scanflow.agent.primitives import catalogue
from scanflow.agent.registry import Declared
from scanflow.agent.strategy_limits import describe_limits
from scanflow_server.arbiter.strategy_permissions import bound_intent
from scanflow_server.store import agent_store, tables
from scanflow_server.store.agent_store import AgentRow
from scanflow_server.store.base import Store, open_store

ANYTHING = tuple(PermittedCall(primitive=name, target="*") for name in sorted({row.name for row in catalogue()}))


def make_permissive_strategy(name: str, **changes: Any) -> StrategyLimits:
    """Return a strategy that may do anything."""
    return StrategyLimits.model_validate({"name": name, "calls": ANYTHING, "priority": 1_000_000, **changes})


def permit_strategies(
    store: Store, *strategies: StrategyLimits | str, app: str = "mnist", agent: str = "planner", team: str = "tests"
) -> AgentRow:
    """Store an agent that runs, and its strategies; one of which only the name is given may do anything."""
    limits = [make_permissive_strategy(strategy) if isinstance(strategy, str) else strategy for strategy in strategies]
    row = AgentRow(app=app, name=agent, team=team, wanted=True)
    with store.write() as connection:
        before = agent_store.find(connection, app, agent)
        if before is None:
            connection.execute(insert(tables.agents).values(row.model_dump(mode="json")))
        return agent_store.put_strategies(connection, before or row, limits, replace=True)


def permit_strategies_at(home: Path, *strategies: StrategyLimits | str, **names: str) -> None:
    """Store what :func:`permit_strategies` does in the database of the server of a home, which may run."""
    store = open_store(f"sqlite:///{home / 'server' / 'scanflow.db'}")
    permit_strategies(store, *strategies, **names)
    store.close()


def assert_permitted(declared: Declared, wants: Iterable[StrategyAction], parameters: Mapping[str, Any]) -> None:
    """Check that a server which stored an agent's strategies lets all of its intents act as they say."""
    limits = {strategy.name: describe_limits(strategy, parameters) for strategy in declared.strategies}
    for want in wants:
        if isinstance(want, Intent):
            assert bound_intent(want, limits[want.strategy]) == (want, None)
