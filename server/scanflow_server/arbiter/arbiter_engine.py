"""The engine: carries out decisions, watches their effects with guards, and reverts actions that made things worse.

All its state is in the store. Killed at any instant and restarted, it continues: an action that had begun is retried
with the same idempotency key and the inverse noted before, so that it takes effect once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from scanflow.agent.agent_records import Action, Decision, Guard, Intent
from scanflow.errors import ScanflowError
from scanflow_server.arbiter.acting import Actor, Measure, Perform
from scanflow_server.arbiter.arbitration_rules import FOREIGN_S
from scanflow_server.arbiter.intent_service import FindLimits, IntentService, ReadState
from scanflow_server.change_notifier import ChangeNotifier
from scanflow_server.controller_loop import IDLE_S, Loop
from scanflow_server.intent_identity import get_place, get_turn
from scanflow_server.store import intent_store
from scanflow_server.store.base import Store
from scanflow_server.store.intent_store import ActionRow

_log = logging.getLogger(__name__)

WORKERS = 16
"""How many actions are carried out at the same time, of different targets."""

POLL_S = 1.0
"""How often the engine polls for due actions, and guards poll their metrics, in seconds, while there are any."""

MAX_PAUSE_S = 60.0
"""The longest pause before the engine retries an action it failed to process, in seconds; the first is ``POLL_S``."""


def describe_regression(guard: Guard, before: float | None, after: float | None) -> str | None:
    """Return a description of the regression of a guard's metric beyond its tolerance; None: there is none, or it is
    unknown."""
    if before is None or after is None:
        return None
    worse_by = after - before if guard.worse == "higher" else before - after
    if worse_by <= guard.by:
        return None
    return f"{guard.metric} went from {before:.6g} to {after:.6g}: worse by more than the tolerance of {guard.by:.6g}"


class ArbiterEngine:
    """Decides on intents and carries out actions. Thread-safe; a store has one engine at a time."""

    def __init__(
        self,
        store: Store,
        perform: Perform,
        *,
        look: ReadState,
        limits: FindLimits,
        measure: Measure = lambda _intent, _metric: None,
        alive: Callable[[str, str], bool] = lambda _app, _agent: False,
        clock: Callable[[], float] = time.time,
        foreign_s: float = FOREIGN_S,
    ) -> None:
        """Create an engine on ``store``, which is migrated.

        ``limits``: what strategies may do. ``alive``: whether an agent of an application is running; its strategies
        then keep the fields that they own. ``foreign_s``: how long another client's value is left alone, in seconds.
        """
        self._store, self._clock, self._measure_metric = store, clock, measure
        self.intents = IntentService(store, look=look, limits=limits, clock=clock, alive=alive, foreign_s=foreign_s)
        self._actor = Actor(store, perform, look=look, measure=self._measure, clock=clock)
        self._changes, self._lock = ChangeNotifier(), threading.Lock()
        self._loop: Loop | None = None
        self._busy: dict[str, str] = {}
        self._failures: dict[str, tuple[int, float]] = {}

    def submit(self, intent: Intent) -> Decision:
        decision = self.intents.submit(intent)
        self.wake()
        return decision

    def approve(self, id: str, *, by: str, reason: str = "") -> Action:
        action = self.intents.approve(id, by=by, reason=reason)
        self.wake()
        return action

    def revert(self, id: str, *, by: str, reason: str = "", timeout_s: float = 30.0) -> Action:
        """Revert an action and return its new state; after ``timeout_s`` the revert may still be in progress."""
        self._actor.request_revert(id, by=by, reason=reason)
        self.wake()
        if self._loop is None:
            self.settle()
        self._wait(lambda: self._loop is None or self.intents.get(id).reverting is None, timeout_s)
        return self.intents.get(id).action

    def start(self) -> None:
        """Start carrying out actions in threads of their own, first those that a killed engine left."""
        self._loop = Loop([self], self._changes)
        self._loop.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Start no more actions, and wait for those in progress. The others continue at the next start, as after a
        kill."""
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
        """Run all due jobs in this thread and return: for tests, and for callers without a thread to spare."""
        while jobs := self._plan_jobs(self._load_due()):
            for row, job in jobs:
                self._run_job(row, job)

    def tick(self) -> float:
        rows = self._load_due()
        for row, job in self._plan_jobs(rows):
            self._start_job(row, job)
        return POLL_S if rows else IDLE_S

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while True:
            since, left_s = self._changes.changes, until - time.monotonic()
            if condition() or left_s <= 0:
                return
            self._changes.wait(since, left_s)

    def _start_job(self, row: ActionRow, job: Callable[[], None]) -> None:
        # A daemon thread for each: an executor's threads would delay the exit of the process.
        thread = threading.Thread(target=self._run_job, args=(row, job), name=f"scanflow-{row.id}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many threads: retry later
            _log.warning("The engine could not process the action %s: %s", row.id, error)
            self._record_failure(row.id)
            with self._lock:
                self._busy.pop(row.id, None)

    def _load_due(self) -> list[ActionRow]:
        with self._store.read() as connection:
            return intent_store.list_due(connection)

    def _plan_jobs(self, rows: Sequence[ActionRow]) -> list[tuple[ActionRow, Callable[[], None]]]:
        now = self._clock()
        jobs: list[tuple[ActionRow, Callable[[], None]]] = []
        for row in sorted(rows, key=lambda row: (row.action.state != "running", row.intent.source == "agent")):
            turn = get_turn(row.intent)
            with self._lock:
                if now < self._failures.get(row.id, (0, 0.0))[1]:
                    continue
                if len(self._busy) >= WORKERS:
                    break
                if turn in self._busy.values() or row.id in self._busy:
                    continue
            job = self._make_job(row, now)
            if job is not None:
                with self._lock:
                    self._busy[row.id] = turn
                jobs.append((row, job))
        return jobs

    def _make_job(self, row: ActionRow, now: float) -> Callable[[], None] | None:
        action = row.action
        if row.due is not None and now < row.due:
            return None
        if row.reverting is not None:
            return partial(self._actor.revert, row.id)
        if action.decision.verdict == "queue":
            return partial(self.intents.decide_again, row.intent)
        if action.state in {"pending", "running"}:
            return partial(self._actor.carry_out, row.id)
        return self._check_guard(row, now)

    def _check_guard(self, row: ActionRow, now: float) -> Callable[[], None] | None:
        guard = row.intent.guard
        if row.guard_until is None or guard is None or row.action.state != "succeeded":
            return None
        worse = describe_regression(guard, row.guard_before, self._measure(row.intent, guard.metric))
        if worse is not None:
            return partial(self._revert, row.id, worse)
        return partial(self._actor.end_guard, row.id) if now >= row.guard_until else None

    def _revert(self, id: str, worse: str) -> None:
        try:
            self._actor.request_revert(id, by="the guard", reason=worse)
        except ScanflowError as error:  # it was overwritten: there is nothing to revert
            self._actor.end_guard(id, f"{worse}; it was not reverted: {error}")
            return
        self._actor.revert(id)

    def _run_job(self, row: ActionRow, job: Callable[[], None]) -> None:
        id = row.id
        try:
            job()
            with self._store.read() as connection:
                waiting = intent_store.list_waiting(connection, get_place(row.intent))
            queued = next(
                (other for other in waiting if other.action.decision.verdict == "queue" and other.id != id), None
            )
            if queued is not None:  # its turn may have come early
                self.intents.decide_again(queued.intent)
        except (
            ScanflowError
        ) as error:  # the database does not answer; actions in progress are found again by their state
            _log.warning("%s", error)
            self._record_failure(id)
        except Exception:  # noqa: BLE001  a defect must not end the engine, and is logged
            _log.exception("The engine could not process the action %s", id)
            self._record_failure(id)
        else:
            self._failures.pop(id, None)
        finally:
            with self._lock:
                self._busy.pop(id, None)
            self.wake()

    def _record_failure(self, id: str) -> None:
        """Back off from an action that cannot be processed, each time for longer."""
        with self._lock:
            times = self._failures.get(id, (0, 0.0))[0] + 1
            pause_s = min(POLL_S * 2.0 ** min(times - 1, 10), MAX_PAUSE_S)
            self._failures[id] = times, self._clock() + pause_s

    def _measure(self, intent: Intent, metric: str) -> float | None:
        try:
            return self._measure_metric(intent, metric)
        except Exception:  # noqa: BLE001  an unknown metric must not block the engine
            _log.exception("The metric %s of %s could not be measured", metric, intent.app)
            return None

    def wake(self) -> None:
        self._changes.notify()
