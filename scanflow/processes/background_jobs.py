"""Background jobs: each is a process that outlives its parent, with a folder for its request and its result.

The process is a :class:`~scanflow.processes.daemon.Daemon`: it runs at most once at a time, and a parent that is
started later finds the jobs that still run.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.files.private import create_private_folder, open_private, replace_by_draft, write_private
from scanflow.processes.daemon import Daemon

DELETED_PREFIX = ".gone-"
"""Prefix of the name of a folder that is being removed."""

GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL."""

MAX_STARTS = 6
"""Maximum number of starts of a job's process."""

HEALTHY_S = 300.0
"""A process that runs for this long counts as healthy: its number of starts is reset."""

_MAX_PAUSE_S = 30.0
_DOUBLINGS = 5
"""After this many doublings, a pause of a second exceeds the longest pause."""


@dataclass(frozen=True, slots=True)
class Job:
    path: Path

    @property
    def lines(self) -> Path:
        """Its progress events: one JSON document a line."""
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log"

    def prepare(self, order: Mapping[str, Any]) -> None:
        if not (self.path / "job.json").exists():
            create_private_folder(self.path)
            write_whole(self.path / "job.json", json.dumps(order))

    @property
    def order(self) -> dict[str, Any]:
        return _read(self.path / "job.json") or {}

    @property
    def result(self) -> dict[str, Any] | None:
        return _read(self.path / "ended.json")

    @property
    def ended_at(self) -> float | None:
        try:
            return (self.path / "ended.json").stat().st_mtime
        except FileNotFoundError:
            return None

    @property
    def starts(self) -> int:
        try:
            return (self.path / "starts").stat().st_size
        except FileNotFoundError:
            return 0

    def reset_starts(self) -> None:
        (self.path / "starts").unlink(missing_ok=True)

    @property
    def daemon(self) -> Daemon:
        return Daemon(self.path)

    @property
    def alive(self) -> bool:
        return self.daemon.alive

    @property
    def pid(self) -> int | None:
        return self.daemon.pid

    def begin(self) -> bool:
        """Record that the job starts to change something; return whether an earlier process of it already did."""
        try:
            (self.path / "begun").touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            return True
        return False

    def end(self, result: Mapping[str, Any]) -> None:
        write_whole(self.path / "ended.json", json.dumps(result))

    def end_without_process(self, result: Mapping[str, Any]) -> bool:
        """Record the job's result if no process works or will work on it; return whether it was recorded."""
        create_private_folder(self.path)
        if not self.daemon.cancel_start() or self.result is not None:
            return False
        self.end(result)
        return True

    def forget(self) -> bool:
        """Remove the folder of an ended job atomically, and return whether it was removed."""
        if self.alive or self.result is None:
            return False
        trash = self.path.with_name(f"{DELETED_PREFIX}{self.path.name}")
        shutil.rmtree(trash, ignore_errors=True)
        self.path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
        return True

    def start(self, environ: Mapping[str, str], *, command: Sequence[str], grace_s: float = GRACE_S) -> bool:
        """Start the job's process, unless it runs or the job has ended; it outlives this process."""
        if self.result is not None or self.alive:
            return False
        with open_private(self.path / "starts", "ab") as starts:
            starts.write(b".")
        return self.daemon.start(command, log=self.log, environment=environ, grace_s=grace_s)


class Lines:
    """A JSON Lines file: appended to by one process, read by any while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def append(self, text: str) -> None:
        with open_private(self._path, "ab") as file:
            # A line that was cut off by a kill is terminated first, so that only that one is lost.
            torn = file.tell() > 0 and not _ends_with_newline(self._path)
            os.write(file.fileno(), (b"\n" if torn else b"") + text.encode() + b"\n")

    def read_new(self) -> Iterator[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while line := file.readline():
                    if not line.endswith(b"\n"):
                        return
                    self._position += len(line)
                    if _is_json(line):
                        yield line.decode()[:-1]
        except FileNotFoundError:
            return


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old or the new content."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    with replace_by_draft(path, unfinished):
        write_private(unfinished, text)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return document


class Processes:
    """Starts the processes of jobs, again after a growing pause, and watches them."""

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
