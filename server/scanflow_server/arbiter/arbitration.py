"""The arbiter's decision: whether an intent is acted on now, and why. Pure, complete, and independent of arrival order.

Intents that wait for the same target are decided together, in order of priority, then time, then key. One that may act
keeps the others from its fields; their decisions name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from scanflow.agent.agent_records import Action, Decision, Intent, Verdict
from scanflow_server.arbiter.arbitration_rules import (
    ArbitrationContext,
    are_equal,
    check_action_budget,
    check_cool_down,
    check_effect,
    check_foreign_change,
    check_hysteresis,
    check_ownership,
    check_persons_change,
    check_refusal,
    make_decision,
)
from scanflow_server.intent_identity import (
    format_seconds,
    get_place,
    list_common_fields,
    qualify_key,
    qualify_strategy,
    start_unlike_runs,
)

QUEUE_S = 900.0
"""How long a person's command may wait for its turn, in seconds: by then nobody waits for its result."""

ALLOWED = "Allowed: no conflict."
RETRY_S = 1.0
"""After how long an intent whose target is busy is decided again, in seconds, if the action there has not ended."""

_TOLD: frozenset[Verdict] = frozenset({"refuse", "observe", "suggest", "approve"})
_VARIES = re.compile(r"\b[0-9a-f]{12,}\b|\d+(\.\d+)?(e[-+]?\d+)?")
"""What differs between two decisions for the same reason: ids and amounts."""


def arbitrate_all(intents: Iterable[Intent], world: ArbitrationContext) -> dict[str, Decision]:
    """Decide on all intents that wait for one target, by their ids."""
    taken: list[Action] = []
    seen: list[Action] = []
    decisions: dict[str, Decision] = {}
    wanted = sorted(intents, key=lambda intent: (-intent.priority, intent.at, intent.key, intent.id))
    for intent in wanted:
        decision = _decide(intent, world, taken, seen, wanted)
        decisions[intent.id] = decision
        now_there = Action(id=intent.id, intent=intent, state="pending", decision=decision, began=None, ended=None)
        seen.append(now_there)
        if decision.verdict == "act" or _is_next(intent, decision, world):
            acting = decision.model_copy(update={"verdict": "act"})
            taken.append(now_there.model_copy(update={"decision": acting}))
    return decisions


def _is_next(intent: Intent, decision: Decision, world: ArbitrationContext) -> bool:
    """Whether a queued intent waits for its target alone. An approved one that waits for its budget or cool-down, maybe
    for hours, keeps nobody from a field until then."""
    return decision.verdict == "queue" and (intent.source == "person" or _check_busy(intent, world) is not None)


def decide_duplicate(first: Action, intent: Intent, now: float) -> Decision:
    """Return the decision on an intent whose key was used before."""
    decision = first.decision
    verdict = f"{decision.verdict}. {decision.reason}"
    reason = f"The intent {first.id!r} has the same key {intent.key!r}; its decision: {verdict}"
    return make_decision(intent, "duplicate", reason, now=now, winner=first.id, retry_at=decision.retry_at)


def supersede(newer: Intent, waiting: Intent, now: float) -> Decision | None:
    """Return the refusal of an intent that waits for approval, if a newer one of its strategy supersedes it."""
    same = qualify_strategy(newer) == qualify_strategy(waiting) and get_place(newer) == get_place(waiting)
    if not same or newer.primitive != waiting.primitive:
        return None
    reason = f"Superseded: {newer.agent} requested {newer.primitive} ({newer.id}) instead."
    return make_decision(waiting, "refuse", reason, now=now, winner=newer.id)


