"""Checks of an agent's intent: each returns its objection, or None. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from scanflow.agent.agent_records import JSON, Action, Decision, Intent, PrimitiveCall, Verdict
from scanflow.app.quantities import format_count
from scanflow_server.intent_identity import (
    are_related,
    awaits_people,
    format_seconds,
    get_place,
    get_start_time,
    is_accepted,
    list_common_fields,
    qualify_strategy,
)

LEASE_S = 900.0
"""How long a strategy owns a field it wrote last, in seconds, where it is unknown whether its agent is alive."""

FOREIGN_S = 900.0
"""How long a foreign value is left alone, in seconds since it was first observed."""

REFUSED_S = 900.0
"""How long a request that a person refused is held off, in seconds, where its strategy has no cool-down."""

STEPS: Mapping[str, int] = {"duplicate_workflow_instance": 1, "delete_workflow_instance": -1}
"""Primitives that give a direction and no value."""

_INSTANCES = "instances"
_SIZES: Mapping[str, str] = {_INSTANCES: "replicas", "cores": "resource", "affinity": "affinity"}
"""The arguments that size a service, with the fields that show them."""

_SIZING = frozenset({"apply_workflow_instance", "update_workflow_replica"})


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """The strategy that owns a field of a target: the first to write it, for as long as its agent is alive."""

    strategy: str
    intent: str
    priority: int
    until: float
    lives: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PersonsChange:
    """A field that a person changed by a command of the server."""

    person: str
    intent: str
    at: float


@dataclasses.dataclass(frozen=True, slots=True)
class ArbitrationContext:
    now: float
    history: Sequence[Action] = ()
    """Earlier decisions: all of the same key, and all actions of the same strategies or on the same target."""

    owners: Mapping[str, Owner] = dataclasses.field(default_factory=dict)
    observed: Mapping[str, JSON] = dataclasses.field(default_factory=dict)
    last_written: Mapping[str, JSON] = dataclasses.field(default_factory=dict)
    foreign_since: Mapping[str, float] = dataclasses.field(default_factory=dict)
    foreign_s: float = FOREIGN_S
    persons_changes: Mapping[str, PersonsChange] = dataclasses.field(default_factory=dict)
    approved: Collection[str] = frozenset()
    approvals: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Who approved these intents, and why, as text."""

    excesses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """How intents exceeded their strategies, by their ids: these wait for approval at least."""

    at_work: Collection[str] = frozenset()
    """The ids of the actions that are changing the target, or will continue to."""


def make_decision(
    intent: Intent,
    verdict: Verdict,
    reason: str,
    *,
    now: float,
    winner: str | None = None,
    retry_at: float | None = None,
) -> Decision:
    """Return a decision. ``winner``: the intent that conflicts; ``retry_at``: when the decision may change."""
    return Decision(intent=intent.id, verdict=verdict, reason=reason, winner=winner, at=now, retry_at=retry_at)


def check_ownership(intent: Intent, world: ArbitrationContext) -> Decision | None:
    """Refuse an intent on a field that another strategy owns, unless its priority is higher, or the same (above 0) and
    both strategies are the same agent's: they hand the field on."""
    for field, owner in sorted(world.owners.items()):
        if not any(are_related(field, own) for own in intent.fields):
            continue
        if owner.strategy == qualify_strategy(intent) or not (owner.lives or world.now < owner.until):
            continue
        beside = owner.strategy.rpartition("/")[0] == qualify_strategy(intent).rpartition("/")[0]
        if intent.priority > owner.priority or (beside and 0 < intent.priority == owner.priority):
            continue
        how = (
            "as long as its agent is running"
            if owner.lives
            else f"for another {format_seconds(owner.until - world.now)}"
        )
        return make_decision(
            intent,
            "refuse",
            f"The strategy {owner.strategy!r} owns the field {field!r} of {intent.target!r} {how}. To take it over, "
            f"an intent needs a priority above {owner.priority}; this intent has {intent.priority}.",
            now=world.now,
            winner=owner.intent,
            retry_at=None if owner.lives else owner.until,
        )
    return None


def list_foreign_fields(
    fields: tuple[str, ...], *, observed: Mapping[str, JSON], last_written: Mapping[str, JSON]
) -> tuple[str, ...]:
    """Return the fields whose observed value differs from the one last written, where both are known."""
    comparable = sorted(set(fields) & observed.keys() & last_written.keys())
    return tuple(field for field in comparable if not are_equal(observed[field], last_written[field]))


def check_effect(intent: Intent, world: ArbitrationContext) -> Decision | None:
    """Refuse an intent whose service has by now what it requests: there is nothing left to approve."""
    if (present := _describe_present(intent, world.observed)) is None:
        return None
    reason = f"Nothing to change: the {intent.target.replace('/', ' ', 1)} {present} already."
    return make_decision(intent, "refuse", reason, now=world.now)


