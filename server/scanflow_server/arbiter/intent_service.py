"""Where intents come in and are decided on, each in one transaction: what is decided is written down, or was never.

Nothing is carried out here; that is the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from scanflow.agent.primitives import act_of
from scanflow.agent.records import Action, ActionState, Decision, Intent
from scanflow.errors import InvalidError, UsageError
from scanflow.problems import problem_of
from scanflow_server.arbiter.arbitrate import arbitrate_all, duplicate_of, replaced_by
from scanflow_server.arbiter.identity import is_kept, looks_back_s, place_of
from scanflow_server.arbiter.objections import FOREIGN_S, Owner, World, foreign_fields, same
from scanflow_server.store import events, operations
from scanflow_server.store import intents as kept
from scanflow_server.store.base import Store
from scanflow_server.store.intents import ActionRow, FieldRow

Look = Callable[[Intent], Mapping[str, Any]]
"""Return those of an intent's fields that can be seen, as they are; and, under ``SINCE``, since when its target is
there, where that is known."""

SINCE = "created"

_WAITS = frozenset({"act", "queue", "approve", "suggest"})


class IntentService:
    def __init__(
        self,
        store: Store,
        *,
        look: Look,
        clock: Callable[[], float],
        alive: Callable[[str, str], bool] = lambda _app, _agent: False,
        foreign_s: float = FOREIGN_S,
    ) -> None:
        self._store, self.look, self._clock, self._alive = store, look, clock, alive
        self._foreign_s = foreign_s

    def submit(self, intent: Intent) -> Decision:
        """Decide on an intent, once for its key: the same key again is told what was decided."""
        check_intent(intent)
        seen = self.look(intent)
        with self._store.write() as connection:
            if (known := kept.by_key(connection, intent)) is not None:
                return duplicate_of(known.action, intent, self._clock())
            if kept.get(connection, intent.id) is not None:
                raise InvalidError(f"Another intent has the id {intent.id!r}. Give each one of its own.")
            return self.admit(connection, intent, seen)

    def admit(self, connection: Connection, intent: Intent, seen: Mapping[str, Any]) -> Decision:
        """Keep an intent and decide on it, with all that waits for the same target, within a transaction.

        ``seen``: the fields of the target as they are.
        """
        waits = Decision(intent=intent.id, verdict="queue", reason="It came in.", at=self._clock())
        action = Action(id=intent.id, intent=intent, state="pending", decision=waits, began=None, ended=None)
        stored = ActionRow(action=action)
        kept.add(connection, stored)
        decision = self._decide(connection, place_of(intent), seen, [stored])[intent.id]
        if decision.verdict == "approve":
            for one in kept.waiting_at(connection, place_of(intent), verdicts=["approve"]):
                replaced = replaced_by(intent, one.intent, decision.at) if one.id != intent.id else None
                if replaced is not None:
                    self._become(connection, one, replaced)
        return decision

    def decide_again(self, intent: Intent) -> None:
        seen = self.look(intent)
        with self._store.write() as connection:
            self._decide(connection, place_of(intent), seen, [])

    def get(self, id: str) -> ActionRow:
        with self._store.read() as connection:
            return kept.find(connection, id)

    def approve(self, id: str, *, by: str, reason: str = "") -> Action:
        """Record a person's approval, and decide again: autonomy and another client's value no longer stop it."""
        seen = self.look(self.get(id).intent)
        with self._store.write() as connection:
            stored = kept.find(connection, id)
            if stored.action.decision.verdict in {"act", "queue"}:
                raise UsageError(f"The intent {id!r} needs no approval: it is {_stands(stored.action)}.")
            approved = stored.changed(action={"state": "pending", "ended": None}, approved_by=by)
            kept.put(connection, approved)
            kept.say(connection, id, self._clock(), _by(f"{by} approved it", reason))
            self._decide(connection, place_of(stored.intent), seen, [approved])
            return kept.find(connection, id).action

    def refuse(self, id: str, *, by: str, reason: str = "") -> Action:
        with self._store.write() as connection:
            stored = kept.find(connection, id)
            if stored.action.state != "pending" or stored.action.began is not None:
                advice = f" Take it back: scanflow approve {id} --revert" if stored.action.state == "succeeded" else ""
                raise UsageError(f"The intent {id!r} cannot be refused: it is {_stands(stored.action)}.{advice}")
            said = _by(f"{by} refused it", reason)
            decision = Decision(intent=id, verdict="refuse", reason=said, by=by, at=self._clock())
            self._become(connection, stored, decision)
            return kept.find(connection, id).action

    def _decide(
        self, connection: Connection, place: str, seen: Mapping[str, Any], more: Iterable[ActionRow]
    ) -> dict[str, Decision]:
        waiting = {one.id: one for one in [*kept.waiting_at(connection, place), *more]}
        fresh = {one.id: one for one in waiting.values() if one.action.began is None}
        if not fresh:
            return {}
        now = self._clock()
        wanted = [one.intent for one in fresh.values()]
        since = now - max(looks_back_s(one) for one in wanted)
        history = [one for one in kept.history_for(connection, wanted, since=since) if one.id not in fresh]
        fields = _of_this_one(connection, kept.fields_at(connection, place), seen.get(SINCE))
        at_work = kept.at_work(connection, place)
        steady = {name: one for name, one in fields.items() if one.intent not in at_work}
        foreign = self._foreign(connection, place, steady, seen, now)
        world = World(
            now=now,
            history=history,
            owners=self._owners(place, fields),
            observed=seen,
            last_written=_last_written(steady),
            foreign_since=foreign,
            foreign_s=self._foreign_s,
            approved={one.id for one in fresh.values() if one.approved_by is not None},
            at_work=at_work,
        )
        decisions = arbitrate_all(wanted, world)
        for id, decision in decisions.items():
            self._become(connection, fresh[id], decision)
        return decisions

    def _become(self, connection: Connection, stored: ActionRow, decision: Decision) -> None:
        before = stored.action.decision
        news = (before.verdict, before.winner) != (decision.verdict, decision.winner) or before.reason == "It came in."
        waits = decision.verdict in _WAITS
        state: ActionState = "pending" if waits else "observed" if decision.verdict == "observe" else "refused"
        after = stored.changed(
            action={"decision": decision, "state": state, "ended": None if waits else decision.at},
            due=decision.retry_at if decision.verdict == "queue" else None,
        )
        kept.put(connection, after)
        if state == "refused" and stored.intent.source == "person":
            problem = problem_of(UsageError(decision.reason))[1]
            operations.end(connection, stored.id, at=decision.at, progress=[], problem=problem)
        if news:
            kept.say(connection, stored.id, decision.at, f"{decision.verdict}: {decision.reason}")
            data = {"id": stored.id, "verdict": decision.verdict, "reason": decision.reason}
            tell_of(connection, stored.intent, "intent", decision.at, **data)

    def _foreign(
        self, connection: Connection, place: str, fields: Mapping[str, FieldRow], seen: Mapping[str, Any], now: float
    ) -> dict[str, float]:
        """Note since when which fields are other than written, and return it."""
        since: dict[str, float] = {}
        strange = foreign_fields(tuple(fields), observed=seen, last_written=_last_written(fields))
        for name, one in fields.items():
            if name not in seen:
                continue
            value = {"value": seen[name]} if name in strange else None
            if value is None or one.foreign_value is None or not same(value, one.foreign_value):
                found = None if value is None else now
            else:
                found = one.foreign_since
            if (found, value) != (one.foreign_since, one.foreign_value):
                changed = one.model_copy(update={"foreign_since": found, "foreign_value": value})
                kept.put_field(connection, place, changed)
            if found is not None:
                since[name] = found
        return since

    def _owners(self, place: str, fields: Mapping[str, FieldRow]) -> dict[str, Owner]:
        kept_fields = {name: one for name, one in fields.items() if is_kept(place, name)}
        return {name: owner for name, one in kept_fields.items() if (owner := self._owner(one)) is not None}

    def _owner(self, one: FieldRow) -> Owner | None:
        if one.strategy is None or one.intent is None:
            return None
        lives = one.app is not None and one.agent is not None and self._alive(one.app, one.agent)
        return Owner(strategy=one.strategy, intent=one.intent, priority=one.priority, until=one.until, lives=lives)


def check_intent(intent: Intent) -> None:
    act = act_of(intent.primitive, intent.arguments)
    if act.target != intent.target:
        raise InvalidError(
            f"The intent {intent.id!r} says that its target is {intent.target!r}; {act} is about {act.target!r}."
        )
    if unsaid := [field for field in act.fields if field not in intent.fields]:
        raise InvalidError(
            f"The intent {intent.id!r} does not say that it writes {unsaid[0]!r}; {act} does. Add it to its 'fields'."
        )


def tell_of(connection: Connection, intent: Intent, type: str, at: float, **data: Any) -> None:
    """List an event about an intent's target."""
    whose = {"by": intent.agent} if intent.source == "person" else {"agent": intent.agent, "strategy": intent.strategy}
    about = {**whose, "primitive": intent.primitive, **data}
    events.tell(connection, type, intent.target, at=at, app=intent.app, team=intent.team, data=about)


def _of_this_one(connection: Connection, fields: Mapping[str, FieldRow], since: float | None) -> dict[str, FieldRow]:
    """Return what is kept of a target that is there since then: not what was written into one of its name before."""
    if since is None:
        return dict(fields)
    ended = {one.intent: _ended(connection, one.intent) for one in fields.values() if one.intent is not None}
    return {name: one for name, one in fields.items() if one.intent is None or ended[one.intent] >= since}


def _ended(connection: Connection, id: str) -> float:
    """Return when an action was over, which for what deploys a service is after that is there."""
    stored = kept.get(connection, id)
    if stored is None:
        return 0.0
    return math.inf if stored.action.ended is None else stored.action.ended


def _last_written(fields: Mapping[str, FieldRow]) -> dict[str, Any]:
    return {name: one.written["value"] for name, one in fields.items() if one.written is not None}


def _stands(action: Action) -> str:
    if action.state == "pending":
        return {"act": "about to begin", "queue": "waiting for its turn"}.get(action.decision.verdict, "waiting")
    return "refused already" if action.state == "refused" else action.state


def _by(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else f"{what}."
