"""Carrying actions out, each step of them written down before and after, so that a kill at any instant neither loses
nor repeats one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from scanflow.agent.primitive_context import REVERT, PrimitiveResult
from scanflow.agent.records import Action, Intent, PrimitiveCall
from scanflow.errors import ScanflowError, UnavailableError, UsageError
from scanflow_server.arbiter.identity import overlapping, place_of, related, seconds, strategy_of, when
from scanflow_server.arbiter.intent_service import Look, tell_of
from scanflow_server.arbiter.objections import LEASE_S
from scanflow_server.store import intents as kept
from scanflow_server.store.base import Store
from scanflow_server.store.intents import ActionRow, FieldRow
from scanflow_server.store.keys import OWN

_log = logging.getLogger(__name__)

MOST_TRIES = 5
"""How often an action is begun that is cut off, or meets what does not answer."""

WAITS_S = (1.0, 2.0, 5.0, 15.0)

Perform = Callable[[Intent, PrimitiveCall, str, PrimitiveCall | None, Callable[[PrimitiveCall], None]], PrimitiveResult]
"""Carry out a call for an intent: with an idempotency key, the inverse that an earlier try noted, a place for it."""

Measure = Callable[[Intent, str], float | None]
"""Return what a metric is for who wants that intent; None: nobody knows."""

_NOBODYS = {"strategy": None, "app": None, "agent": None, "intent": None, "priority": 0, "until": 0.0}


class Actor:
    """Begins, ends and takes back actions. Nothing here decides; two calls for one target do not overlap."""

    def __init__(
        self, store: Store, perform: Perform, *, look: Look, measure: Measure, clock: Callable[[], float]
    ) -> None:
        self._store, self._perform, self._look, self._measure, self._clock = store, perform, look, measure, clock

    def carry_out(self, id: str) -> None:
        stored = self._begin(id)
        if stored is None:
            return
        call = PrimitiveCall(primitive=stored.intent.primitive, arguments=stored.intent.arguments)
        done = self._try(stored, call, f"{OWN}{id}", stored.action.inverse, lambda back: self._note(id, back))
        if done is not None:
            self._succeed(id, done)

    def take_back(self, id: str) -> None:
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        if stored is None or stored.reverting is None or stored.action.inverse is None:
            return
        if self._try(stored, stored.action.inverse, f"{OWN}{id}{REVERT}", None, lambda _: None) is not None:
            self._taken_back(id)

    def _try(
        self,
        stored: ActionRow,
        call: PrimitiveCall,
        key: str,
        noted: PrimitiveCall | None,
        note: Callable[[PrimitiveCall], None],
    ) -> PrimitiveResult | None:
        failed = self._fail if stored.reverting is None else self._not_taken_back
        try:
            return self._perform(stored.intent, call, key, noted, note)
        except UnavailableError as error:
            self._put_off(stored.id, error)
        except ScanflowError as error:
            failed(stored.id, str(error))
        except Exception as error:  # noqa: BLE001  one action's defect ends that action, and not the engine
            _log.exception("The action %s failed", stored.id)
            why = f"{type(error).__name__}: {error}. This is a defect of scanflow; the server's log has more."
            failed(stored.id, why)
        return None

    def ask_back(self, id: str, *, by: str, reason: str = "") -> Action:
        with self._store.write() as connection:
            stored = kept.find(connection, id)
            action = stored.action
            if action.state != "succeeded":
                raise UsageError(
                    f"The action {id!r} cannot be taken back: it is {action.state}. Only what is done can."
                )
            if action.inverse is None:
                raise UsageError(f"The action {id!r} cannot be taken back: nothing undoes {action.intent.primitive}.")
            for newer in _newer(connection, action):
                if names := overlapping(newer.intent, action.intent):
                    raise UsageError(
                        f"The action {id!r} cannot be taken back: {newer.id!r} has written {names[0]!r} of "
                        f"{action.intent.target!r} since. Take that back first."
                    )
            change = {"reverted_by": by}  # who reads the action sees by it that it does not stand
            kept.put(connection, stored.changed(action=change, reverting=by, guard_until=None, due=None, tries=0))
            said = f"it is taken back by {by}"
            kept.say(connection, id, self._clock(), f"{said}: {reason}" if reason else f"{said}.")
            return action

    def guard_ends(self, id: str, said: str = "the guard saw nothing worse") -> None:
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            if stored is not None and stored.guard_until is not None:
                kept.put(connection, stored.changed(guard_until=None))
                kept.say(connection, id, self._clock(), said)

    def _begin(self, id: str) -> ActionRow | None:
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        if stored is None:
            return None
        guard, before = stored.intent.guard, stored.guard_before
        if guard is not None and before is None and stored.tries == 0:
            before = self._measure(stored.intent, guard.metric)
        now = self._clock()
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            if stored is None or stored.action.decision.verdict != "act":
                return None
            if stored.action.state not in {"pending", "running"}:
                return None
            if stored.tries < MOST_TRIES:
                began = now if stored.action.began is None else stored.action.began
                change = {"state": "running", "began": began}
                running = stored.changed(action=change, tries=stored.tries + 1, guard_before=before, due=None)
                kept.put(connection, running)
                said = "it began" if stored.tries == 0 else f"it began again, for the {stored.tries + 1}. time"
                kept.say(connection, id, now, said)
                self._own(connection, stored.intent, now)
                return running
        self._lose(stored, f"It was cut off {stored.tries} times")
        return None

    def _own(self, connection: Any, intent: Intent, now: float) -> None:
        if intent.source == "person":
            return  # what a person wrote is found as a foreign value, and left alone as such
        place, owned = place_of(intent), _owned(intent, since=now)
        known = kept.fields_at(connection, place)
        for name in intent.fields:
            field = known.get(name, FieldRow(field=name)).model_copy(update=owned)
            kept.put_field(connection, place, field)

    def _note(self, id: str, inverse: PrimitiveCall) -> None:
        with self._store.write() as connection:
            kept.put(connection, kept.find(connection, id).changed(action={"inverse": inverse}))

    def _succeed(self, id: str, done: PrimitiveResult) -> None:
        stored = self._find(id)
        guard, inverse, said = stored.intent.guard, stored.action.inverse or done.inverse, [_done(done.result)]
        until = None
        if guard is not None and inverse is not None:
            until = self._clock() + guard.within_s
            value = "unknown" if stored.guard_before is None else f"{stored.guard_before:.6g}"
            said.append(f"the guard watches {guard.metric}, which was {value}, for {seconds(guard.within_s)}")
        change = {"state": "succeeded", "result": done.result, "error": None, "inverse": inverse}
        told = {"result": done.result}
        self._over(stored, "succeeded", said, change, told, seen=self._look(stored.intent), guard_until=until)

    def _fail(self, id: str, why: str) -> None:
        change = {"state": "failed", "error": why}
        self._over(self._find(id), "failed", [f"it failed: {why}"], change, {"error": why}, give_back=True)

    def _lose(self, stored: ActionRow, what: str) -> None:
        why = (
            f"{what}, and whether it took effect is not known. Look at {stored.intent.target!r}, and have the strategy "
            "fire again."
        )
        self._over(stored, "failed", [why], {"state": "lost", "error": why}, {"error": why}, seen={})

    def _taken_back(self, id: str) -> None:
        stored = self._find(id)
        by = stored.reverting
        change = {"state": "reverted", "reverted_by": by, "error": None}
        seen = self._look(stored.intent)
        self._over(stored, "reverted", [f"it is taken back, by {by}"], change, {"by": by}, seen=seen, give_back=True)

    def _not_taken_back(self, id: str, why: str) -> None:
        stored = self._find(id)
        said, change = [f"it could not be taken back: {why}"], {"error": why, "reverted_by": None}
        self._over(stored, "failed", said, change, {"error": why}, seen=self._look(stored.intent))

    def _over(
        self,
        stored: ActionRow,
        event: str,
        said: Iterable[str],
        change: dict[str, Any],
        told: dict[str, Any],
        *,
        seen: Mapping[str, Any] | None = None,
        give_back: bool = False,
        guard_until: float | None = None,
    ) -> None:
        """Write down how an attempt ended.

        ``seen``: the target's fields as the attempt left them; None: it has written none. ``give_back``: it does not
        stand, so its fields are not its own any more.
        """
        now = self._clock()
        ended = {"ended": now} if "state" in change else {}
        with self._store.write() as connection:
            after = stored.changed(action={**change, **ended}, reverting=None, due=None, guard_until=guard_until)
            kept.put(connection, after)
            for text in said:
                kept.say(connection, stored.id, now, text)
            if seen is not None:
                self._written(connection, stored.intent, seen)
            if give_back:
                self._give_back(connection, stored.intent)
            tell_of(connection, stored.intent, f"action.{event}", now, id=stored.id, **told)

    def _find(self, id: str) -> ActionRow:
        with self._store.read() as connection:
            return kept.find(connection, id)

    def _written(self, connection: Any, intent: Intent, seen: Any) -> None:
        if intent.source == "person":
            return
        place = place_of(intent)
        for name, field in kept.fields_at(connection, place).items():
            if any(related(name, own) for own in intent.fields):
                value = (
                    {"value": seen[name]} if name in seen else None
                )  # of the whole of which it wrote a part: unknown
                update = {"written": value, "foreign_value": None, "foreign_since": None}
                kept.put_field(connection, place, field.model_copy(update=update))

    def _give_back(self, connection: Any, intent: Intent) -> None:
        """Let the fields that an action no longer stands for be theirs whose actions do, or nobody's."""
        place = place_of(intent)
        there = [one for one in kept.in_effect(connection, place) if one.id != intent.id]
        for name, field in kept.fields_at(connection, place).items():
            if field.intent != intent.id:
                continue
            last = next((one for one in there if name in one.intent.fields), None)
            owned = _NOBODYS if last is None else _owned(last.intent, since=when(last))
            kept.put_field(connection, place, field.model_copy(update=owned))

    def _put_off(self, id: str, error: Exception) -> None:
        """Try again later, as what does not answer may; for ever it is not tried."""
        stored = self._find(id)
        if stored.tries >= MOST_TRIES:
            if stored.reverting is not None:
                self._not_taken_back(id, str(error))
            else:  # what did not answer may have done it all the same
                self._lose(stored, f"It was tried {stored.tries} times ({error})")
            return
        tries = stored.tries + (1 if stored.reverting is not None else 0)
        wait_s = WAITS_S[min(max(tries, 1), len(WAITS_S)) - 1]
        # What is done and is being taken back has no error of its own, before it is known that it cannot be.
        change = {"state": "pending", "error": str(error)} if stored.reverting is None else {}
        now = self._clock()
        with self._store.write() as connection:
            kept.put(connection, stored.changed(action=change, due=now + wait_s, tries=tries))
            kept.say(connection, id, now, f"it is tried again in {seconds(wait_s)}: {error}")


def _owned(intent: Intent, *, since: float) -> dict[str, Any]:
    return {
        "strategy": strategy_of(intent),
        "intent": intent.id,
        "priority": intent.priority,
        "until": since + LEASE_S,
        "app": intent.app,
        "agent": intent.agent,
    }


def _newer(connection: Any, action: Action) -> list[Action]:
    there = kept.in_effect(connection, place_of(action.intent), since=when(action))
    return list(takewhile(lambda one: one.id != action.id, there))


def _done(result: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r:.60}" for name, value in result.items())
    return f"it is done: {text or 'nothing to tell'}"