def _describe_present(intent: Intent, observed: Mapping[str, JSON]) -> str | None:
    """Describe what a service has, where that is all that an intent requests; None: it may change something."""
    if intent.primitive == "delete_workflow":
        return "is gone" if observed.get("running") is False else None
    wanted = {name: value for name, value in intent.arguments.items() if name != "workflow"}
    if intent.primitive not in _SIZING or not wanted or not wanted.keys() <= _SIZES.keys():
        return None
    if any(_SIZES[name] not in observed or not are_equal(observed[_SIZES[name]], wanted[name]) for name in wanted):
        return None
    return f"has {', '.join(_format_size(name, value) for name, value in wanted.items())}"


def _format_size(name: str, value: JSON) -> str:
    if not isinstance(value, int | float):
        return f"the {name} {value}"
    return f"{_format_json(value)} {name.removesuffix('s') if value == 1 else name}"


def check_persons_change(intent: Intent, world: ArbitrationContext) -> Decision | None:
    """Refuse an intent that would overwrite what a person decided lately."""
    for field, change in sorted(world.persons_changes.items()):
        over = change.at + world.foreign_s
        if world.now >= over or not any(are_related(field, own) for own in intent.fields):
            continue
        value = f" to {_format_json(world.observed[field])}" if field in world.observed else ""
        return make_decision(
            intent,
            "refuse",
            f"{change.person} (a person) changed the field {field!r} of {intent.target!r}{value} "
            f"{format_seconds(max(world.now - change.at, 0.0))} ago (see scanflow why {change.intent}). It is left "
            f"alone for {format_seconds(over - world.now)} more, or approve this: scanflow approve {intent.id}.",
            now=world.now,
            winner=change.intent,
            retry_at=over,
        )
    return None


def check_foreign_change(intent: Intent, world: ArbitrationContext) -> Decision | None:
    """Refuse an intent that would overwrite another client's value: an autoscaler's, a person's."""
    seen, written = world.observed, world.last_written
    for field in list_foreign_fields(intent.fields, observed=seen, last_written=written):
        over = world.foreign_since.get(field, world.now) + world.foreign_s
        if world.now >= over:
            continue
        return make_decision(
            intent,
            "refuse",
            f"Another client changed the field {field!r} of {intent.target!r}: it is {_format_json(seen[field])}, and "
            f"the server last wrote {_format_json(written[field])}. Wait {format_seconds(over - world.now)}, "
            f"or overwrite it: scanflow approve {intent.id}.",
            now=world.now,
            retry_at=over,
        )
    return None


def check_refusal(intent: Intent, history: Sequence[Action], now: float) -> Decision | None:
    """Refuse an intent that requests what a person refused lately, with the same arguments. A cool-down says itself how
    long its strategy pauses."""
    if intent.cool_down_s > 0:
        return None
    last = _find_last(
        history,
        lambda action: _is_same_strategy(action, intent) and _is_same_call(action.intent, intent),
        counts=lambda action: action.decision.verdict == "refuse" and action.decision.by is not None,
    )
    if last is None or now >= (over := last.decision.at + REFUSED_S):
        return None
    ago = format_seconds(max(now - last.decision.at, 0.0))
    return make_decision(
        intent,
        "refuse",
        f"{last.decision.by} (a person) refused the same request {ago} ago (see scanflow why {last.id}). It is held "
        f"off for {format_seconds(over - now)} more, or approve it: scanflow approve {intent.id}.",
        now=now,
        winner=last.id,
        retry_at=over,
    )


def check_cool_down(
    intent: Intent, history: Sequence[Action], now: float, *, approved: bool = False
) -> Decision | None:
    """Refuse an intent within its strategy's pause after an action on the same target.

    One that people are asked about also pauses after it asked them, unless it is ``approved``."""
    if intent.cool_down_s <= 0:
        return None
    asks = intent.autonomy != "auto" and not approved
    last = _find_last(
        history,
        lambda action: _is_same_strategy(action, intent) and get_place(action.intent) == get_place(intent),
        counts=lambda action: is_accepted(action) or (asks and awaits_people(action)),
    )
    if last is None or now >= (over := get_start_time(last) + intent.cool_down_s):
        return None
    did = "acted on" if is_accepted(last) else "asked about"
    return make_decision(
        intent,
        "refuse",
        f"Cool-down: the strategy {intent.strategy!r} {did} {intent.target!r} "
        f"{format_seconds(max(now - get_start_time(last), 0.0))} ago, and waits {format_seconds(intent.cool_down_s)} "
        "between two actions.",
        now=now,
        winner=last.id,
        retry_at=over,
    )


