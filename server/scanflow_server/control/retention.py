"""The controller of what is remembered: what is old, or more than enough, is forgotten, a little at each look.

Nothing goes that runs or is wanted, waits for a person or for its turn, is guarded, or counts for a budget or a pause.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scanflow.agent.primitive_context import REVERT
from scanflow.backends.kept_functions import functions_named
from scanflow.errors import NotFoundError
from scanflow.processes.jobs import GONE, Job
from scanflow_server.arbiter.identity import compute_lookback_s, get_start_time, is_accepted
from scanflow_server.context import ServerContext
from scanflow_server.control.loop import ErrorIsolation
from scanflow_server.settings import ServerSettings
from scanflow_server.store import events, operations, pruning, runs
from scanflow_server.store.intents import ActionRow
from scanflow_server.store.keys import OWN

BATCH = 500
"""So many rows are deleted in one transaction, which takes a few milliseconds."""

FOLDERS = 50

_BREATH_S = 0.05
"""Between two parts of the work, for those who want to write."""


DAY_S = 86_400.0

_MARKS = 100
"""Into so many parts the time for which events are kept is cut: events go at most one part later than they might."""

_SHORTEST_S, _LONGEST_S = 1.0, 300.0
_LOOKS = 20
"""So often within the shortest time that something is kept it is looked for what may go."""


def pause_s(keep: ServerSettings) -> float:
    """Return how long to wait from one look to the next, in seconds."""
    days = (keep.keep_events_days, keep.keep_ended_days, keep.keep_keys_days)
    times = [one * DAY_S for one in days if one > 0]
    return min(_LONGEST_S, max(_SHORTEST_S, min(times, default=_LONGEST_S * _LOOKS) / _LOOKS))


class Mark(NamedTuple):
    """At that time, by the server's clock, the event of that number was the newest."""

    number: int
    at: float


def bookmark_now(last: Mark | None, newest: int, now: float, keep: ServerSettings) -> bool:
    if newest == 0 or keep.keep_events_days == 0 or (last is not None and newest <= last.number):
        return False
    # A clock that was set back must not keep marks from being made.
    return last is None or not 0 <= now - last.at < keep.keep_events_days * DAY_S / _MARKS


def gone_until(marks: Sequence[Mark], newest: int, now: float, keep: ServerSettings) -> int:
    """Return up to which number events may go; the newest stays.

    How old an event is, is told by the marks, since its own time is what its sender's clock said.
    """
    by_count = newest - keep.keep_events if keep.keep_events > 0 else 0
    by_age = max((mark.number for mark in marks if is_old(mark.at, now, keep.keep_events_days)), default=0)
    return max(0, min(max(by_count, by_age), newest - 1))


def is_old(at: float | None, now: float, kept_days: float) -> bool:
    return at is not None and kept_days > 0 and now - at > kept_days * DAY_S


def needed_until(stored: ActionRow) -> float:
    """Return until when the arbiter may have to know of an action: its strategy's budget, and its pauses."""
    return get_start_time(stored.action) + compute_lookback_s(stored.intent) if is_accepted(stored.action) else 0.0


def may_forget(stored: ActionRow, now: float, keep: ServerSettings, *, surplus: bool) -> bool:
    """Say whether what became of an intent need not be known any more.

    ``surplus``: there are more than enough that came after it. That counts only where nothing was done about it.
    """
    action = stored.action
    # A suggestion is only told; nobody has to answer it.
    waits = action.state in {"pending", "running"} and action.decision.verdict != "suggest"
    if waits or stored.guard_until is not None or stored.reverting is not None or now <= needed_until(stored):
        return False
    ended = action.decision.at if action.ended is None else action.ended
    return is_old(ended, now, keep.keep_ended_days) or (surplus and not is_accepted(action))


