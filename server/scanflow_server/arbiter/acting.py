"""Carrying actions out, each step of them written down before and after, so that a kill at any instant neither loses
nor repeats one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from scanflow.agent.primitive_model import PrimitiveResult
from scanflow.agent.records import Action, Intent, PrimitiveCall
from scanflow.errors import ScanflowError, UnavailableError, UsageError
from scanflow_server.arbiter.identity import overlapping, place_of, seconds, when
from scanflow_server.arbiter.intent_service import event_of, not_found
from scanflow_server.arbiter.look import Look, Measure
from scanflow_server.arbiter.owner import LEASE_S, owner_from
from scanflow_server.primitives.action_context import REVERT
from scanflow_server.store import events
from scanflow_server.store import intents as kept
from scanflow_server.store.base import Store
from scanflow_server.store.intents import ActionRow, FieldRow
from scanflow_server.store.keys import OWN

_log = logging.getLogger(__name__)

MOST_TRIES = 5
"""How often an action is begun that is cut off, or meets what does not answer."""

WAITS_S = (1.0, 2.0, 5.0, 15.0)
"""Pauses between those."""

Perform = Callable[[Intent, PrimitiveCall, str, PrimitiveCall | None, Callable[[PrimitiveCall], None]], PrimitiveResult]
"""Carry out a call for an intent: with an idempotency key, the inverse that an earlier try noted, a place for it."""


_NOBODYS = {"strategy": None, "app": None, "agent": None, "intent": None, "priority": 0, "until": 0.0}
"""Of a field that no standing action has written."""


class Actor:
    """Begins, ends and takes back actions. Nothing here decides; two calls for one target do not overlap."""

    def __init__(
        self,
        store: Store,
        perform: Perform,
        *,
        look: Look,
        measure: Measure,
        clock: Callable[[], float],
        lease_s: float = LEASE_S,
    ) -> None:
        self._store, self._perform, self._look, self._measure = store, perform, look, measure
        self._clock, self._lease_s = clock, lease_s

    def carry_out(self, id: str) -> None:
        """Begin an action, or go on with one that was cut off, and write down how it ended."""
        stored = self._begin(id)
        if stored is None:
            return
        intent = stored.intent
        call = PrimitiveCall(primitive=intent.primitive, arguments=intent.arguments)
        try:
            done = self._perform(intent, call, f"{OWN}{id}", stored.action.inverse, lambda back: self._note(id, back))
        except UnavailableError as error:
            self._put_off(id, error)
        except ScanflowError as error:
            self._fail(id, str(error))
        except Exception as error:  # noqa: BLE001  one action's defect ends that action, and not the engine
            _log.exception("The action %s failed", id)
            self._fail(id, f"{type(error).__name__}: {error}. This is a defect of scanflow; the server's log has more.")
        else:
            self._succeed(id, done)

    def take_back(self, id: str) -> None:
        """Carry out the inverse of an action that is marked to be taken back."""
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        if stored is None or stored.reverting is None or stored.action.inverse is None:
            return
        intent = stored.intent
        try:
            self._perform(intent, stored.action.inverse, f"{OWN}{id}{REVERT}", None, lambda _: None)
        except UnavailableError as error:
            self._put_off(id, error)
        except ScanflowError as error:
            self._not_taken_back(id, str(error))
        except Exception as error:  # noqa: BLE001  as above
            _log.exception("The action %s could not be taken back", id)
            self._not_taken_back(id, f"{type(error).__name__}: {error}")
        else:
            self._taken_back(id)

    def ask_back(self, id: str, *, by: str, reason: str = "") -> Action:
        """Mark an action to be taken back.

        Raises:
            NotFoundError: there is no such action.
            UsageError: it was not done, nothing undoes it, or somebody has written over it since.
        """
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            if stored is None:
                raise not_found(id)
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
        """Note that the guard watches no more, and why."""
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            if stored is not None and stored.guard_until is not None:
                kept.put(connection, stored.changed(guard_until=None))
                kept.say(connection, id, self._clock(), said)

    def _begin(self, id: str) -> ActionRow | None:
        """Write down that an action begins; None: it is not to be begun any more."""
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        if stored is None:
            return None
        guard = stored.intent.guard
        before = stored.guard_before
        if guard is not None and before is None and stored.tries == 0:
            before = self._measure(stored.intent.app, guard.metric)
        now = self._clock()
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            if stored is None or stored.action.decision.verdict != "act":
                return None
            if stored.action.state not in {"pending", "running"}:
                return None
            if stored.tries >= MOST_TRIES:
                self._lose(connection, stored, now, f"It was cut off {stored.tries} times")
                return None
            began = now if stored.action.began is None else stored.action.began
            running = stored.changed(
                action={"state": "running", "began": began}, tries=stored.tries + 1, guard_before=before, due=None
            )
            kept.put(connection, running)
            said = "it began" if stored.tries == 0 else f"it began again, for the {stored.tries + 1}. time"
            kept.say(connection, id, now, said)
            self._own(connection, stored.intent, now)
        return running

    def _own(self, connection: Any, intent: Intent, now: float) -> None:
        if intent.source == "person":
            return  # what a person wrote is found as a foreign value, and left alone as such
        place, owned = place_of(intent), _owned(intent, since=now, lease_s=self._lease_s)
        known = kept.fields_at(connection, place)
        for name in intent.fields:
            field = known.get(name, FieldRow(field=name)).model_copy(update=owned)
            kept.put_field(connection, place, field)

    def _note(self, id: str, inverse: PrimitiveCall) -> None:
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            assert stored is not None
            kept.put(connection, stored.changed(action={"inverse": inverse}))

    def _succeed(self, id: str, done: PrimitiveResult) -> None:
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        assert stored is not None
        seen = self._look(stored.intent)
        now = self._clock()
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            assert stored is not None
            guard = stored.intent.guard
            inverse = stored.action.inverse or done.inverse
            watched = guard is not None and inverse is not None
            change = {"state": "succeeded", "ended": now, "result": done.result, "error": None, "inverse": inverse}
            until = now + guard.within_s if watched and guard is not None else None
            kept.put(connection, stored.changed(action=change, guard_until=until, due=None))
            kept.say(connection, id, now, f"it is done: {_short(done.result)}")
            if guard is not None and until is not None:
                value = "unknown" if stored.guard_before is None else f"{stored.guard_before:.6g}"
                watches = f"the guard watches {guard.metric}, which was {value}, for {seconds(guard.within_s)}"
                kept.say(connection, id, now, watches)
            self._written(connection, stored.intent, seen)
            happened = event_of(stored.intent, "action.succeeded", now, id=id, result=done.result)
            events.append(connection, [happened])

    def _written(self, connection: Any, intent: Intent, seen: Any) -> None:
        if intent.source == "person":
            return
        place = place_of(intent)
        for name, field in kept.fields_at(connection, place).items():
            if name in intent.fields:
                value = {"value": seen[name]} if name in seen else None
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
            owned = _NOBODYS if last is None else _owned(last.intent, since=when(last), lease_s=self._lease_s)
            kept.put_field(connection, place, field.model_copy(update=owned))

    def _fail(self, id: str, why: str) -> None:
        now = self._clock()
        with self._store.write() as connection:
            stored = kept.get(connection, id)
            assert stored is not None
            change = {"state": "failed", "ended": now, "error": why}
            kept.put(connection, stored.changed(action=change, due=None))
            kept.say(connection, id, now, f"it failed: {why}")
            self._give_back(connection, stored.intent)
            events.append(connection, [event_of(stored.intent, "action.failed", now, id=id, error=why)])

    def _put_off(self, id: str, error: Exception) -> None:
        """Try again later, as what does not answer may; for ever it is not tried."""
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        assert stored is not None
        now = self._clock()
        if stored.tries >= MOST_TRIES:
            if stored.reverting is not None:
                self._not_taken_back(id, str(error))
                return
            with self._store.write() as connection:  # what did not answer may have done it all the same
                self._lose(connection, stored, now, f"It was tried {stored.tries} times ({error})")
            return
        tries = stored.tries + (1 if stored.reverting is not None else 0)
        wait_s = WAITS_S[min(max(tries, 1), len(WAITS_S)) - 1]
        # What is done and is being taken back has no error of its own, before it is known that it cannot be.
        change = {"state": "pending", "error": str(error)} if stored.reverting is None else {}
        with self._store.write() as connection:
            put_off = stored.changed(action=change, due=now + wait_s, tries=tries)
            kept.put(connection, put_off)
            kept.say(connection, id, now, f"it is tried again in {seconds(wait_s)}: {error}")

    def _lose(self, connection: Any, stored: ActionRow, now: float, what: str) -> None:
        why = (
            f"{what}, and whether it took effect is not known. Look at {stored.intent.target!r}, and have the strategy "
            "fire again."
        )
        self._written(connection, stored.intent, {})
        kept.put(connection, stored.changed(action={"state": "lost", "ended": now, "error": why}, due=None))
        kept.say(connection, stored.id, now, why)
        events.append(connection, [event_of(stored.intent, "action.failed", now, id=stored.id, error=why)])

    def _taken_back(self, id: str) -> None:
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        assert stored is not None
        seen = self._look(stored.intent)
        now = self._clock()
        with self._store.write() as connection:
            change = {"state": "reverted", "ended": now, "reverted_by": stored.reverting, "error": None}
            kept.put(connection, stored.changed(action=change, reverting=None, due=None))
            kept.say(connection, id, now, f"it is taken back, by {stored.reverting}")
            self._written(connection, stored.intent, seen)
            self._give_back(connection, stored.intent)
            happened = event_of(stored.intent, "action.reverted", now, id=id, by=stored.reverting)
            events.append(connection, [happened])

    def _not_taken_back(self, id: str, why: str) -> None:
        with self._store.read() as connection:
            stored = kept.get(connection, id)
        assert stored is not None
        seen = self._look(stored.intent)
        now = self._clock()
        with self._store.write() as connection:
            change = {"error": why, "reverted_by": None}
            kept.put(connection, stored.changed(action=change, reverting=None, due=None))
            self._written(connection, stored.intent, seen)
            kept.say(connection, id, now, f"it could not be taken back: {why}")
            events.append(connection, [event_of(stored.intent, "action.failed", now, id=id, error=why)])


def _owned(intent: Intent, *, since: float, lease_s: float) -> dict[str, Any]:
    """Return what is kept of a field that an intent's strategy has owned since then."""
    owner = owner_from(intent, now=since, lease_s=lease_s)
    own = {"strategy": owner.strategy, "intent": owner.intent, "priority": owner.priority, "until": owner.until}
    return {**own, "app": intent.app, "agent": intent.agent}


def _newer(connection: Any, action: Action) -> list[Action]:
    """Return what was begun at an action's place after it, and stands."""
    there = kept.in_effect(connection, place_of(action.intent), since=when(action))
    return list(takewhile(lambda one: one.id != action.id, there))


def _short(result: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.60}" for name, value in result.items()) or "nothing to tell"
