"""Who may write a field of a target: the strategy that came first, for as long as it lives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scanflow.agent.records import Intent
from scanflow_server.arbiter.identity import seconds, strategy_of
from scanflow_server.arbiter.objection import Objection

LEASE_S = 900.0
"""How long a field stays with the strategy that wrote it last, in seconds, where nobody knows whether that lives."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The strategy that a field of a target belongs to."""

    strategy: str
    """As :func:`~scanflow_server.arbiter.identity.strategy_of` spells it."""

    intent: str
    """The id of the intent by which it wrote the field last."""

    priority: int
    until: float
    """When its lease ends, in seconds since the epoch."""

    lives: bool = False
    """Whether its agent is known to be there."""

    def holds(self, now: float) -> bool:
        """Whether the field is still its own."""
        return self.lives or now < self.until


def owner_from(intent: Intent, *, now: float, lease_s: float = LEASE_S) -> Owner:
    """Return the owner that a strategy becomes by acting."""
    return Owner(strategy=strategy_of(intent), intent=intent.id, priority=intent.priority, until=now + lease_s)


def against_owner(intent: Intent, owners: Mapping[str, Owner], now: float) -> Objection | None:
    """Return what keeps an intent from a field that another strategy owns: nothing but a higher priority passes."""
    for field in sorted(intent.fields):
        owner = owners.get(field)
        if owner is None or owner.strategy == strategy_of(intent) or not owner.holds(now):
            continue
        if intent.priority > owner.priority:
            continue
        how = "for as long as its agent lives" if owner.lives else f"for another {seconds(owner.until - now)}"
        return Objection(
            f"The field {field!r} of {intent.target!r} belongs to the strategy {owner.strategy!r} {how}. "
            f"A priority above {owner.priority} would take it over; this one has {intent.priority}.",
            winner=owner.intent,
            retry_at=None if owner.lives else owner.until,
        )
    return None
