"""What stands against an intent of an agent: each check returns its objection, or None. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from scanflow.agent.records import JSON, Action, Decision, Intent, PrimitiveCall, Verdict
from scanflow_server.arbiter.identity import acted, overlapping, place_of, related, seconds, strategy_of, when

LEASE_S = 900.0
"""How long a field stays with the strategy that wrote it last, in seconds, where nobody knows whether that lives."""

FOREIGN_S = 900.0
"""How long a foreign writer's value is left alone, in seconds from when it was first seen."""

STEPS: Mapping[str, int] = {"duplicate_workflow_instance": 1, "delete_workflow_instance": -1}
"""Primitives that say a way and no value."""

_INSTANCES = "instances"


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """The strategy that a field of a target belongs to: the one that came first, for as long as it lives."""

    strategy: str
    intent: str
    priority: int
    until: float
    lives: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    now: float
    history: Sequence[Action] = ()
    """What was decided before: everything of the same key, and what was acted on by the same strategies or there."""

    owners: Mapping[str, Owner] = dataclasses.field(default_factory=dict)
    observed: Mapping[str, JSON] = dataclasses.field(default_factory=dict)
    last_written: Mapping[str, JSON] = dataclasses.field(default_factory=dict)
    foreign_since: Mapping[str, float] = dataclasses.field(default_factory=dict)
    foreign_s: float = FOREIGN_S
    approved: Collection[str] = frozenset()
    at_work: Collection[str] = frozenset()
    """The ids of the actions that change the target at this moment, or will go on with that."""


def decided(
    intent: Intent,
    verdict: Verdict,
    reason: str,
    *,
    now: float,
    winner: str | None = None,
    retry_at: float | None = None,
) -> Decision:
    """Return a decision. ``winner``: the intent that stands in the way; ``retry_at``: when it may be otherwise."""
    return Decision(intent=intent.id, verdict=verdict, reason=reason, winner=winner, at=now, retry_at=retry_at)


def against_owner(intent: Intent, world: World) -> Decision | None:
    """Keep an intent from a field that another strategy owns: nothing but a higher priority passes; of a strategy of
    the same agent the same one does, if it is above 0: who gave it to both wants them to hand the field on."""
    for field, owner in sorted(world.owners.items()):
        if not any(related(field, own) for own in intent.fields):
            continue
        if owner.strategy == strategy_of(intent) or not (owner.lives or world.now < owner.until):
            continue
        beside = owner.strategy.rpartition("/")[0] == strategy_of(intent).rpartition("/")[0]
        if intent.priority > owner.priority or (beside and 0 < intent.priority == owner.priority):
            continue
        how = "for as long as its agent lives" if owner.lives else f"for another {seconds(owner.until - world.now)}"
        return decided(
            intent,
            "refuse",
            f"The field {field!r} of {intent.target!r} belongs to the strategy {owner.strategy!r} {how}. "
            f"A priority above {owner.priority} would take it over; this one has {intent.priority}.",
            now=world.now,
            winner=owner.intent,
            retry_at=None if owner.lives else owner.until,
        )
    return None


def foreign_fields(
    fields: tuple[str, ...], *, observed: Mapping[str, JSON], last_written: Mapping[str, JSON]
) -> tuple[str, ...]:
    """Return the fields that are not as they were last written. What was never written or cannot be seen is no such."""
    known = sorted(set(fields) & observed.keys() & last_written.keys())
    return tuple(field for field in known if not same(observed[field], last_written[field]))


def against_foreign(intent: Intent, world: World) -> Decision | None:
    """Keep an intent from overwriting somebody else's value: an autoscaler's, a person's."""
    seen, written = world.observed, world.last_written
    for field in foreign_fields(intent.fields, observed=seen, last_written=written):
        over = world.foreign_since.get(field, world.now) + world.foreign_s
        if world.now >= over:
            continue
        return decided(
            intent,
            "refuse",
            f"Somebody else changed the field {field!r} of {intent.target!r}: it is {_written(seen[field])}, and "
            f"{_written(written[field])} was written here last. Wait {seconds(over - world.now)}, or overwrite it: "
            f"scanflow approve {intent.id}.",
            now=world.now,
            retry_at=over,
        )
    return None


def against_haste(intent: Intent, history: Sequence[Action], now: float) -> Decision | None:
    if intent.cool_down_s <= 0:
        return None
    last = _last(history, lambda one: _same_strategy(one, intent) and place_of(one.intent) == place_of(intent))
    if last is None or now >= (over := when(last) + intent.cool_down_s):
        return None
    return decided(
        intent,
        "refuse",
        f"It cools down: {intent.strategy!r} acted on {intent.target!r} {seconds(max(now - when(last), 0.0))} ago, and "
        f"waits {seconds(intent.cool_down_s)} between two actions.",
        now=now,
        winner=last.id,
        retry_at=over,
    )


