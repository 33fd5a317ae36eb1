"""The engine: it carries out what was decided, watches what that did, and takes back what made things worse.

Everything it knows is in the store. Killed at any instant and started again, it goes on where it stood: what had begun
is begun again with the same idempotency key and the inverse noted before, so that it is as if it was done once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from scanflow.agent.records import Action, Decision, Guard, Intent
from scanflow.errors import ScanflowError
from scanflow_server.arbiter.acting import Actor, Measure, Perform
from scanflow_server.arbiter.identity import place_of
from scanflow_server.arbiter.intent_service import IntentService, Look
from scanflow_server.arbiter.objections import FOREIGN_S
from scanflow_server.change_notifier import ChangeNotifier
from scanflow_server.control.loop import IDLE_S, Loop
from scanflow_server.store import intents as kept
from scanflow_server.store.base import Store
from scanflow_server.store.intents import ActionRow

_log = logging.getLogger(__name__)

WORKERS = 16
"""How many actions are carried out at the same time, of different targets."""

LOOK_S = 1.0
"""How often the engine looks for what is due, and guards for what they watch, in seconds, while there is any."""

LONGEST_PAUSE_S = 60.0
"""The longest pause before the engine goes on with what it stumbles over, in seconds; the first is ``LOOK_S``."""


def regressed(guard: Guard, before: float | None, after: float | None) -> str | None:
    """Return how the guard's metric got worse by more than it may, in words; None: it did not, or nobody knows."""
    if before is None or after is None:
        return None
    worse_by = after - before if guard.worse == "higher" else before - after
    if worse_by <= guard.by:
        return None
    return f"{guard.metric} went from {before:.6g} to {after:.6g}, which is worse by more than {guard.by:.6g}"


