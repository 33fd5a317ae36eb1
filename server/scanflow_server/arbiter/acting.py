"""Carry out actions. Each step is recorded before and after it, so that a kill at any instant neither loses nor repeats
an action."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from scanflow.agent.agent_records import Action, Intent, PrimitiveCall
from scanflow.agent.primitive_context import REVERT, PrimitiveResult
from scanflow.errors import ScanflowError, UnavailableError, UsageError
from scanflow_server.arbiter.arbitration_rules import LEASE_S, are_equal
from scanflow_server.arbiter.intent_service import ReadState, append_reason, record_intent_event
from scanflow_server.intent_identity import (
    are_related,
    format_seconds,
    get_place,
    get_start_time,
    list_common_fields,
    qualify_strategy,
)
from scanflow_server.service_drivers import ShutdownError
from scanflow_server.store import intent_store
from scanflow_server.store.base import Store
from scanflow_server.store.intent_store import ActionRow, FieldRow
from scanflow_server.store.keys import OWN_PREFIX

_log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""The most attempts of an action that is interrupted, or fails because an external system does not respond."""

WAITS_S = (1.0, 2.0, 5.0, 15.0)

Perform = Callable[[Intent, PrimitiveCall, str, PrimitiveCall | None, Callable[[PrimitiveCall], None]], PrimitiveResult]
"""Carry out a call for an intent, given its idempotency key, the inverse noted by an earlier attempt, and a callback
that notes the inverse."""

Measure = Callable[[Intent, str], float | None]
"""Return the value of a metric for the intent's client; None if it is unknown."""

_NOBODYS = {"strategy": None, "app": None, "agent": None, "intent": None, "priority": 0, "until": 0.0}