def _decide(
    intent: Intent,
    world: ArbitrationContext,
    taken: Sequence[Action],
    seen: Sequence[Action],
    wanted: Collection[Intent],
) -> Decision:
    approved = intent.id in world.approved
    reason = f"Approved by {world.approvals.get(intent.id, 'a person')}; no conflict." if approved else ALLOWED
    act = make_decision(intent, "act", reason, now=world.now)
    if intent.source == "person":
        return _check_command(intent, world, taken, wanted) or act
    objection = _find_objection(intent, world, taken, seen)
    if objection is not None and objection.verdict == "duplicate":
        return objection
    asks = intent.autonomy in {"suggest", "approve"} and intent.id not in world.excesses
    if (approved or asks) and (needless := check_effect(intent, world)) is not None:
        return needless
    if approved:
        if objection is not None and objection.verdict == "refuse" and objection.retry_at is not None:
            return objection.model_copy(update={"verdict": "queue"})  # wait for objections that expire
        return objection or act
    excess = world.excesses.get(intent.id)
    if intent.autonomy == "observe":
        return _withhold(intent, world, objection, "observe", excess or "The strategy only observes.")
    if objection is not None and objection.verdict == "refuse":
        return objection
    if intent.autonomy == "suggest":
        return _withhold(intent, world, objection, "suggest", excess or "The strategy only suggests.")
    if intent.autonomy == "approve" or excess is not None:
        return _withhold(intent, world, objection, "approve", excess or "The strategy requires approval by a person.")
    return objection or act


def _withhold(
    intent: Intent, world: ArbitrationContext, objection: Decision | None, verdict: Verdict, why: str
) -> Decision:
    would = (
        "The action would start now." if objection is None else f"The action would not start now: {objection.reason}"
    )
    advice = "" if verdict == "observe" else f" Approve it: scanflow approve {intent.id}."
    if objection is None and (other := check_others_change(intent, world)) is not None:
        would = other.reason.rpartition(" It is left alone")[0] or other.reason.rpartition(" Wait ")[0]
        objection = other
    winner = None if objection is None else objection.winner
    return make_decision(intent, verdict, f"{why} {would}{advice}", now=world.now, winner=winner)


def check_others_change(intent: Intent, world: ArbitrationContext) -> Decision | None:
    """Refuse an intent that would overwrite a person's or another client's value."""
    return check_persons_change(intent, world) or check_foreign_change(intent, world)


def _check_command(
    intent: Intent, world: ArbitrationContext, taken: Sequence[Action], wanted: Collection[Intent]
) -> Decision | None:
    """Return why a person's command waits or is refused; None: it may act. Intents of agents never block it."""
    now = world.now
    newer = [other for other in wanted if _is_newer_command(other, intent)]
    if newer:
        last = max(newer, key=lambda command: (command.at, command.id))
        reason = f"Superseded: {last.agent} requested {last.primitive} ({last.id}) before this command started."
        return make_decision(intent, "refuse", reason, now=now, winner=last.id)
    if now - intent.at > QUEUE_S:
        reason = f"The command was queued for more than {format_seconds(QUEUE_S)}. Request it again."
        return make_decision(intent, "refuse", reason, now=now)
    earlier = next((action for action in taken if get_place(action.intent) == get_place(intent)), None)
    if earlier is not None:
        reason = f"The action {earlier.id!r} changes {intent.target!r} first; this action is next."
        return make_decision(intent, "queue", reason, now=now, winner=earlier.id, retry_at=now + RETRY_S)
    return _check_busy(intent, world)


def _is_newer_command(intent: Intent, other: Intent) -> bool:
    same = intent.source == other.source == "person" and get_place(intent) == get_place(other)
    return same and (intent.at, intent.id) > (other.at, other.id) and set(other.fields) <= set(intent.fields)


