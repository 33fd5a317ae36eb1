"""The retention controller: deletes what is old or surplus, a little at each tick.

It keeps everything that is running or wanted, waits for a person or its turn, is guarded, or counts for a budget or a
pause.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scanflow.agent.primitive_context import REVERT
from scanflow.backends.function_store import list_function_names
from scanflow.errors import NotFoundError
from scanflow.processes.background_jobs import DELETED_PREFIX, Job
from scanflow_server.controller_loop import ErrorIsolation
from scanflow_server.function_owners import FunctionOwners
from scanflow_server.intent_identity import compute_lookback_s, get_start_time, is_accepted
from scanflow_server.server_context import ServerContext
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store import audit_store, event_store, pruning, run_store, session_store, token_store, usage
from scanflow_server.store.intent_store import ActionRow
from scanflow_server.store.keys import OWN_PREFIX

BATCH = 500
"""The most rows deleted in one transaction, which takes a few milliseconds."""

FOLDERS = 50

_BREATH_S = 0.05
"""The pause between two batches, in seconds, so that others can write."""


DAY_S = 86_400.0

_MARKS = 100
"""The number of bookmarks in the retention period of events: events are deleted at most one interval late."""

_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 300.0
_PASSES_PER_PERIOD = 20
"""The number of passes within the shortest retention period."""


def compute_pause_s(keep: ServerSettings) -> float:
    """Return the pause between two passes, in seconds."""
    days = (keep.keep_events_days, keep.keep_ended_days, keep.keep_keys_days)
    times = [number * DAY_S for number in days if number > 0]
    return min(
        _MAX_PAUSE_S, max(_MIN_PAUSE_S, min(times, default=_MAX_PAUSE_S * _PASSES_PER_PERIOD) / _PASSES_PER_PERIOD)
    )


class EventBookmark(NamedTuple):
    """The number of the newest event at a time of the server's clock."""

    number: int
    at: float


def should_bookmark(last: EventBookmark | None, newest: int, now: float, keep: ServerSettings) -> bool:
    if newest == 0 or keep.keep_events_days == 0 or (last is not None and newest <= last.number):
        return False
    # A clock that was set back must not prevent bookmarks.
    return last is None or not 0 <= now - last.at < keep.keep_events_days * DAY_S / _MARKS


def compute_forget_limit(marks: Sequence[EventBookmark], newest: int, now: float, keep: ServerSettings) -> int:
    """Return the number up to which events may be deleted; the newest stays.

    The age of events is derived from the marks, since their own time is that of the sender's clock.
    """
    by_count = newest - keep.keep_events if keep.keep_events > 0 else 0
    by_age = max((mark.number for mark in marks if is_old(mark.at, now, keep.keep_events_days)), default=0)
    return max(0, min(max(by_count, by_age), newest - 1))


def is_old(at: float | None, now: float, kept_days: float) -> bool:
    return at is not None and kept_days > 0 and now - at > kept_days * DAY_S


def get_needed_until(row: ActionRow) -> float:
    """Return until when the arbiter may need an action, for its strategy's budget and pauses."""
    return get_start_time(row.action) + compute_lookback_s(row.intent) if is_accepted(row.action) else 0.0


def can_forget(row: ActionRow, now: float, keep: ServerSettings, *, surplus: bool) -> bool:
    """Whether an intent may be deleted.

    ``surplus``: enough newer ones exist; that counts only if it was not acted on.
    """
    action = row.action
    # A suggestion needs no answer.
    waits = action.state in {"pending", "running"} and action.decision.verdict != "suggest"
    if waits or row.guard_until is not None or row.reverting is not None or now <= get_needed_until(row):
        return False
    ended = action.decision.at if action.ended is None else action.ended
    return is_old(ended, now, keep.keep_ended_days) or (surplus and not is_accepted(action))


