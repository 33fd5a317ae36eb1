"""Processes that controllers start: each once, again after a pause where it died without a word, and not for ever."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from scanflow_server.jobs import Job

__all__ = ["MOST_STARTS", "Processes"]

MOST_STARTS = 6
"""So often a job's process is started; one that dies each time would do so for ever."""

_LONGEST_PAUSE_S = 30.0


class Processes:
    """The processes of one kind of job."""

    def __init__(self, ended: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """``ended`` is called, in another thread, when one that was started here has ended."""
        self._ended, self._clock = ended, clock
        self._not_before: dict[Job, float] = {}

    def start(self, job: Job, environ: Mapping[str, str], *, command: Sequence[str] | None = None) -> bool:
        """Start a job's process if it may be now; say whether that was done."""
        now = self._clock()
        if now < self._not_before.get(job, 0.0):
            return False
        starts = job.starts
        process = job.start(environ, command=command)
        if process is None:
            return False
        self._not_before[job] = now + (min(_LONGEST_PAUSE_S, 2.0 ** (starts - 1)) if starts else 0.2)
        threading.Thread(target=self._reap, args=(process,), name="reaper", daemon=True).start()
        return True

    def forget(self, job: Job) -> None:
        """Let go of what is known of a job that has ended."""
        self._not_before.pop(job, None)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._ended()
