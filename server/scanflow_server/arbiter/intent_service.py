"""The intent service: accepts intents and decides on them, each in one transaction.

Nothing is carried out here; that is the engine's task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from scanflow.agent.agent_records import Action, ActionState, Decision, Intent, StrategyLimits, Verdict
from scanflow.agent.primitives import parse_act
from scanflow.errors import InvalidError, UsageError, end_sentence
from scanflow_server.arbiter.arbitration import (
    arbitrate_all,
    decide_duplicate,
    find_repeated,
    repeat_decision,
    supersede,
)
from scanflow_server.arbiter.arbitration_rules import (
    FOREIGN_S,
    REFUSED_S,
    ArbitrationContext,
    Owner,
    PersonsChange,
    are_equal,
    check_effect,
    list_foreign_fields,
)
from scanflow_server.arbiter.strategy_permissions import bound_intent
from scanflow_server.intent_identity import compute_lookback_s, get_place, is_lasting
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.base import Store
from scanflow_server.store.intent_store import ActionRow, FieldRow

ReadState = Callable[[Intent], Mapping[str, Any]]
"""Returns the observable fields of an intent's target with their values, and its creation time, if known, under
``CREATED_FIELD``."""

FindLimits = Callable[[Connection, Intent], StrategyLimits | None]
"""Returns what an intent's strategy may do; None: its agent does not run, or has no strategy of that name."""

CREATED_FIELD = "created"

_RECEIVED = "The intent was received."

_MAX_NEWEST = 16
"""How many earlier intents of a strategy on a target are looked at for the decision that a new one repeats."""

_ASKS: tuple[Verdict, ...] = ("approve", "suggest")
_WAITS = frozenset({"act", "queue", *_ASKS})


