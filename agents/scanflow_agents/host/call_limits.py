"""The limits of strategies for what the server does not decide on: calls to agents, and functions with effects.

Intents are bounded by the server, which does not know of these: it is told what they left of a budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scanflow.agent.agent_records import Intent
from scanflow.agent.decide import FunctionCall, StrategyAction
from scanflow.agent.formatting import describe_action
from scanflow.agent.strategy import Strategy
from scanflow.agent.strategy_limits import get_limits
from scanflow.app.quantities import format_duration
from scanflow_agents.clock_errors import AHEAD_S
from scanflow_agents.host.agent_state import ActedRow

INTENT = "intent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A call, or a function, that the strategy's limits did not let through."""

    strategy: str
    requests: str
    """The call as text."""

    key: str
    target: str
    limit: str
    """The limit: ``autonomy``, ``cool_down`` or ``budget``."""

    reason: str


class WithheldOnce:
    """Selects what limits withhold that was not told before: each target once for a limit, until its strategy makes a
    call again. What becomes of intents is the server's to tell."""

    def __init__(self) -> None:
        self._reported: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)

    def select(self, calling: Iterable[str], withheld: Iterable[Withheld]) -> list[Withheld]:
        """``calling``: the strategies that make a call with the same sample."""
        for strategy in calling:
            self._reported.pop(strategy, None)
        fresh: list[Withheld] = []
        for request in withheld:
            about = request.target, request.limit
            if about not in self._reported[request.strategy]:
                self._reported[request.strategy].add(about)
                fresh.append(request)
        return fresh


class ActedStore(Protocol):
    """What strategies with limits did or requested, as the agent's store keeps it."""

    def list_acted(self, strategy: str) -> dict[str, ActedRow]:
        """Return it by key."""
        ...

    def add_acted(self, strategy: str, key: str, row: ActedRow) -> None: ...

    def delete_acted(self, strategy: str, key: str) -> None: ...


class MemoryActedStore:
    """Keeps it in memory: for tests."""

    def __init__(self) -> None:
        self._acted: dict[str, dict[str, ActedRow]] = {}

    def list_acted(self, strategy: str) -> dict[str, ActedRow]:
        return dict(self._acted.get(strategy, {}))

    def add_acted(self, strategy: str, key: str, row: ActedRow) -> None:
        self._acted.setdefault(strategy, {})[key] = row

    def delete_acted(self, strategy: str, key: str) -> None:
        self._acted.get(strategy, {}).pop(key, None)


class LocalLimits:
    def __init__(self, strategies: Iterable[Strategy], store: ActedStore) -> None:
        self._store = store
        self._limits: dict[str, Mapping[str, Any]] = {strategy.name: get_limits(strategy) for strategy in strategies}

    def withhold(self, strategy: str, action: StrategyAction, now: float) -> Withheld | None:
        """Return why a call or a function is not let through now; None: it is, and that is recorded."""
        if isinstance(action, Intent):
            return None
        limits = self._limits[strategy]
        target = action.target if isinstance(action, FunctionCall) else f"agent/{action.agent}/{action.sensor}"
        objection = self._object(strategy, limits, action, target, now)
        if objection is None:
            if limits["cool_down_s"] or limits["budget"] is not None:
                self._store.add_acted(strategy, action.key, ActedRow(target, now))
            return None
        limit, reason = objection
        requests = describe_action(action)
        return Withheld(strategy=strategy, requests=requests, key=action.key, target=target, limit=limit, reason=reason)

    def bound(self, strategy: str, intent: Intent, now: float) -> Intent:
        """Return an intent with what calls and functions left of the strategy's budget, and record it until its
        answer."""
        budget = self._limits[strategy]["budget"]
        if budget is None:
            return intent
        window_s = self._limits[strategy]["budget_window_s"]
        rows = self._load_acted(strategy, now).values()
        used = sum(row.target != INTENT and now - row.at < window_s for row in rows)
        self._store.add_acted(strategy, intent.key, ActedRow(INTENT, now))
        return intent.model_copy(update={"budget": max(0, budget - used)}) if used else intent

    def _object(
        self, strategy: str, limits: Mapping[str, Any], action: StrategyAction, target: str, now: float
    ) -> tuple[str, str] | None:
        acted = self._load_acted(strategy, now)
        if action.key in acted:  # this firing was cut short, and begins again
            return None
        cool_down_s, budget = float(limits["cool_down_s"]), limits["budget"]
        if limits["autonomy"] == "observe":
            return "autonomy", "the strategy only observes"
        if limits["autonomy"] != "auto":
            return "autonomy", _explain_autonomy(limits["autonomy"], action)
        last = max((row.at for row in acted.values() if row.target == target), default=None)
        if last is not None and now - last < cool_down_s:
            waits = f"the strategy did this {format_duration(max(0.0, now - last))} ago, and waits"
            return "cool_down", f"{waits} {format_duration(cool_down_s)} between two times"
        used = sum(now - row.at < limits["budget_window_s"] for row in acted.values())
        if budget is not None and used >= budget:
            window = format_duration(limits["budget_window_s"])
            return "budget", f"the budget is used up: {budget} in {window}, of which {used} are used"
        return None

    def _load_acted(self, strategy: str, now: float) -> dict[str, ActedRow]:
        """Return what the strategy did that still counts, and forget the rest."""
        limits = self._limits[strategy]
        longest_s = max(limits["budget_window_s"], limits["cool_down_s"])
        acted = self._store.list_acted(strategy)
        for key in [key for key, row in acted.items() if not -AHEAD_S <= now - row.at < longest_s]:
            self._store.delete_acted(strategy, key)
            del acted[key]
        return acted


def _explain_autonomy(autonomy: str, action: StrategyAction) -> str:
    what = f"the function does something itself: {action.effect}" if isinstance(action, FunctionCall) else "a call"
    rest = "waits for a person" if autonomy == "approve" else "is suggested to people"
    if isinstance(action, FunctionCall):
        return f"autonomy={autonomy!r}, and {what}. Have it return a primitive, which {rest}"
    return f"autonomy={autonomy!r}, and {what} to an agent is not among what people approve. Request a primitive"