def against_spending(intent: Intent, history: Sequence[Action], now: float) -> Decision | None:
    """Keep a strategy within its budget of actions in a window of time. What failed was spent too."""
    if intent.budget is None:
        return None
    since = now - intent.budget_window_s
    spent = sorted(when(one) for one in history if acted(one) and _same_strategy(one, intent) and when(one) > since)
    if len(spent) < intent.budget:
        return None
    # The oldest that has to leave the window before there is room for one more; a budget of 0 never has any.
    freed = spent[-intent.budget] + intent.budget_window_s if intent.budget > 0 else None
    return decided(
        intent,
        "refuse",
        f"The budget is spent: {intent.strategy!r} has {intent.budget} actions in {seconds(intent.budget_window_s)}, "
        f"and {len(spent)} are used.",
        now=now,
        retry_at=freed,
    )


def against_reversal(intent: Intent, history: Sequence[Action], now: float) -> Decision | None:
    """Keep an intent from taking back the last change of what it writes, whoever made it: nothing goes up and down.

    What changed nothing, failed or was taken back stands between a change and its reversal no more than if it had not
    been done.
    """
    if intent.hysteresis_s <= 0:
        return None

    def changed(one: Action) -> bool:
        stands = one.state not in {"failed", "reverted"} and not _changed_nothing(one)
        return stands and bool(overlapping(one.intent, intent))

    last = _last(history, changed)
    if last is None or now >= (over := when(last) + intent.hysteresis_s):
        return None
    if (name := _reverses(intent, last)) is None:
        return None
    return decided(
        intent,
        "refuse",
        f"It would take back the last change of {name!r} of {intent.target!r}, made "
        f"{seconds(max(now - when(last), 0.0))} ago by {last.intent.strategy!r}; changes are left standing for "
        f"{seconds(intent.hysteresis_s)}.",
        now=now,
        winner=last.id,
        retry_at=over,
    )


def same(one: JSON, other: JSON) -> bool:
    return _written(one) == _written(other)


class _Change(NamedTuple):
    """What an action did to one argument: from ``before`` to ``after``, or, of a number, only which way."""

    before: JSON
    after: JSON
    way: int
    """1: up; -1: down; 0: no number, or no change."""


def _changes_of(call: Intent, inverse: PrimitiveCall | None) -> dict[str, _Change]:
    if call.primitive in STEPS:
        return {_INSTANCES: _Change(None, None, STEPS[call.primitive])}
    if inverse is None or inverse.primitive != call.primitive:
        return {}
    return {
        name: _Change(before, call.arguments[name], _way(before, call.arguments[name]))
        for name, before in inverse.arguments.items()
        if name in call.arguments and not same(before, call.arguments[name])
    }


def _reverses(intent: Intent, last: Action) -> str | None:
    """Return the argument whose last change an intent would take back; None: it takes back nothing."""
    if last.inverse is not None and _equal(last.inverse, intent) and not _equal(last.intent, intent):
        return next(iter(sorted(intent.arguments)), intent.primitive)
    for name, change in sorted(_changes_of(last.intent, last.inverse).items()):
        if intent.primitive in STEPS:
            if name == _INSTANCES and change.way == -STEPS[intent.primitive]:
                return name
            continue
        if name not in intent.arguments or last.intent.primitive in STEPS:
            continue
        wanted = intent.arguments[name]
        turned = _way(change.after, wanted) == -change.way if change.way else same(wanted, change.before)
        if turned:
            return name
    return None


def _last(history: Sequence[Action], which: Callable[[Action], bool]) -> Action | None:
    found = (one for one in history if acted(one) and which(one))
    return max(found, key=lambda one: (when(one), one.id), default=None)


def _same_strategy(one: Action, intent: Intent) -> bool:
    return strategy_of(one.intent) == strategy_of(intent)


def _changed_nothing(action: Action) -> bool:
    """Say whether what was done is what would undo it. What cannot be undone may have changed anything."""
    return action.inverse is not None and action.intent.primitive not in STEPS and _equal(action.inverse, action.intent)


def _equal(one: PrimitiveCall | Intent, other: PrimitiveCall | Intent) -> bool:
    return one.primitive == other.primitive and same(one.arguments, other.arguments)


def _way(before: JSON, after: JSON) -> int:
    if isinstance(before, bool) or isinstance(after, bool):
        return 0
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return 0
    return (after > before) - (after < before)


def _written(value: JSON) -> str:
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def _plain(value: JSON) -> JSON:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