class RetentionController:
    """Deletes what is old. One pass covers everything in batches; the next begins after a pause."""

    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is for the pauses; ages are measured by the context's."""
        self._context, self._clock = context, clock
        self._keep = context.settings
        # Not at once: clients that could not reach the server for long can first retry with the keys they used.
        self._next = clock() + compute_pause_s(self._keep)
        self._pass: Iterator[None] | None = None
        self._isolation = ErrorIsolation()

    def tick(self) -> float:
        if self._clock() >= self._next:
            self._continue_pass()
        return max(_BREATH_S, self._next - self._clock())

    def _continue_pass(self) -> None:
        work = self._pass if self._pass is not None else self._run_pass()
        self._pass = None  # a failed pass is not continued
        try:
            next(work)
        except StopIteration:
            self._next = self._clock() + compute_pause_s(self._keep)
        except Exception:
            self._next = self._clock() + compute_pause_s(self._keep)
            raise
        else:
            self._pass, self._next = work, self._clock() + _BREATH_S

    def forget(self) -> None:
        for _ in self._run_pass():
            pass

    def _run_pass(self) -> Iterator[None]:
        yield from self._forget_events()
        if self._keep.keep_ended_days > 0:
            yield from self._forget_folders()
            yield from self._forget_runs()
            yield from self._forget_tokens()
            self._forget_functions()
            yield
        yield from self._forget_intents()
        if self._keep.keep_keys_days > 0:
            yield from self._forget_keys()
        if self._keep.keep_audit_days > 0:
            yield from self._forget_audit()
        yield from self._forget_sessions()

    def _forget_events(self) -> Iterator[None]:
        store, keep, now = self._context.store, self._keep, self._context.clock()
        with store.read() as connection:
            newest = event_store.get_newest_id(connection)
            marks = [EventBookmark(*row) for row in pruning.list_bookmarks(connection)]
        if should_bookmark(marks[-1] if marks else None, newest, now, keep):
            with store.write() as connection:
                pruning.add_mark(connection, newest, now)
        until = compute_forget_limit(marks, newest, now, keep)
        while until > 0:
            with store.write() as connection:
                count = pruning.forget_events(connection, until, at=now, most=BATCH)
            if count == 0:
                return
            yield

    def _forget_folders(self) -> Iterator[None]:
        folder = self._context.settings.folder
        with self._context.store.read() as connection:
            wanted = {self._context.get_operation_job(id).path for id in pruning.list_begun_intents(connection)}
            wanted |= {
                self._context.get_run_job(drive.name, drive.number).path for drive in run_store.list_active(connection)
            }
        yield
        paths = [*_list_folder(folder / "operations")]
        for run in _list_folder(folder / "runs"):
            paths += _list_folder(run)
        for number, path in enumerate(paths):
            with self._isolation.isolate(f"The folder {str(path)!r}"):
                self._forget_folder(path, wanted)
            if number % FOLDERS == FOLDERS - 1:
                yield

    def _forget_folder(self, path: Path, wanted: set[Path]) -> None:
        if path.name.startswith(DELETED_PREFIX):
            shutil.rmtree(path, ignore_errors=True)
        job = Job(path)
        action = path.parent / path.name.partition(".")[0]  # an action may have several drivers
        if action not in wanted and is_old(job.ended_at, self._context.clock(), self._keep.keep_ended_days):
            job.forget()
        if path.parent.parent.name == "runs":
            try:
                path.parent.rmdir()
            except OSError:  # another drive of the run has its folder there
                return

    def _forget_runs(self) -> Iterator[None]:
        """Delete the requests of runs whose drives are deleted and which the backend knows."""
        before, last = self._context.clock() - self._keep.keep_ended_days * DAY_S, ""
        while True:
            with self._context.store.read() as connection:
                names = pruning.list_old_runs(connection, before, after=last, most=FOLDERS)
            if not names:
                return
            for name in names:
                with self._isolation.isolate(f"The request of the run {name!r}"):
                    self._forget_run(name)
            last = names[-1]
            yield

    def _forget_run(self, name: str) -> None:
        if not (self._context.settings.folder / "runs" / name).exists() and self._is_entered(name):
            with self._context.store.write() as connection:
                pruning.forget_run(connection, name)

    def _forget_tokens(self) -> Iterator[None]:
        before = self._context.clock() - self._keep.keep_ended_days * DAY_S
        while True:
            with self._context.store.write() as connection:
                if token_store.forget_ended(connection, before, most=BATCH) == 0:
                    return
            yield

    def _forget_functions(self) -> None:
        """Delete functions sent by value that neither a run nor a stored document refers to."""
        before = self._context.clock() - self._keep.keep_ended_days * DAY_S
        with self._context.store.read() as connection:
            needed = list_function_names(pruning.iterate_documents(connection))
        self._context.deployer.batch.forget_functions(before, needed)
        forgotten = FunctionOwners(self._context.settings.folder).forget(before, needed)
        if forgotten:  # a write wakes the controllers
            with self._context.store.write() as connection:
                for team, n_bytes in forgotten.items():
                    usage.add(connection, team, -n_bytes)

    def _is_entered(self, run: str) -> bool:
        try:
            self._context.deployer.show(run)
        except NotFoundError:
            return False
        return True

    def _forget_intents(self) -> Iterator[None]:
        store, keep, now, last = self._context.store, self._keep, self._context.clock(), 0
        before = now - keep.keep_ended_days * DAY_S if keep.keep_ended_days > 0 else float("-inf")
        with store.read() as connection:
            surplus = pruning.get_newest_intent(connection) - keep.keep_events if keep.keep_events > 0 else 0
        while True:
            with store.write() as connection:
                rows = pruning.list_closed_intents(connection, before, surplus=surplus, after=last, most=BATCH // 5)
                old = [row.id for number, row in rows if can_forget(row, now, keep, surplus=number <= surplus)]
                pruning.forget_intents(connection, old)
            if not rows:
                return
            last = rows[-1][0]
            yield

    def _forget_keys(self) -> Iterator[None]:
        before = self._context.clock() - self._keep.keep_keys_days * DAY_S
        while True:
            with self._context.store.write() as connection:
                # An interrupted action is retried with its key, however long the server was down.
                begun = pruning.list_begun_intents(connection)
                spare = {f"{OWN_PREFIX}{id}{end}" for id in begun for end in ("", REVERT)}
                if pruning.forget_keys(connection, before, spare=spare, most=BATCH) == 0:
                    return
            yield

    def _forget_audit(self) -> Iterator[None]:
        before = self._context.clock() - self._keep.keep_audit_days * DAY_S
        while True:
            with self._context.store.write() as connection:
                if audit_store.forget_older(connection, before, most=BATCH) == 0:
                    return
            yield

    def _forget_sessions(self) -> Iterator[None]:
        while True:
            with self._context.store.write() as connection:
                if session_store.forget_ended(connection, self._context.clock(), most=BATCH) == 0:
                    return
            yield


def _list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted; none if it does not exist."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