def check_action_budget(intent: Intent, history: Sequence[Action], now: float) -> Decision | None:
    """Refuse an intent beyond its strategy's budget of actions in a time window. Failed actions count too."""
    if intent.budget is None:
        return None
    since = now - intent.budget_window_s
    spent = sorted(
        get_start_time(action)
        for action in history
        if is_accepted(action) and _is_same_strategy(action, intent) and get_start_time(action) > since
    )
    if len(spent) < intent.budget:
        return None
    # When the oldest action leaves the window and frees a slot; a budget of 0 never has one.
    freed = spent[-intent.budget] + intent.budget_window_s if intent.budget > 0 else None
    return make_decision(
        intent,
        "refuse",
        f"The budget is used up: the strategy {intent.strategy!r} has used {len(spent)} of "
        f"{format_count(intent.budget, 'action')} in {format_seconds(intent.budget_window_s)}, those that its calls "
        "and functions took left out.",
        now=now,
        retry_at=freed,
    )


def check_hysteresis(intent: Intent, history: Sequence[Action], now: float) -> Decision | None:
    """Refuse an intent that would undo the last change of its fields, by any client, so that nothing oscillates.

    Actions that changed nothing, failed or were reverted do not count as changes.
    """
    if intent.hysteresis_s <= 0:
        return None

    def is_change(action: Action) -> bool:
        stands = action.state not in {"failed", "reverted"} and not _is_no_op(action)
        return stands and bool(list_common_fields(action.intent, intent))

    last = _find_last(history, is_change)
    if last is None or now >= (over := get_start_time(last) + intent.hysteresis_s):
        return None
    if (name := _find_reversed_argument(intent, last)) is None:
        return None
    return make_decision(
        intent,
        "refuse",
        f"Hysteresis: the action would undo the last change of {name!r} of {intent.target!r}, made "
        f"{format_seconds(max(now - get_start_time(last), 0.0))} ago by {last.intent.strategy!r}; a change stays in "
        f"place for {format_seconds(intent.hysteresis_s)}.",
        now=now,
        winner=last.id,
        retry_at=over,
    )


def are_equal(value: JSON, other: JSON) -> bool:
    return _format_json(value) == _format_json(other)


class _Change(NamedTuple):
    """The change of one argument by an action: from ``before`` to ``after``, or for a number only its direction."""

    before: JSON
    after: JSON
    direction: int
    """1: up; -1: down; 0: no number, or no change."""


def _list_changes(call: Intent, inverse: PrimitiveCall | None) -> dict[str, _Change]:
    if call.primitive in STEPS:
        return {_INSTANCES: _Change(None, None, STEPS[call.primitive])}
    if inverse is None or inverse.primitive != call.primitive:
        return {}
    return {
        name: _Change(before, call.arguments[name], _get_direction(before, call.arguments[name]))
        for name, before in inverse.arguments.items()
        if name in call.arguments and not are_equal(before, call.arguments[name])
    }


def _find_reversed_argument(intent: Intent, last: Action) -> str | None:
    """Return the argument whose last change an intent would undo; None: there is none."""
    if last.inverse is not None and _is_same_call(last.inverse, intent) and not _is_same_call(last.intent, intent):
        return next(iter(sorted(intent.arguments)), intent.primitive)
    for name, change in sorted(_list_changes(last.intent, last.inverse).items()):
        if intent.primitive in STEPS:
            if name == _INSTANCES and change.direction == -STEPS[intent.primitive]:
                return name
            continue
        if name not in intent.arguments or last.intent.primitive in STEPS:
            continue
        wanted = intent.arguments[name]
        turned = (
            _get_direction(change.after, wanted) == -change.direction
            if change.direction
            else are_equal(wanted, change.before)
        )
        if turned:
            return name
    return None


def _find_last(
    history: Sequence[Action], condition: Callable[[Action], bool], *, counts: Callable[[Action], bool] = is_accepted
) -> Action | None:
    matches = (action for action in history if counts(action) and condition(action))
    return max(matches, key=lambda action: (get_start_time(action), action.id), default=None)


def _is_same_strategy(action: Action, intent: Intent) -> bool:
    return qualify_strategy(action.intent) == qualify_strategy(intent)


def _is_no_op(action: Action) -> bool:
    """Whether an action equals its inverse, so that it changed nothing. One without may have changed anything."""
    return (
        action.inverse is not None
        and action.intent.primitive not in STEPS
        and _is_same_call(action.inverse, action.intent)
    )


def _is_same_call(call: PrimitiveCall | Intent, other: PrimitiveCall | Intent) -> bool:
    return call.primitive == other.primitive and are_equal(call.arguments, other.arguments)


def _get_direction(before: JSON, after: JSON) -> int:
    if isinstance(before, bool) or isinstance(after, bool):
        return 0
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return 0
    return (after > before) - (after < before)


def _format_json(value: JSON) -> str:
    return json.dumps(_normalize(value), sort_keys=True, ensure_ascii=False)


def _normalize(value: JSON) -> JSON:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _normalize(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_normalize(inner) for inner in value]
    return value