def _find_objection(
    intent: Intent, world: ArbitrationContext, taken: Sequence[Action], seen: Sequence[Action]
) -> Decision | None:
    now = world.now
    # Whoever is asked decides about another's value too: an approval overwrites it.
    asks = intent.autonomy in {"suggest", "approve"} or intent.id in world.excesses
    past = [*(action for action in world.history if action.id != intent.id), *taken]
    checks: tuple[Callable[[], Decision | None], ...] = (
        lambda: _check_duplicate(intent, [*world.history, *seen], now),
        lambda: check_ownership(intent, world),
        lambda: _check_priority(intent, taken, now),
        lambda: None if intent.id in world.approved or asks else check_others_change(intent, world),
        lambda: None if intent.id in world.approved else check_refusal(intent, past, now),
        lambda: check_cool_down(intent, past, now, approved=intent.id in world.approved),
        lambda: check_hysteresis(intent, past, now),
        lambda: check_action_budget(intent, past, now),
        lambda: _check_busy(intent, world),
    )
    return next((objection for check in checks if (objection := check()) is not None), None)


def _check_duplicate(intent: Intent, actions: Sequence[Action], now: float) -> Decision | None:
    key = qualify_key(intent)
    same = (action for action in actions if qualify_key(action.intent) == key)
    first = next((action for action in same if action.id != intent.id), None)
    return None if first is None else decide_duplicate(first, intent, now)


def _check_priority(intent: Intent, taken: Sequence[Action], now: float) -> Decision | None:
    for action in taken:
        if not start_unlike_runs(action.intent, intent) and (fields := list_common_fields(action.intent, intent)):
            better = action.intent
            strategy = f"The strategy {better.strategy!r} of the agent {better.agent!r}"
            who = f"{better.agent} (a person)" if better.source == "person" else strategy
            first = _explain_precedence(better, intent)
            why = f"{who} also requests a change of {fields[0]!r} of {intent.target!r} and takes precedence: {first}."
            return make_decision(intent, "refuse", why, now=now, winner=action.id)
    return None


def _explain_precedence(winner: Intent, loser: Intent) -> str:
    if winner.priority != loser.priority:
        return f"its priority is {winner.priority}, and this intent's is {loser.priority}"
    return "it was requested earlier" if winner.at != loser.at else "of two at the same time, the smaller key wins"


def _check_busy(intent: Intent, world: ArbitrationContext) -> Decision | None:
    for action in world.history:
        works = action.state == "running" or action.id in world.at_work
        if works and action.id != intent.id and get_place(action.intent) == get_place(intent):
            reason = f"The action {action.id!r} is changing {intent.target!r}; this action is next."
            at = world.now + RETRY_S
            return make_decision(intent, "queue", reason, now=world.now, winner=action.id, retry_at=at)
    return None


def find_repeated(newest: Sequence[Action], intent: Intent, decision: Decision) -> Action | None:
    """Return the earlier action whose decision is the same, for the same reason; None: there is none.

    ``newest``: the earlier ones of the intent's strategy on its target, the newest first. A refusal repeats the last
    one, unless something was done since. What people are asked, or told, repeats with the same arguments alone."""
    if intent.source == "person" or decision.by is not None or decision.verdict not in _TOLD:
        return None
    for action in newest:
        if action.intent.primitive != intent.primitive:
            continue
        if decision.verdict == "refuse":
            if action.decision.verdict in _TOLD - {"refuse"}:
                continue
            return action if _is_same(action, intent, decision) else None
        if _is_same(action, intent, decision) and are_equal(action.intent.arguments, intent.arguments):
            return action
    return None


def _is_same(earlier: Action, intent: Intent, decision: Decision) -> bool:
    before = earlier.decision
    is_open = before.verdict == decision.verdict and before.by is None and earlier.began is None
    return is_open and _normalize(earlier.intent, before) == _normalize(intent, decision)


def repeat_decision(earlier: Action, decision: Decision) -> Decision:
    """Return a decision that names the earlier intent, which is the one that is kept."""
    reason = decision.reason.replace(decision.intent, earlier.id)
    return decision.model_copy(update={"reason": f"{reason} This repeats the decision on {earlier.id}."})


def _normalize(intent: Intent, decision: Decision) -> str:
    text = decision.reason
    for id in (intent.id, decision.winner):
        text = text.replace(id, "") if id else text
    return _VARIES.sub("", text)
