"""Restarts of job processes: after a growing pause, up to a maximum number of starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from scanflow.processes.background_jobs import GRACE_S, Job

MAX_STARTS = 6
"""Maximum number of starts of a job's process."""

HEALTHY_S = 300.0
"""A process that runs for this long counts as healthy: its number of starts is reset."""

_MAX_PAUSE_S = 30.0
_DOUBLINGS = 5
"""After this many doublings, a pause of a second exceeds the longest pause."""


class Processes:
    def __init__(self, ended: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """``ended`` is called, in another thread, when a watched process has ended."""
        self._ended, self._clock = ended, clock
        self._not_before: dict[Job, float] = {}
        self._lives_since: dict[Job, float] = {}
        self._watched: set[Job] = set()

    def start(self, job: Job, environ: Mapping[str, str], *, command: Sequence[str], grace_s: float = GRACE_S) -> bool:
        now = self._clock()
        self._lives_since.pop(job, None)
        if now < self._not_before.get(job, 0.0):
            return False
        self._not_before[job] = now + _pause_s(job.starts)  # before it is started: that may fail, too
        if not job.start(environ, command=command, grace_s=grace_s):
            self._not_before.pop(job)
            return False
        self._watch(job)
        return True

    def note_alive(self, job: Job) -> None:
        """Note that a job's process runs; after a long time its number of starts is reset.

        A process that another program started is watched from now on.
        """
        now = self._clock()
        if job not in self._watched:
            self._watch(job)
        if now - self._lives_since.setdefault(job, now) >= HEALTHY_S:
            job.reset_starts()
            self._lives_since[job] = now

    def forget(self, job: Job) -> None:
        self._not_before.pop(job, None)
        self._lives_since.pop(job, None)

    def _watch(self, job: Job) -> None:
        self._watched.add(job)
        threading.Thread(target=self._wait, args=(job,), name="watcher", daemon=True).start()

    def _wait(self, job: Job) -> None:
        with suppress(FileNotFoundError):  # its folder was removed
            job.daemon.wait()
        self._watched.discard(job)
        self._ended()


def _pause_s(starts: int) -> float:
    return min(_MAX_PAUSE_S, 2.0 ** min(starts - 1, _DOUBLINGS)) if starts else 0.2