class IntentService:
    def __init__(
        self,
        store: Store,
        *,
        look: ReadState,
        limits: FindLimits,
        clock: Callable[[], float],
        alive: Callable[[str, str], bool] = lambda _app, _agent: False,
        foreign_s: float = FOREIGN_S,
    ) -> None:
        self._store, self.look, self._clock, self._alive = store, look, clock, alive
        self._find_limits, self._foreign_s = limits, foreign_s

    def submit(self, intent: Intent) -> Decision:
        """Decide on an agent's intent, once per key: the same key again gets the first decision.

        Of what exceeds its strategy nothing is kept: it waits for approval."""
        check_intent(intent)
        seen = self.look(intent)
        with self._store.write() as connection:
            if (earlier := intent_store.find_by_key(connection, intent)) is not None:
                return decide_duplicate(earlier.action, intent, self._clock())
            if intent_store.find(connection, intent.id) is not None:
                raise InvalidError(f"The intent id {intent.id!r} is already used. Give each intent its own id.")
            bounded, excess = bound_intent(intent, self._find_limits(connection, intent))
            return self.admit(connection, bounded, seen, excess=excess)

    def admit(
        self,
        connection: Connection,
        intent: Intent,
        seen: Mapping[str, Any],
        *,
        excess: str | None = None,
        request: dict[str, Any] | None = None,
    ) -> Decision:
        """Store an intent and decide on it, with all that wait for the same target, within a transaction.

        ``seen``: the observed fields of the target. ``excess``: how it exceeded its strategy. ``request``: a person's.
        """
        waits = Decision(intent=intent.id, verdict="queue", reason=_RECEIVED, at=self._clock())
        action = Action(id=intent.id, intent=intent, state="pending", decision=waits, began=None, ended=None)
        row = ActionRow(action=action, request=request)
        intent_store.add(connection, row)
        excesses = {} if excess is None else {intent.id: excess}
        decision = self._decide(connection, get_place(intent), seen, [row], excesses)[intent.id]
        if decision.verdict == "approve" and intent_store.find(connection, intent.id) is not None:
            for waiting in intent_store.list_waiting(connection, get_place(intent), verdicts=["approve"]):
                replaced = supersede(intent, waiting.intent, decision.at) if waiting.id != intent.id else None
                if replaced is not None:
                    self._transition(connection, waiting, replaced)
        return decision

    def decide_again(self, intent: Intent) -> None:
        seen = self.look(intent)
        with self._store.write() as connection:
            self._decide(connection, get_place(intent), seen, [])

    def withdraw_needless(self, place: str) -> None:
        """Refuse the intents that wait for a person and would change nothing on their target any more."""
        with self._store.read() as connection:
            waiting = intent_store.list_waiting(connection, place, verdicts=_ASKS)
        for seen, asked in [(self.look(row.intent), row) for row in waiting]:
            needless = check_effect(asked.intent, ArbitrationContext(now=self._clock(), observed=seen))
            if needless is None:
                continue
            with self._store.write() as connection:
                row = intent_store.find(connection, asked.id)
                if row is not None and row.action.state == "pending" and row.action.decision == asked.action.decision:
                    self._transition(connection, row, needless)

    def get(self, id: str) -> ActionRow:
        with self._store.read() as connection:
            return intent_store.get(connection, id)

    def approve(self, id: str, *, by: str, reason: str = "") -> Action:
        """Record a person's approval, and decide again: it overrides autonomy and another client's value."""
        seen = self.look(self.get(id).intent)
        with self._store.write() as connection:
            row = intent_store.get(connection, id)
            if row.action.decision.verdict in {"act", "queue"}:
                raise UsageError(f"The intent {id!r} needs no approval (state: {_describe_state(row.action)}).")
            approved = row.replace(
                action={"state": "pending", "ended": None, "approved_by": by, "approved_why": reason}, approved_by=by
            )
            intent_store.put(connection, approved)
            intent_store.append_trail(connection, id, self._clock(), append_reason(f"{by} approved it", reason))
            self._decide(connection, get_place(row.intent), seen, [approved])
            return intent_store.get(connection, id).action

    def refuse(self, id: str, *, by: str, reason: str = "") -> Action:
        with self._store.write() as connection:
            row = intent_store.get(connection, id)
            if row.action.state != "pending" or row.action.began is not None:
                advice = f" Revert it: scanflow approve {id} --revert" if row.action.state == "succeeded" else ""
                if row.action.state == "refused" and row.action.decision.reason:
                    advice = f" {end_sentence(row.action.decision.reason)}"
                raise UsageError(f"The intent {id!r} cannot be refused (state: {_describe_state(row.action)}).{advice}")
            text = append_reason(f"{by} refused it", reason)
            decision = Decision(intent=id, verdict="refuse", reason=text, by=by, at=self._clock())
            self._transition(connection, row, decision)
            return intent_store.get(connection, id).action

    def _decide(
        self,
        connection: Connection,
        place: str,
        seen: Mapping[str, Any],
        more: Iterable[ActionRow],
        excesses: Mapping[str, str] | None = None,
    ) -> dict[str, Decision]:
        waiting = {row.id: row for row in [*intent_store.list_waiting(connection, place), *more]}
        fresh = {row.id: row for row in waiting.values() if row.action.began is None}
        if not fresh:
            return {}
        now = self._clock()
        wanted = [row.intent for row in fresh.values()]
        since = now - max(compute_lookback_s(intent) for intent in wanted)
        history = intent_store.load_history(connection, wanted, since=since, refused_since=now - REFUSED_S)
        history = [action for action in history if action.id not in fresh]
        fields = _select_current(connection, intent_store.load_fields(connection, place), seen.get(CREATED_FIELD))
        at_work = intent_store.list_busy_ids(connection, place)
        steady = {name: field for name, field in fields.items() if field.intent not in at_work}
        foreign = self._update_foreign(connection, place, steady, seen, now)
        world = ArbitrationContext(
            now=now,
            history=history,
            owners=self._list_owners(place, fields),
            observed=seen,
            last_written=_collect_written(steady),
            foreign_since=foreign,
            foreign_s=self._foreign_s,
            persons_changes=_collect_persons_changes(place, steady, foreign),
            approved={row.id for row in fresh.values() if row.approved_by is not None},
            approvals={row.id: _format_approval(row) for row in fresh.values() if row.approved_by is not None},
            at_work=at_work,
            excesses=excesses or {},
        )
        decisions = arbitrate_all(wanted, world)
        for id, decision in decisions.items():
            decisions[id] = self._repeat(connection, fresh[id], decision) or decision
            if decisions[id] is decision:
                self._transition(connection, fresh[id], decision)
        return decisions

    def _repeat(self, connection: Connection, row: ActionRow, decision: Decision) -> Decision | None:
        """Count a new intent's decision with the earlier one that it repeats, and return it; None: it repeats none."""
        if row.action.decision.reason != _RECEIVED:
            return None
        newest = intent_store.list_newest(connection, row.intent, limit=_MAX_NEWEST)
        earlier = find_repeated([other.action for other in newest], row.intent, decision)
        if earlier is None:
            return None
        change = {"repeats": earlier.repeats + 1, "repeated": decision.at}
        intent_store.put(connection, intent_store.get(connection, earlier.id).replace(action=change))
        intent_store.delete(connection, row.id)
        return repeat_decision(earlier, decision)

    def _transition(self, connection: Connection, row: ActionRow, decision: Decision) -> None:
        before = row.action.decision
        news = (before.verdict, before.winner) != (decision.verdict, decision.winner) or before.reason == _RECEIVED
        waits = decision.verdict in _WAITS
        state: ActionState = "pending" if waits else "observed" if decision.verdict == "observe" else "refused"
        after = row.replace(
            action={"decision": decision, "state": state, "ended": None if waits else decision.at},
            due=decision.retry_at if decision.verdict == "queue" else None,
        )
        intent_store.put(connection, after)
        if news:
            intent_store.append_trail(connection, row.id, decision.at, f"{decision.verdict}: {decision.reason}")
            data = {"id": row.id, "verdict": decision.verdict, "reason": decision.reason}
            record_intent_event(connection, row.intent, "intent", decision.at, **data)

    def _update_foreign(
        self, connection: Connection, place: str, fields: Mapping[str, FieldRow], seen: Mapping[str, Any], now: float
    ) -> dict[str, float]:
        """Record and return since when fields differ from the values that were last written."""
        since: dict[str, float] = {}
        strange = list_foreign_fields(tuple(fields), observed=seen, last_written=_collect_written(fields))
        for name, field in fields.items():
            if name not in seen:
                continue
            value = {"value": seen[name]} if name in strange else None
            if value is None or field.foreign_value is None or not are_equal(value, field.foreign_value):
                foreign_since = None if value is None else now
            else:
                foreign_since = field.foreign_since
            if (foreign_since, value) != (field.foreign_since, field.foreign_value):
                changed = field.model_copy(update={"foreign_since": foreign_since, "foreign_value": value})
                intent_store.put_field(connection, place, changed)
            if foreign_since is not None:
                since[name] = foreign_since
        return since

    def _list_owners(self, place: str, fields: Mapping[str, FieldRow]) -> dict[str, Owner]:
        lasting_fields = {name: field for name, field in fields.items() if is_lasting(place, name)}
        return {name: owner for name, field in lasting_fields.items() if (owner := self._find_owner(field)) is not None}

    def _find_owner(self, field: FieldRow) -> Owner | None:
        if field.strategy is None or field.intent is None:
            return None
        lives = field.app is not None and field.agent is not None and self._alive(field.app, field.agent)
        return Owner(
            strategy=field.strategy, intent=field.intent, priority=field.priority, until=field.until, lives=lives
        )