class ArbiterEngine:
    """Decides and acts. May be used by several threads; one store has one engine at a time."""

    def __init__(
        self,
        store: Store,
        perform: Perform,
        *,
        look: Look,
        measure: Measure = lambda _intent, _metric: None,
        alive: Callable[[str, str], bool] = lambda _app, _agent: False,
        clock: Callable[[], float] = time.time,
        foreign_s: float = FOREIGN_S,
    ) -> None:
        """Decide and act on what is in ``store``, which is migrated.

        ``alive``: whether an agent of an application is there; its strategies then keep the fields that they own.
        ``foreign_s``: how long somebody else's value is left alone, in seconds.
        """
        self._store, self._clock, self._measured = store, clock, measure
        self.intents = IntentService(store, look=look, clock=clock, alive=alive, foreign_s=foreign_s)
        self._actor = Actor(store, perform, look=look, measure=self._measure, clock=clock)
        self._changes, self._lock = ChangeNotifier(), threading.Lock()
        self._loop: Loop | None = None
        self._busy: dict[str, str] = {}
        self._stumbled: dict[str, tuple[int, float]] = {}

    def submit(self, intent: Intent) -> Decision:
        decision = self.intents.submit(intent)
        self.wake()
        return decision

    def approve(self, id: str, *, by: str, reason: str = "") -> Action:
        action = self.intents.approve(id, by=by, reason=reason)
        self.wake()
        return action

    def revert(self, id: str, *, by: str, reason: str = "", timeout_s: float = 30.0) -> Action:
        """Take an action back, and return it as it then is; after ``timeout_s`` it may still be on its way."""
        self._actor.ask_back(id, by=by, reason=reason)
        self.wake()
        if self._loop is None:
            self.settle()
        self._wait(lambda: self._loop is None or self.intents.get(id).reverting is None, timeout_s)
        return self.intents.get(id).action

    def start(self) -> None:
        """Act from now on, in threads of its own; first of all on what an earlier one was killed over."""
        self._loop = Loop([self], self._changes)
        self._loop.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Begin nothing more, and return when what has begun is done. What is not by then is gone on with at the next
        start, as after a kill."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop(timeout_s)
        self._wait(lambda: not self._busy, timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def settle(self) -> None:
        """Do all that is due at this moment, here, and return: for tests, and for who has no thread to spare."""
        while jobs := self._jobs(self._due()):
            for id, job in jobs:
                self._do(id, job)

    def tick(self) -> float:
        found = self._due()
        for id, job in self._jobs(found):
            self._begin(id, job)
        return LOOK_S if found else IDLE_S

    def _wait(self, so: Callable[[], bool], timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while True:
            since, left_s = self._changes.changes, until - time.monotonic()
            if so() or left_s <= 0:
                return
            self._changes.wait(since, left_s)

    def _begin(self, id: str, job: Callable[[], None]) -> None:
        # A thread for each, which the end of the process ends: an executor's would hold that up.
        thread = threading.Thread(target=self._do, args=(id, job), name=f"scanflow-{id}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many threads: there may be fewer soon
            _log.warning("The engine could not go on with %s: %s", id, error)
            self._stumbles(id)
            with self._lock:
                self._busy.pop(id, None)

    def _due(self) -> list[ActionRow]:
        with self._store.read() as connection:
            return kept.due(connection)

    def _jobs(self, found: Sequence[ActionRow]) -> list[tuple[str, Callable[[], None]]]:
        now = self._clock()
        jobs: list[tuple[str, Callable[[], None]]] = []
        for stored in sorted(found, key=lambda one: one.action.state != "running"):
            place = place_of(stored.intent)
            with self._lock:
                if now < self._stumbled.get(stored.id, (0, 0.0))[1]:
                    continue
                if len(self._busy) >= WORKERS:
                    break
                if place in self._busy.values() or stored.id in self._busy:
                    continue
            job = self._job(stored, now)
            if job is not None:
                with self._lock:
                    self._busy[stored.id] = place
                jobs.append((stored.id, job))
        return jobs

    def _job(self, stored: ActionRow, now: float) -> Callable[[], None] | None:
        action = stored.action
        if stored.due is not None and now < stored.due:
            return None
        if stored.reverting is not None:
            return partial(self._actor.take_back, stored.id)
        if action.decision.verdict == "queue":
            return partial(self.intents.decide_again, stored.intent)
        if action.state in {"pending", "running"}:
            return partial(self._actor.carry_out, stored.id)
        return self._guarded(stored, now)

    def _guarded(self, stored: ActionRow, now: float) -> Callable[[], None] | None:
        guard = stored.intent.guard
        if stored.guard_until is None or guard is None or stored.action.state != "succeeded":
            return None
        worse = regressed(guard, stored.guard_before, self._measure(stored.intent, guard.metric))
        if worse is not None:
            return partial(self._take_back, stored.id, worse)
        return partial(self._actor.guard_ends, stored.id) if now >= stored.guard_until else None

    def _take_back(self, id: str, worse: str) -> None:
        try:
            self._actor.ask_back(id, by="the guard", reason=worse)
        except ScanflowError as error:  # somebody has written over it: there is nothing to take back any more
            self._actor.guard_ends(id, f"{worse}, and it stays: {error}")
            return
        self._actor.take_back(id)

    def _do(self, id: str, job: Callable[[], None]) -> None:
        place = self._busy.get(id)
        try:
            job()
            with self._store.read() as connection:
                waiting = [] if place is None else kept.waiting_at(connection, place)
            queued = next((one for one in waiting if one.action.decision.verdict == "queue" and one.id != id), None)
            if queued is not None:  # its turn may have come, before the moment that it was told
                self.intents.decide_again(queued.intent)
        except ScanflowError as error:  # the database does not answer; what was begun is found again by its state
            _log.warning("%s", error)
            self._stumbles(id)
        except Exception:  # noqa: BLE001  a defect must not end the engine, and is to be seen
            _log.exception("The engine could not go on with %s", id)
            self._stumbles(id)
        else:
            self._stumbled.pop(id, None)
        finally:
            with self._lock:
                self._busy.pop(id, None)
            self.wake()

    def _stumbles(self, id: str) -> None:
        """Leave an action alone for a while that cannot be gone on with, and each time for longer."""
        with self._lock:
            times = self._stumbled.get(id, (0, 0.0))[0] + 1
            pause_s = min(LOOK_S * 2.0 ** min(times - 1, 10), LONGEST_PAUSE_S)
            self._stumbled[id] = times, self._clock() + pause_s

    def _measure(self, intent: Intent, metric: str) -> float | None:
        try:
            return self._measured(intent, metric)
        except Exception:  # noqa: BLE001  what cannot be measured is not known, and holds nothing up
            _log.exception("The metric %s of %s could not be measured", metric, intent.app)
            return None

    def wake(self) -> None:
        self._changes.notify()