class RetentionController:
    """Forgets. One pass goes over everything, part by part; the next begins after a pause."""

    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is for the pauses; how old something is, is told by the context's."""
        self._context, self._clock = context, clock
        self._keep = context.settings
        # Not at once: who could not reach the server for long has a moment to ask again with the keys it used.
        self._next = clock() + pause_s(self._keep)
        self._pass: Iterator[None] | None = None
        self._isolation = ErrorIsolation()

    def tick(self) -> float:
        if self._clock() >= self._next:
            self._go_on()
        return max(_BREATH_S, self._next - self._clock())

    def _go_on(self) -> None:
        work = self._pass if self._pass is not None else self._everything()
        self._pass = None  # a pass that fails is not gone on with
        try:
            next(work)
        except StopIteration:
            self._next = self._clock() + pause_s(self._keep)
        except Exception:
            self._next = self._clock() + pause_s(self._keep)
            raise
        else:
            self._pass, self._next = work, self._clock() + _BREATH_S

    def forget(self) -> None:
        for _ in self._everything():
            pass

    def _everything(self) -> Iterator[None]:
        yield from self._events()
        if self._keep.keep_ended_days > 0:
            yield from self._folders()
            yield from self._operations()
            yield from self._runs()
            self._functions()
            yield
        yield from self._intents()
        if self._keep.keep_keys_days > 0:
            yield from self._keys()

    def _events(self) -> Iterator[None]:
        store, keep, now = self._context.store, self._keep, self._context.clock()
        with store.read() as connection:
            newest = events.get_newest_id(connection)
            marks = [Mark(*one) for one in pruning.list_bookmarks(connection)]
        if bookmark_now(marks[-1] if marks else None, newest, now, keep):
            with store.write() as connection:
                pruning.add_mark(connection, newest, now)
        until = gone_until(marks, newest, now, keep)
        while until > 0:
            with store.write() as connection:
                count = pruning.forget_events(connection, until, at=now, most=BATCH)
            if count == 0:
                return
            yield

    def _folders(self) -> Iterator[None]:
        folder = self._context.settings.folder
        with self._context.store.read() as connection:
            wanted = {self._context.operation_job(one.id).path for one in operations.list_open(connection)}
            wanted |= {self._context.run_job(one.name, one.drive).path for one in runs.list_active(connection)}
        yield
        paths = [*_inside(folder / "operations")]
        for run in _inside(folder / "runs"):
            paths += _inside(run)
        for number, path in enumerate(paths):
            with self._isolation.of(f"The folder {str(path)!r}"):
                self._folder(path, wanted)
            if number % FOLDERS == FOLDERS - 1:
                yield

    def _folder(self, path: Path, wanted: set[Path]) -> None:
        if path.name.startswith(GONE):
            shutil.rmtree(path, ignore_errors=True)
        job = Job(path)
        if path not in wanted and is_old(job.ended_at, self._context.clock(), self._keep.keep_ended_days):
            job.forget()
        if path.parent.parent.name == "runs":
            try:
                path.parent.rmdir()
            except OSError:  # another drive of the run has its folder there
                return

    def _operations(self) -> Iterator[None]:
        before = self._context.clock() - self._keep.keep_ended_days * DAY_S
        while True:
            with self._context.store.write() as connection:
                if pruning.forget_operations(connection, before, most=BATCH) == 0:
                    return
            yield

    def _runs(self) -> Iterator[None]:
        """Forget what was asked of runs whose drives are forgotten and which are known without us."""
        before, last = self._context.clock() - self._keep.keep_ended_days * DAY_S, ""
        while True:
            with self._context.store.read() as connection:
                names = pruning.list_old_runs(connection, before, after=last, most=FOLDERS)
            if not names:
                return
            for name in names:
                with self._isolation.of(f"What was asked of the run {name!r}"):
                    self._run(name)
            last = names[-1]
            yield

    def _run(self, name: str) -> None:
        if not (self._context.settings.folder / "runs" / name).exists() and self._is_entered(name):
            with self._context.store.write() as connection:
                pruning.forget_run(connection, name)

    def _functions(self) -> None:
        """Forget functions sent by value that neither a run nor anything kept here names."""
        before = self._context.clock() - self._keep.keep_ended_days * DAY_S
        with self._context.store.read() as connection:
            needed = functions_named(map(json.dumps, pruning.iterate_documents(connection)))
        self._context.deployer.batch.forget_functions(before, needed)

    def _is_entered(self, run: str) -> bool:
        try:
            self._context.deployer.show(run)
        except NotFoundError:
            return False
        return True

    def _intents(self) -> Iterator[None]:
        store, keep, now, last = self._context.store, self._keep, self._context.clock(), 0
        before = now - keep.keep_ended_days * DAY_S if keep.keep_ended_days > 0 else float("-inf")
        with store.read() as connection:
            surplus = pruning.get_newest_intent(connection) - keep.keep_events if keep.keep_events > 0 else 0
        while True:
            with store.write() as connection:
                found = pruning.list_closed_intents(connection, before, surplus=surplus, after=last, most=BATCH // 5)
                old = [one.id for number, one in found if may_forget(one, now, keep, surplus=number <= surplus)]
                pruning.forget_intents(connection, old)
            if not found:
                return
            last = found[-1][0]
            yield

    def _keys(self) -> Iterator[None]:
        before = self._context.clock() - self._keep.keep_keys_days * DAY_S
        while True:
            with self._context.store.write() as connection:
                # What a kill cut short is begun again with its key, however long the server was away.
                begun = pruning.list_begun_intents(connection)
                spare = {f"{OWN}{id}{end}" for id in begun for end in ("", REVERT)}
                if pruning.forget_keys(connection, before, spare=spare, most=BATCH) == 0:
                    return
            yield


def _inside(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; nothing where there is none."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
