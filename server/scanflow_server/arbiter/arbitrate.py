"""The arbiter's one decision: is this done, now, and why or why not. Pure, whole, and the same in any order of arrival.

Intents that wait for the same target are looked at together, the best first: the higher priority, then the earlier,
then the smaller key. One that may act keeps the others from its fields, which are told by whom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from scanflow.agent.records import Action, Decision, Intent
from scanflow_server.arbiter.identity import overlapping, place_of, seconds
from scanflow_server.arbiter.objections import (
    Objection,
    World,
    against_foreign,
    against_haste,
    against_owner,
    against_reversal,
    against_spending,
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


def _decide(
    intent: Intent, world: World, taken: Sequence[Action], seen: Sequence[Action], wanted: Collection[Intent]
) -> Decision:
    if intent.source == "person":
        return _decision(intent, world, _against_command(intent, world, taken, wanted))
    objection = _first_objection(intent, world, taken, seen)
    if objection is not None and objection.verdict == "duplicate":
        return _decision(intent, world, objection)
    if intent.id in world.approved:
        return _decision(intent, world, _patient(objection))
    if intent.autonomy == "observe":
        return _noted(intent, world, objection, "observe", "The strategy only observes.")
    if objection is not None and objection.verdict == "refuse":
        return _decision(intent, world, objection)
    if intent.autonomy == "suggest":
        return _noted(intent, world, objection, "suggest", "The strategy only suggests.")
    if intent.autonomy == "approve":
        return _noted(intent, world, objection, "approve", "The strategy requires approval by a person.")
    return _decision(intent, world, objection)


def _against_command(
    intent: Intent, world: World, taken: Sequence[Action], wanted: Collection[Intent]
) -> Objection | None:
    """Return what a person's command waits for, or why it is not carried out any more. No agent's stands against it."""
    newer = [one for one in wanted if _supersedes(one, intent)]
    if newer:
        last = max(newer, key=lambda one: (one.at, one.id))
        return Objection(
            f"Superseded: {last.agent} requested {last.primitive} ({last.id}) before this one's turn came.",
            winner=last.id,
        )
    if world.now - intent.at > QUEUE_S:
        return Objection(f"It waited for its turn for more than {seconds(QUEUE_S)}. Request it again.")
    earlier = next((one for one in taken if place_of(one.intent) == place_of(intent)), None)
    if earlier is not None:
        reason = f"{intent.target!r} is changed by {earlier.id!r} first; this one is next."
        return Objection(reason, verdict="queue", winner=earlier.id, retry_at=world.now + RETRY_S)
    return _busy(intent, world)


def _supersedes(one: Intent, other: Intent) -> bool:
    same = one.source == other.source == "person" and place_of(one) == place_of(other)
    return same and (one.at, one.id) > (other.at, other.id) and set(other.fields) <= set(one.fields)


def _first_objection(intent: Intent, world: World, taken: Sequence[Action], seen: Sequence[Action]) -> Objection | None:
    now = world.now
    past = [*(action for action in world.history if action.id != intent.id), *taken]
    checks: tuple[Callable[[], Objection | None], ...] = (
        lambda: _again(intent, [*world.history, *seen]),
        lambda: against_owner(intent, world),
        lambda: _against_better(intent, taken),
        lambda: None if intent.id in world.approved else against_foreign(intent, world),
        lambda: against_haste(intent, past, now),
        lambda: against_reversal(intent, past, now),
        lambda: against_spending(intent, past, now),
        lambda: _busy(intent, world),
    )
    return next((objection for check in checks if (objection := check()) is not None), None)


def _again(intent: Intent, decided: Sequence[Action]) -> Objection | None:
    for action in decided:
        if action.id != intent.id and _same_key(action.intent, intent):
            first = action.decision
            return Objection(
                f"The key {intent.key!r} was decided on before, as {action.id!r}: {first.verdict}. {first.reason}",
                verdict="duplicate",
                winner=action.id,
            )
    return None


def _same_key(one: Intent, other: Intent) -> bool:
    return (one.team, one.app, one.key) == (other.team, other.app, other.key)


def _against_better(intent: Intent, taken: Sequence[Action]) -> Objection | None:
    for action in taken:
        if fields := overlapping(action.intent, intent):
            mine = f"The strategy {action.intent.strategy!r} of the agent {action.intent.agent!r}"
            who = f"{action.intent.agent} (a person)" if action.intent.source == "person" else mine
            return Objection(
                f"{who} wants {fields[0]!r} of {intent.target!r} too and comes first: "
                f"{_why_first(action.intent, intent)}.",
                winner=action.id,
            )
    return None


def _why_first(winner: Intent, loser: Intent) -> str:
    if winner.priority != loser.priority:
        return f"its priority is {winner.priority}, and this one's is {loser.priority}"
    return "it wanted it earlier" if winner.at != loser.at else "of two at the same time the smaller key is taken"


def _busy(intent: Intent, world: World) -> Objection | None:
    for action in world.history:
        works = action.state == "running" or action.id in world.at_work
        if works and action.id != intent.id and place_of(action.intent) == place_of(intent):
            return Objection(
                f"{intent.target!r} is being changed by {action.id!r}; this one is next.",
                verdict="queue",
                winner=action.id,
                retry_at=world.now + RETRY_S,
            )
    return None


def _patient(objection: Objection | None) -> Objection | None:
    """Queue what may pass with time rather than refuse it: a person has approved it."""
    if objection is None or objection.verdict != "refuse" or objection.retry_at is None:
        return objection
    return Objection(objection.reason, verdict="queue", winner=objection.winner, retry_at=objection.retry_at)


def _decision(intent: Intent, world: World, objection: Objection | None) -> Decision:
    if objection is None:
        reason = "Approved by a person; no conflict." if intent.id in world.approved else "Allowed: no conflict."
        return Decision(intent=intent.id, verdict="act", reason=reason, at=world.now)
    return Decision(
        intent=intent.id,
        verdict=objection.verdict,
        reason=objection.reason,
        winner=objection.winner,
        at=world.now,
        retry_at=objection.retry_at,
    )


def _noted(intent: Intent, world: World, objection: Objection | None, verdict: str, why: str) -> Decision:
    would = "It would be done now." if objection is None else f"It would not be done now: {objection.reason}"
    advice = "" if verdict == "observe" else f" Have it done: scanflow approve {intent.id}."
    return Decision.model_validate(
        {
            "intent": intent.id,
            "verdict": verdict,
            "reason": f"{why} {would}{advice}",
            "winner": None if objection is None else objection.winner,
            "at": world.now,
        }
    )
