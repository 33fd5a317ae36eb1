"""The supervisor's side of recording: a process that uploads files of predictions to the tracker.

It is a process of its own since the tracker's library is ten times the size of a supervisor; it ends when all files are
uploaded.
"""

from __future__ import annotations

from pathlib import Path

from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.supervisor import attempts
from scanflow.backends.service_desired import DesiredState
from scanflow.processes.shims import Exit, Shims, Spec, create_attempt_folder, stop_attempt


class RecorderProcess:
    def __init__(self, folder: ServiceFolder, shims: Shims) -> None:
        self._folder, self._shims = folder, shims
        self._running: Path | None = None
        self._lives: list[float] = []
        self._due = 0.0

    def adopt(self) -> None:
        if numbers := attempts.list_attempt_numbers(self._folder.recorder):
            path = self._folder.recorder / str(numbers[-1])
            if (path / "alive").exists() and self._shims.adopt(path) is None:
                self._running = path

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def has_files(self) -> bool:
        """Whether there are files to be uploaded."""
        return next(self._folder.recorded.glob("*.npz"), None) is not None

    def start_if_due(self, desired: DesiredState, now: float) -> None:
        if self._running is None and desired.recorder and now >= self._due and self.has_files:
            path = attempts.get_next_attempt_folder(self._folder.recorder)
            create_attempt_folder(path, Spec(argv=desired.recorder, cwd=str(self._folder.path)))
            self._running = path
            self._shims.start(path)
            attempts.prune(self._folder.recorder)

    def stop(self) -> None:
        if self._running is not None:
            stop_attempt(self._running)

    def record_exit(self, path: Path, exit_: Exit, now: float) -> None:
        if path != self._running:
            return
        self._running = None
        if exit_.succeeded:
            self._lives = []
            return
        self._lives = [*self._lives, exit_.seconds or 0.0][-10:]
        self._due = now + max(1.0, attempts.pause_s(attempts.count_failures_in_a_row(self._lives)))
