"""How many actions a strategy has in a window of time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.agent.records import Action, Intent
from scanflow_server.arbiter.identity import acted, seconds, strategy_of, when
from scanflow_server.arbiter.objection import Objection


def against_spending(intent: Intent, history: Sequence[Action], now: float) -> Objection | None:
    """Return what keeps an intent from going beyond its strategy's budget. What failed was spent too."""
    if intent.budget is None:
        return None
    since = now - intent.budget_window_s
    spent = sorted(
        when(action)
        for action in history
        if acted(action) and strategy_of(action.intent) == strategy_of(intent) and when(action) > since
    )
    if len(spent) < intent.budget:
        return None
    # The oldest that has to leave the window before there is room for one more; a budget of 0 never has any.
    freed = spent[-intent.budget] + intent.budget_window_s if intent.budget > 0 else None
    return Objection(
        f"The budget is spent: {intent.strategy!r} has {intent.budget} actions in {seconds(intent.budget_window_s)}, "
        f"and {len(spent)} are used.",
        retry_at=freed,
    )