class Actor:
    """Starts, finishes and reverts actions. Decides nothing; two calls for one target do not overlap."""

    def __init__(
        self, store: Store, perform: Perform, *, look: ReadState, measure: Measure, clock: Callable[[], float]
    ) -> None:
        self._store, self._perform, self._look, self._measure, self._clock = store, perform, look, measure, clock

    def carry_out(self, id: str) -> None:
        row = self._begin(id)
        if row is None:
            return
        call = PrimitiveCall(primitive=row.intent.primitive, arguments=row.intent.arguments)
        done = self._try(row, call, f"{OWN_PREFIX}{id}", row.action.inverse, lambda back: self._note_inverse(id, back))
        if done is not None:
            self._succeed(id, done)

    def revert(self, id: str) -> None:
        with self._store.read() as connection:
            row = intent_store.find(connection, id)
        if row is None or row.reverting is None or row.action.inverse is None:
            return
        if self._try(row, row.action.inverse, f"{OWN_PREFIX}{id}{REVERT}", None, lambda _: None) is not None:
            self._finish_revert(id)

    def _try(
        self,
        row: ActionRow,
        call: PrimitiveCall,
        key: str,
        inverse: PrimitiveCall | None,
        note: Callable[[PrimitiveCall], None],
    ) -> PrimitiveResult | None:
        failed = self._fail if row.reverting is None else self._fail_revert
        try:
            return self._perform(row.intent, call, key, inverse, note)
        except ShutdownError:
            raise
        except UnavailableError as error:
            self._reschedule(row.id, error)
        except ScanflowError as error:
            failed(row.id, str(error))
        except Exception as error:  # noqa: BLE001  a defect ends the action, not the engine
            _log.exception("The action %s failed", row.id)
            why = f"{type(error).__name__}: {error}. This is a bug in scanflow. See the server's log."
            failed(row.id, why)
        return None

    def request_revert(self, id: str, *, by: str, reason: str) -> None:
        with self._store.write() as connection:
            row = intent_store.get(connection, id)
            action = row.action
            if action.state != "succeeded":
                raise UsageError(
                    f"The action {id!r} cannot be reverted: it is {action.state}. Only a succeeded action can be "
                    "reverted."
                )
            if action.inverse is None:
                raise UsageError(f"The action {id!r} cannot be reverted: {action.intent.primitive} has no inverse.")
            for newer in _list_newer_actions(connection, action):
                if names := list_common_fields(newer.intent, action.intent):
                    raise UsageError(
                        f"The action {id!r} cannot be reverted: the action {newer.id!r} has changed {names[0]!r} of "
                        f"{action.intent.target!r} since. Revert that action first."
                    )
            change = {"reverted_by": by}  # shows readers that it is no longer in effect
            intent_store.put(connection, row.replace(action=change, reverting=by, guard_until=None, due=None, tries=0))
            text = append_reason(f"{by} requested the revert", reason)
            intent_store.append_trail(connection, id, self._clock(), text)

    def end_guard(self, id: str, note: str = "the guard found no regression") -> None:
        with self._store.write() as connection:
            row = intent_store.find(connection, id)
            if row is not None and row.guard_until is not None:
                intent_store.put(connection, row.replace(guard_until=None))
                intent_store.append_trail(connection, id, self._clock(), note)

    def _begin(self, id: str) -> ActionRow | None:
        with self._store.read() as connection:
            row = intent_store.find(connection, id)
        if row is None:
            return None
        guard, before = row.intent.guard, row.guard_before
        if guard is not None and before is None and row.tries == 0:
            before = self._measure(row.intent, guard.metric)
        now = self._clock()
        with self._store.write() as connection:
            row = intent_store.find(connection, id)
            if row is None or row.action.decision.verdict != "act":
                return None
            if row.action.state not in {"pending", "running"}:
                return None
            if not _is_given_up(row):
                began = now if row.action.began is None else row.action.began
                change = {"state": "running", "began": began}
                running = row.replace(action=change, tries=row.tries + 1, guard_before=before, due=None)
                intent_store.put(connection, running)
                note = "started" if row.tries == 0 else f"started again, attempt {row.tries + 1}"
                intent_store.append_trail(connection, id, now, note)
                self._claim_fields(connection, row.intent, now)
                return running
        self._lose(row, f"The action was interrupted {row.tries} times")
        return None

    def _claim_fields(self, connection: Any, intent: Intent, now: float) -> None:
        if intent.source == "person":
            return  # a person's value is treated as a foreign one
        place, owned = get_place(intent), _make_ownership(intent, since=now)
        fields_by_name = intent_store.load_fields(connection, place)
        for name in intent.fields:
            field = fields_by_name.get(name, FieldRow(field=name)).model_copy(update=owned)
            intent_store.put_field(connection, place, field)

    def _note_inverse(self, id: str, inverse: PrimitiveCall) -> None:
        with self._store.write() as connection:
            intent_store.put(connection, intent_store.get(connection, id).replace(action={"inverse": inverse}))

    def _succeed(self, id: str, done: PrimitiveResult) -> None:
        row = self._find(id)
        guard, inverse, notes = row.intent.guard, row.action.inverse or done.inverse, [_format_result(done.result)]
        until = None
        if guard is not None and inverse is not None:
            until = self._clock() + guard.within_s
            value = "unknown" if row.guard_before is None else f"{row.guard_before:.6g}"
            notes.append(f"the guard watches {guard.metric}, which was {value}, for {format_seconds(guard.within_s)}")
        change = {"state": "succeeded", "result": done.result, "error": None, "inverse": inverse}
        data = {"result": done.result}
        self._finish(row, "succeeded", notes, change, data, seen=self._look(row.intent), guard_until=until)

    def _fail(self, id: str, why: str) -> None:
        change = {"state": "failed", "error": why}
        self._finish(self._find(id), "failed", [f"failed: {why}"], change, {"error": why}, release=True)

    def _lose(self, row: ActionRow, what: str) -> None:
        why = (
            f"{what}, and whether it took effect is unknown. Check {row.intent.target!r}, then request the action "
            "again."
        )
        self._finish(row, "failed", [why], {"state": "lost", "error": why}, {"error": why}, seen={})

    def _finish_revert(self, id: str) -> None:
        row = self._find(id)
        by = row.reverting
        change = {"state": "reverted", "reverted_by": by, "error": None}
        seen = self._look(row.intent)
        self._finish(row, "reverted", [f"reverted by {by}"], change, {"by": by}, seen=seen, release=True)

    def _fail_revert(self, id: str, why: str) -> None:
        row = self._find(id)
        notes, change = [f"the revert failed: {why}"], {"error": why, "reverted_by": None}
        self._finish(row, "failed", notes, change, {"error": why}, seen=self._look(row.intent))

    def _finish(
        self,
        row: ActionRow,
        event: str,
        notes: Iterable[str],
        change: dict[str, Any],
        data: dict[str, Any],
        *,
        seen: Mapping[str, Any] | None = None,
        release: bool = False,
        guard_until: float | None = None,
    ) -> None:
        """Record how an attempt ended.

        ``seen``: the target's fields after the attempt; None: it wrote none. ``release``: the action is not in effect,
        so it no longer owns its fields.
        """
        now = self._clock()
        ended = {"ended": now} if "state" in change else {}
        with self._store.write() as connection:
            after = row.replace(action={**change, **ended}, reverting=None, due=None, guard_until=guard_until)
            intent_store.put(connection, after)
            for text in notes:
                intent_store.append_trail(connection, row.id, now, text)
            if seen is not None:
                self._record_written(connection, row.intent, seen)
            if release:
                self._release_fields(connection, row.intent)
            record_intent_event(connection, row.intent, f"action.{event}", now, id=row.id, **data)

    def _find(self, id: str) -> ActionRow:
        with self._store.read() as connection:
            return intent_store.get(connection, id)

    def _record_written(self, connection: Any, intent: Intent, seen: Any) -> None:
        place = get_place(intent)
        if intent.source == "person":
            self._record_persons_change(connection, place, intent, seen)
            return
        for name, field in intent_store.load_fields(connection, place).items():
            if any(are_related(name, own) for own in intent.fields):
                value = {"value": seen[name]} if name in seen else None  # None: unknown, as of a partly written field
                update = {"written": value, "foreign_value": None, "foreign_since": None}
                intent_store.put_field(connection, place, field.model_copy(update=update))

    def _record_persons_change(self, connection: Any, place: str, intent: Intent, seen: Mapping[str, Any]) -> None:
        """Note who changed fields that agents write too: nobody owns them then, and the value is no stranger's."""
        for name, field in intent_store.load_fields(connection, place).items():
            if name in seen and any(are_related(name, own) for own in intent.fields):
                value = {"value": seen[name]}
                if field.written is not None and are_equal(value, field.written):
                    continue  # the command left it as it was
                who = {"agent": intent.agent, "intent": intent.id, "until": self._clock()}
                changes = {**_NOBODYS, **who, "written": value, "foreign_value": None, "foreign_since": None}
                intent_store.put_field(connection, place, field.model_copy(update=changes))

    def _release_fields(self, connection: Any, intent: Intent) -> None:
        """Assign the fields of an action that is not in effect to the newest actions in effect; without any, to no
        owner."""
        place = get_place(intent)
        there = [action for action in intent_store.list_in_effect(connection, place) if action.id != intent.id]
        for name, field in intent_store.load_fields(connection, place).items():
            if field.intent != intent.id:
                continue
            last = next((action for action in there if name in action.intent.fields), None)
            owned = _NOBODYS if last is None else _make_ownership(last.intent, since=get_start_time(last))
            intent_store.put_field(connection, place, field.model_copy(update=owned))

    def _reschedule(self, id: str, error: Exception) -> None:
        """Reschedule an action after an outage, up to ``MAX_ATTEMPTS`` attempts."""
        row = self._find(id)
        if _is_given_up(row):
            if row.reverting is not None:
                self._fail_revert(id, str(error))
            else:  # it may have taken effect without an answer
                self._lose(row, f"The action was attempted {row.tries} times ({error})")
            return
        tries = row.tries + (1 if row.reverting is not None else 0)
        wait_s = WAITS_S[min(max(tries, 1), len(WAITS_S)) - 1]
        # An action that is being reverted has no error until the revert fails.
        change = {"state": "pending", "error": str(error)} if row.reverting is None else {}
        now = self._clock()
        with self._store.write() as connection:
            intent_store.put(connection, row.replace(action=change, due=now + wait_s, tries=tries))
            intent_store.append_trail(connection, id, now, f"will be retried in {format_seconds(wait_s)}: {error}")


def _is_given_up(row: ActionRow) -> bool:
    """Whether an action is attempted no more. A person's is one change, which goes on without the server."""
    return row.tries >= MAX_ATTEMPTS and row.intent.source == "agent"


def _make_ownership(intent: Intent, *, since: float) -> dict[str, Any]:
    return {
        "strategy": qualify_strategy(intent),
        "intent": intent.id,
        "priority": intent.priority,
        "until": since + LEASE_S,
        "app": intent.app,
        "agent": intent.agent,
    }


def _list_newer_actions(connection: Any, action: Action) -> list[Action]:
    there = intent_store.list_in_effect(connection, get_place(action.intent), since=get_start_time(action))
    return list(takewhile(lambda newer: newer.id != action.id, there))


def _format_result(result: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r:.60}" for name, value in result.items())
    return f"succeeded: {text}" if text else "succeeded"