def check_intent(intent: Intent) -> None:
    act = parse_act(intent.primitive, intent.arguments)
    if act.target != intent.target:
        raise InvalidError(
            f"The intent {intent.id!r} has the target {intent.target!r}, but {act} has the target {act.target!r}."
        )
    if unsaid := [field for field in act.fields if field not in intent.fields]:
        raise InvalidError(
            f"The intent {intent.id!r} does not list {unsaid[0]!r}, which {act} writes. Add it to 'fields'."
        )


def record_intent_event(connection: Connection, intent: Intent, type: str, at: float, **data: Any) -> None:
    """Record an event about an intent's target."""
    whose = {"by": intent.agent} if intent.source == "person" else {"agent": intent.agent, "strategy": intent.strategy}
    about = {**whose, "primitive": intent.primitive, **data}
    event_store.record(connection, type, intent.target, at=at, app=intent.app, team=intent.team, data=about)


def _select_current(connection: Connection, fields: Mapping[str, FieldRow], since: float | None) -> dict[str, FieldRow]:
    """Return the fields of a target created at ``since``, without those written to an earlier target of its name."""
    if since is None:
        return dict(fields)
    ended = {field.intent: _get_end(connection, field.intent) for field in fields.values() if field.intent is not None}
    return {name: field for name, field in fields.items() if field.intent is None or ended[field.intent] >= since}


def _get_end(connection: Connection, id: str) -> float:
    """Return when an action ended; one that deploys a service ends after the service exists."""
    row = intent_store.find(connection, id)
    if row is None:
        return 0.0
    return math.inf if row.action.ended is None else row.action.ended


def _collect_written(fields: Mapping[str, FieldRow]) -> dict[str, Any]:
    return {name: field.written["value"] for name, field in fields.items() if field.written is not None}


def _format_approval(row: ActionRow) -> str:
    why = " ".join(row.action.approved_why.split())
    return f"{row.approved_by} (a person)" + (f": {why}" if why else "")


def _collect_persons_changes(
    place: str, fields: Mapping[str, FieldRow], foreign: Mapping[str, float]
) -> dict[str, PersonsChange]:
    """Return the fields that a person's command wrote last, and that nobody else changed since."""
    return {
        name: PersonsChange(person=field.agent, intent=field.intent, at=field.until)
        for name, field in fields.items()
        if field.strategy is None and field.agent is not None and field.intent is not None
        if is_lasting(place, name) and name not in foreign
    }


def _describe_state(action: Action) -> str:
    if action.state == "pending":
        return {"act": "about to start", "queue": "queued"}.get(action.decision.verdict, "waiting")
    return action.state


def append_reason(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else f"{what}."
