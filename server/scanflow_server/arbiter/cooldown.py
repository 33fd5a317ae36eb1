"""How long a strategy leaves a target alone after it has acted on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.agent.records import Action, Intent
from scanflow_server.arbiter.identity import acted, place_of, seconds, strategy_of, when
from scanflow_server.arbiter.objection import Objection


def against_haste(intent: Intent, history: Sequence[Action], now: float) -> Objection | None:
    """Return what keeps an intent from following the last action of its strategy on its target too soon."""
    if intent.cool_down_s <= 0:
        return None
    last = max(
        (
            action
            for action in history
            if acted(action)
            and strategy_of(action.intent) == strategy_of(intent)
            and place_of(action.intent) == place_of(intent)
        ),
        key=lambda action: (when(action), action.id),
        default=None,
    )
    if last is None or now >= (over := when(last) + intent.cool_down_s):
        return None
    return Objection(
        f"It cools down: {intent.strategy!r} acted on {intent.target!r} {seconds(max(now - when(last), 0.0))} ago, and "
        f"waits {seconds(intent.cool_down_s)} between two actions.",
        winner=last.id,
        retry_at=over,
    )
