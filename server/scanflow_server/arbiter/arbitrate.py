"""The arbiter's one decision: is this done, now, and why or why not. Pure, whole, and the same in any order of arrival.

Intents that wait for the same target are looked at together, the best first: the higher priority, then the earlier,
then the smaller key. One that may act keeps the others from its fields, which are told by whom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from scanflow.agent.records import Action, Decision, Intent, Verdict
from scanflow_server.arbiter.identity import overlapping, place_of, seconds, strategy_of
from scanflow_server.arbiter.objections import (
    World,
    against_foreign,
    against_haste,
    against_owner,
    against_reversal,
    against_spending,
    decided,
)

QUEUE_S = 900.0
"""For how long a person's command may wait for its turn, in seconds: by then nobody waits for what comes of it."""

RETRY_S = 1.0
"""After how long an intent is looked at again whose target is busy, in seconds; it is also when that is done."""


def arbitrate_all(intents: Iterable[Intent], world: World) -> dict[str, Decision]:
    """Decide on all intents that wait for one target, by their ids."""
    taken: list[Action] = []
    seen: list[Action] = []
    decisions: dict[str, Decision] = {}
    wanted = sorted(intents, key=lambda one: (-one.priority, one.at, one.key, one.id))
    for intent in wanted:
        decision = _decide(intent, world, taken, seen, wanted)
        decisions[intent.id] = decision
        now_there = Action(id=intent.id, intent=intent, state="pending", decision=decision, began=None, ended=None)
        seen.append(now_there)
        if decision.verdict in {"act", "queue"}:
            acting = decision.model_copy(update={"verdict": "act"})
            taken.append(now_there.model_copy(update={"decision": acting}))
    return decisions


def duplicate_of(first: Action, intent: Intent, now: float) -> Decision:
    """Return the decision on an intent whose key was used before."""
    known = first.decision
    reason = f"The key {intent.key!r} was decided on before, as {first.id!r}: {known.verdict}. {known.reason}"
    return decided(intent, "duplicate", reason, now=now, winner=first.id, retry_at=known.retry_at)


def replaced_by(newer: Intent, waiting: Intent, now: float) -> Decision | None:
    """Return the decision on what waits for a person, if the same strategy asks for something else instead."""
    same = strategy_of(newer) == strategy_of(waiting) and place_of(newer) == place_of(waiting)
    if not same or newer.primitive != waiting.primitive:
        return None
    reason = f"Superseded: {newer.agent} asks for {newer.primitive} ({newer.id}) in its place."
    return decided(waiting, "refuse", reason, now=now, winner=newer.id)


def _decide(
    intent: Intent, world: World, taken: Sequence[Action], seen: Sequence[Action], wanted: Collection[Intent]
) -> Decision:
    approved = intent.id in world.approved
    reason = "Approved by a person; no conflict." if approved else "Allowed: no conflict."
    act = decided(intent, "act", reason, now=world.now)
    if intent.source == "person":
        return _against_command(intent, world, taken, wanted) or act
    objection = _first_objection(intent, world, taken, seen)
    if objection is not None and objection.verdict == "duplicate":
        return objection
    if approved:
        if objection is not None and objection.verdict == "refuse" and objection.retry_at is not None:
            return objection.model_copy(update={"verdict": "queue"})  # what may pass with time is waited for
        return objection or act
    if intent.autonomy == "observe":
        return _noted(intent, world, objection, "observe", "The strategy only observes.")
    if objection is not None and objection.verdict == "refuse":
        return objection
    if intent.autonomy == "suggest":
        return _noted(intent, world, objection, "suggest", "The strategy only suggests.")
    if intent.autonomy == "approve":
        return _noted(intent, world, objection, "approve", "The strategy requires approval by a person.")
    return objection or act


