"""Bound an intent by what its strategy may do, as stored when its agent was deployed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from scanflow.agent.agent_records import Autonomy, Guard, Intent, StrategyLimits
from scanflow.agent.primitives import parse_act
from scanflow.agent.strategy_limits import format_calls, matches_target
from scanflow.app.secrets import list_secret_sources
from scanflow_server.arbiter.arbitration_rules import are_equal
from scanflow_server.intent_identity import format_seconds

_AUTONOMIES: tuple[Autonomy, ...] = get_args(Autonomy)
"""From the least to the most."""

_MAX_CALLS = 5
"""The most calls of a strategy that an explanation lists."""


def bound_intent(intent: Intent, limits: StrategyLimits | None) -> tuple[Intent, str | None]:
    """Return an intent without what exceeds its strategy, and a description of the excess; None: there is none.

    Where the intent is more cautious than the strategy it stays so. With an excess its autonomy is ``approve`` at most.
    ``limits`` None: no strategy of that name is stored for its agent.
    """
    stored = limits or StrategyLimits(name=intent.strategy)
    excess = _describe_unknown(intent) if limits is None else _describe_excess(intent, limits)
    highest: Autonomy = "auto" if excess is None else "approve"
    changes: dict[str, Any] = {
        "priority": min(intent.priority, stored.priority),
        "autonomy": min((intent.autonomy, stored.autonomy, highest), key=_AUTONOMIES.index),
        "cool_down_s": max(intent.cool_down_s, stored.cool_down_s),
        "hysteresis_s": max(intent.hysteresis_s, stored.hysteresis_s),
        "fields": parse_act(intent.primitive, intent.arguments).fields,
    }
    if _is_budget_larger(intent, stored):
        changes |= {"budget": stored.budget, "budget_window_s": stored.budget_window_s}
    if _is_guard_weaker(intent.guard, stored.guard):
        changes["guard"] = stored.guard
    return intent.model_copy(update=changes), excess


def _describe_unknown(intent: Intent) -> str:
    return f"The server has no strategy {intent.strategy!r} of a running agent {intent.app}/{intent.agent}."


def _describe_excess(intent: Intent, stored: StrategyLimits) -> str | None:
    excesses = list(_list_excesses(intent, stored))
    if not excesses:
        return None
    return f"The intent exceeds the strategy {stored.name!r} as its agent was deployed: {'; '.join(excesses)}."


def _list_excesses(intent: Intent, stored: StrategyLimits) -> Iterator[str]:
    if not _is_permitted(intent, stored):
        calls = format_calls(stored.calls)
        more = [f"and {len(calls) - _MAX_CALLS} more"] if len(calls) > _MAX_CALLS else []
        yield (
            f"{intent.primitive} on {intent.target} with these arguments is not what it may request "
            f"({', '.join([*calls[:_MAX_CALLS], *more]) or 'nothing'})"
        )
    if unknown := sorted(set(list_secret_sources(intent.arguments)) - set(stored.secrets)):
        yield f"it refers to a secret, {unknown[0]!r}, to which its application does not"
    if extra := sorted(set(intent.fields) - set(parse_act(intent.primitive, intent.arguments).fields)):
        yield f"the field {extra[0]!r} is not written by {intent.primitive}"
    if _AUTONOMIES.index(intent.autonomy) > _AUTONOMIES.index(stored.autonomy):
        yield f"its autonomy is {intent.autonomy}, the strategy's {stored.autonomy}"
    if intent.priority > stored.priority:
        yield f"its priority is {intent.priority}, the strategy's {stored.priority}"
    for name, own_s, stored_s in (
        ("cool-down", intent.cool_down_s, stored.cool_down_s),
        ("hysteresis", intent.hysteresis_s, stored.hysteresis_s),
    ):
        if own_s < stored_s:
            yield f"its {name} is {format_seconds(own_s)}, the strategy's {format_seconds(stored_s)}"
    if _is_budget_larger(intent, stored):
        own = _format_budget(intent.budget, intent.budget_window_s)
        yield f"its budget is {own}, the strategy's {_format_budget(stored.budget, stored.budget_window_s)}"
    if _is_guard_weaker(intent.guard, stored.guard):
        yield f"its guard is {_format_guard(intent.guard)}, the strategy's {_format_guard(stored.guard)}"


def _is_permitted(intent: Intent, stored: StrategyLimits) -> bool:
    return any(
        call.primitive == intent.primitive
        and matches_target(intent.target, call.target)
        and (call.arguments is None or are_equal(call.arguments, intent.arguments))
        for call in stored.calls
    )


def _is_budget_larger(intent: Intent, stored: StrategyLimits) -> bool:
    if stored.budget is None:
        return False
    return intent.budget is None or intent.budget > stored.budget or intent.budget_window_s < stored.budget_window_s


def _is_guard_weaker(guard: Guard | None, stored: Guard | None) -> bool:
    if stored is None:
        return False
    return (
        guard is None
        or (guard.metric, guard.worse) != (stored.metric, stored.worse)
        or guard.by > stored.by
        or guard.within_s < stored.within_s
    )


def _format_budget(budget: int | None, window_s: float) -> str:
    return "unlimited" if budget is None else f"{budget} in {format_seconds(window_s)}"


def _format_guard(guard: Guard | None) -> str:
    if guard is None:
        return "none"
    return f"{guard.metric} not {guard.worse} by {guard.by:g} within {format_seconds(guard.within_s)}"
