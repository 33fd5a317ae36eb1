"""Keeping a strategy from going up and down by turns: the way last taken is not taken back at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scanflow.agent.records import JSON, Action, Intent, PrimitiveCall
from scanflow_server.arbiter.foreign import same
from scanflow_server.arbiter.identity import acted, overlapping, seconds, when
from scanflow_server.arbiter.objection import Objection

STEPS: Mapping[str, int] = {"duplicate_workflow_instance": 1, "delete_workflow_instance": -1}
"""Primitives that say a way and no value."""

_INSTANCES = "instances"


class FieldChange(NamedTuple):
    """What an action did to one argument: from ``before`` to ``after``, or, of a number, only which way."""

    before: JSON
    after: JSON
    way: int
    """1: up; -1: down; 0: no number, or no change."""


def changes_of(call: PrimitiveCall | Intent, inverse: PrimitiveCall | None) -> dict[str, FieldChange]:
    """Return what a call changed, argument by argument, as far as its inverse tells."""
    if call.primitive in STEPS:
        return {_INSTANCES: FieldChange(None, None, STEPS[call.primitive])}
    if inverse is None or inverse.primitive != call.primitive:
        return {}
    return {
        name: FieldChange(before, call.arguments[name], _way(before, call.arguments[name]))
        for name, before in inverse.arguments.items()
        if name in call.arguments and not same(before, call.arguments[name])
    }


def reverses(intent: Intent, last: Action) -> str | None:
    """Return the argument whose last change an intent would take back; None: it takes back nothing."""
    if last.inverse is not None and _equal(last.inverse, intent) and not _equal(last.intent, intent):
        return next(iter(sorted(intent.arguments)), intent.primitive)
    for name, change in sorted(changes_of(last.intent, last.inverse).items()):
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


def against_reversal(intent: Intent, history: Sequence[Action], now: float) -> Objection | None:
    """Return what keeps an intent from taking back the last change of what it writes, whoever made it.

    What changed nothing, failed or was taken back stands between a change and its reversal no more than if it had not
    been done.
    """
    if intent.hysteresis_s <= 0:
        return None
    last = max(
        (
            action
            for action in history
            if acted(action)
            and action.state not in {"failed", "reverted"}
            and overlapping(action.intent, intent)
            and not _changed_nothing(action)
        ),
        key=lambda action: (when(action), action.id),
        default=None,
    )
    if last is None or now >= (over := when(last) + intent.hysteresis_s):
        return None
    if (name := reverses(intent, last)) is None:
        return None
    return Objection(
        f"It would take back the last change of {name!r} of {intent.target!r}, made "
        f"{seconds(max(now - when(last), 0.0))} ago by {last.intent.strategy!r}; changes are left standing for "
        f"{seconds(intent.hysteresis_s)}.",
        winner=last.id,
        retry_at=over,
    )


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