def _noted(intent: Intent, world: World, objection: Decision | None, verdict: Verdict, why: str) -> Decision:
    would = "It would be done now." if objection is None else f"It would not be done now: {objection.reason}"
    advice = "" if verdict == "observe" else f" Have it done: scanflow approve {intent.id}."
    winner = None if objection is None else objection.winner
    return decided(intent, verdict, f"{why} {would}{advice}", now=world.now, winner=winner)


def _against_command(
    intent: Intent, world: World, taken: Sequence[Action], wanted: Collection[Intent]
) -> Decision | None:
    """Return what a person's command waits for, or why it is not carried out any more. No agent's stands against it."""
    now = world.now
    newer = [one for one in wanted if _supersedes(one, intent)]
    if newer:
        last = max(newer, key=lambda one: (one.at, one.id))
        reason = f"Superseded: {last.agent} requested {last.primitive} ({last.id}) before this one's turn came."
        return decided(intent, "refuse", reason, now=now, winner=last.id)
    if now - intent.at > QUEUE_S:
        reason = f"It waited for its turn for more than {seconds(QUEUE_S)}. Request it again."
        return decided(intent, "refuse", reason, now=now)
    earlier = next((one for one in taken if place_of(one.intent) == place_of(intent)), None)
    if earlier is not None:
        reason = f"{intent.target!r} is changed by {earlier.id!r} first; this one is next."
        return decided(intent, "queue", reason, now=now, winner=earlier.id, retry_at=now + RETRY_S)
    return _busy(intent, world)


def _supersedes(one: Intent, other: Intent) -> bool:
    same = one.source == other.source == "person" and place_of(one) == place_of(other)
    return same and (one.at, one.id) > (other.at, other.id) and set(other.fields) <= set(one.fields)


def _first_objection(intent: Intent, world: World, taken: Sequence[Action], seen: Sequence[Action]) -> Decision | None:
    now = world.now
    past = [*(action for action in world.history if action.id != intent.id), *taken]
    checks: tuple[Callable[[], Decision | None], ...] = (
        lambda: _again(intent, [*world.history, *seen], now),
        lambda: against_owner(intent, world),
        lambda: _against_better(intent, taken, now),
        lambda: None if intent.id in world.approved else against_foreign(intent, world),
        lambda: against_haste(intent, past, now),
        lambda: against_reversal(intent, past, now),
        lambda: against_spending(intent, past, now),
        lambda: _busy(intent, world),
    )
    return next((objection for check in checks if (objection := check()) is not None), None)


def _again(intent: Intent, known: Sequence[Action], now: float) -> Decision | None:
    key = (intent.team, intent.app, intent.key)
    same = (one for one in known if (one.intent.team, one.intent.app, one.intent.key) == key)
    first = next((one for one in same if one.id != intent.id), None)
    return None if first is None else duplicate_of(first, intent, now)


def _against_better(intent: Intent, taken: Sequence[Action], now: float) -> Decision | None:
    for action in taken:
        if fields := overlapping(action.intent, intent):
            better = action.intent
            strategy = f"The strategy {better.strategy!r} of the agent {better.agent!r}"
            who = f"{better.agent} (a person)" if better.source == "person" else strategy
            why = f"{who} wants {fields[0]!r} of {intent.target!r} too and comes first: {_why_first(better, intent)}."
            return decided(intent, "refuse", why, now=now, winner=action.id)
    return None


def _why_first(winner: Intent, loser: Intent) -> str:
    if winner.priority != loser.priority:
        return f"its priority is {winner.priority}, and this one's is {loser.priority}"
    return "it wanted it earlier" if winner.at != loser.at else "of two at the same time the smaller key is taken"


def _busy(intent: Intent, world: World) -> Decision | None:
    for action in world.history:
        works = action.state == "running" or action.id in world.at_work
        if works and action.id != intent.id and place_of(action.intent) == place_of(intent):
            reason = f"{intent.target!r} is being changed by {action.id!r}; this one is next."
            at = world.now + RETRY_S
            return decided(intent, "queue", reason, now=world.now, winner=action.id, retry_at=at)
    return None
