"""The controller of what is remembered: what is old, or more than enough, is forgotten, a little at each look."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scanflow.errors import NotFoundError
from scanflow_server.context import ServerContext
from scanflow_server.control.error_isolation import ErrorIsolation
from scanflow_server.control.pruning import Keep, Mark, bookmark_now, gone_until, is_old, may_forget
from scanflow_server.jobs import GONE, Job
from scanflow_server.primitives.action_context import REVERT
from scanflow_server.store import events, operations, pruning, runs
from scanflow_server.store.keys import OWN

_log = logging.getLogger(__name__)

BATCH = 500
"""So many rows are deleted in one transaction, which takes a few milliseconds."""

FOLDERS = 50
"""So many folders, or runs, are looked through at once."""

_BREATH_S = 0.05
"""Between two parts of the work, for those who want to write."""


class RetentionController:
    """Forgets. One pass goes over everything, part by part; the next begins after a pause."""

    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is for the pauses; how old something is, is told by the context's."""
        self._context, self._clock = context, clock
        self._keep = Keep.of(context.settings)
        # Not at once: who could not reach the server for long has a moment to ask again with the keys it used.
        self._next = clock() + self._keep.pause_s
        self._pass: Iterator[None] | None = None
        self._isolation = ErrorIsolation()

    @property
    def period_s(self) -> float:
        """How long until there may be something to do."""
        return max(_BREATH_S, self._next - self._clock())

    def tick(self) -> None:
        """Do one part of the work, if it is time."""
        if self._clock() < self._next:
            return
        work = self._pass if self._pass is not None else self._everything()
        self._pass = None  # a pass that fails is not gone on with
        try:
            next(work)
        except StopIteration:
            self._next = self._clock() + self._keep.pause_s
        except Exception:
            self._next = self._clock() + self._keep.pause_s
            raise
        else:
            self._pass, self._next = work, self._clock() + _BREATH_S

    def forget(self) -> None:
        """Make one whole pass now."""
        for _ in self._everything():
            pass

    def _everything(self) -> Iterator[None]:
        """Forget all that may be, and yield after each part."""
        yield from self._events()
        if self._keep.ended_s > 0:
            yield from self._folders()
            yield from self._operations()
            yield from self._runs()
        yield from self._intents()
        if self._keep.keys_s > 0:
            yield from self._keys()

    def _events(self) -> Iterator[None]:
        store, keep, now = self._context.store, self._keep, self._context.clock()
        with store.read() as connection:
            newest = events.newest(connection)
            marks = [Mark(*one) for one in pruning.bookmarks_of(connection)]
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
        """Remove the folders of drives and changes that ended long ago and are not wanted."""
        folder = self._context.settings.folder
        with self._context.store.read() as connection:
            wanted = {self._context.operation_job(one.id).path for one in operations.running(connection)}
            wanted |= {self._context.run_job(one.name, one.drive).path for one in runs.active(connection)}
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
        if path not in wanted and is_old(job.ended_at, self._context.clock(), self._keep.ended_s):
            job.forget()
        if path.parent.parent.name == "runs":
            try:
                path.parent.rmdir()
            except OSError:  # another drive of the run has its folder there
                return

    def _operations(self) -> Iterator[None]:
        before = self._context.clock() - self._keep.ended_s
        while True:
            with self._context.store.write() as connection:
                if pruning.forget_operations(connection, before, most=BATCH) == 0:
                    return
            yield

    def _runs(self) -> Iterator[None]:
        """Forget what was asked of runs whose drives are forgotten and which are known without us."""
        before, last = self._context.clock() - self._keep.ended_s, ""
        while True:
            with self._context.store.read() as connection:
                names = pruning.old_runs(connection, before, after=last, most=FOLDERS)
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

    def _is_entered(self, run: str) -> bool:
        try:
            self._context.deployer.show(run)
        except NotFoundError:
            return False
        return True

    def _intents(self) -> Iterator[None]:
        store, keep, now, last = self._context.store, self._keep, self._context.clock(), 0
        before = now - keep.ended_s if keep.ended_s > 0 else float("-inf")
        with store.read() as connection:
            surplus = pruning.newest_intent(connection) - keep.events if keep.events > 0 else 0
        while True:
            with store.write() as connection:
                found = pruning.closed_intents(connection, before, surplus=surplus, after=last, most=BATCH // 5)
                old = [one.id for number, one in found if may_forget(one, now, keep, surplus=number <= surplus)]
                pruning.forget_intents(connection, old)
            if not found:
                return
            last = found[-1][0]
            yield

    def _keys(self) -> Iterator[None]:
        before = self._context.clock() - self._keep.keys_s
        while True:
            with self._context.store.write() as connection:
                # What a kill cut short is begun again with its key, however long the server was away.
                begun = pruning.begun_intents(connection)
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
