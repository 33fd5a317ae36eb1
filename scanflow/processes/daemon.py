"""One long-lived process under a shim of its own: the server, the tracker, an agent, the driver of a run.

It outlives the process that starts it. Each start is an attempt (see ``shim.py``) in a folder ``attempts/1``,
``attempts/2`` …; the newest says whether the process runs, and its id.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scanflow.errors import UnavailableError
from scanflow.files.private import create_private_folder
from scanflow.processes import shim
from scanflow.processes.shims import (
    Spec,
    create_attempt_folder,
    end_lost_attempt,
    read_exit,
    read_started,
    stop_attempt,
)

_START_S = 30.0
_POLL_S = 0.002


class Daemon:
    """A process identified by its folder, at most one at a time. Any process may inspect, start or stop it."""

    def __init__(self, folder: Path) -> None:
        self._attempts = folder / "attempts"

    @property
    def alive(self) -> bool:
        """Whether it runs or is being started."""
        return (newest := self._find_newest()) is not None and _is_locked(newest)

    @property
    def pid(self) -> int | None:
        newest = self._find_newest()
        started = None if newest is None else read_started(newest)
        return int(started["pid"]) if started is not None and newest is not None and _is_locked(newest) else None

    def start(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        grace_s: float = shim.GRACE_S,
        restart: bool = False,
    ) -> bool:
        """Start the process unless it runs; return whether it was started. Leftovers of a killed shim are ended first.

        Args:
            command: The program's path and its arguments.
            log: The file its output is appended to.
            environment: All of its variables. None: this process'.
            grace_s: Between SIGTERM and SIGKILL to it and all its children.
            restart: Whether its shim starts it again; see :class:`~scanflow.processes.shims.Spec`.

        Raises:
            UnavailableError: it could not be started.
        """
        before = self._find_newest()
        if not self.cancel_start():
            return False
        if before is not None and read_exit(before) is None:
            end_lost_attempt(before)
        folder = create_private_folder(self._attempts) / str(1 if before is None else int(before.name) + 1)
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            return False  # another process starts it at this moment
        create_attempt_folder(folder, Spec(argv=command, cwd="/", log=str(log), grace_s=grace_s, restart=restart))
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
        _start_shim(folder, environment)
        return True

    def cancel_start(self) -> bool:
        """Cancel a start that was requested and has not happened; return whether nothing runs."""
        newest = self._find_newest()
        # A shim opens `alive` before it claims the attempt: it is either seen here, or it never starts.
        return newest is None or not (_is_locked(newest) or (not shim.claim(str(newest)) and _is_locked(newest)))

    def stop(self) -> None:
        """Ask the process to end; its shim kills it, with all its children, after the grace period."""
        newest = self._find_newest()
        if newest is not None and _is_locked(newest):
            stop_attempt(newest)
        elif newest is not None and read_exit(newest) is None and not shim.claim(str(newest)):
            end_lost_attempt(newest)  # its shim was killed

    def kill(self) -> None:
        """Kill the process if it runs; its shim kills its children, and starts it again if it is to."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the process has ended, and return whether it has."""
        if (newest := self._find_newest()) is None:
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        fifo = os.open(newest / "alive", os.O_RDONLY | os.O_NONBLOCK)
        try:
            poller = select.poll()
            poller.register(fifo, select.POLLIN)
            while _has_writer(fifo):
                remaining_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
                if remaining_ms is not None and remaining_ms <= 0:
                    return False
                poller.poll(remaining_ms)
            return True
        finally:
            os.close(fifo)

    def _find_newest(self) -> Path | None:
        try:
            numbers = [int(name) for name in os.listdir(self._attempts) if name.isdecimal()]  # noqa: PTH208  only names
        except FileNotFoundError:
            return None
        return self._attempts / str(max(numbers)) if numbers else None


def _start_shim(folder: Path, environment: Mapping[str, str] | None) -> None:
    subprocess.run(
        [sys.executable, "-IS", shim.__file__],
        input=f"{json.dumps(str(folder))}\n".encode(),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
        timeout=_START_S,
    )
    deadline = time.monotonic() + _START_S
    while not (folder / "started").exists():
        if (folder / "shim.error").exists() or time.monotonic() > deadline:
            raise UnavailableError(f"The process of {str(folder)!r} could not be started. Is the disk full?")
        time.sleep(_POLL_S)


def _is_locked(folder: Path) -> bool:
    try:
        fifo = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        return _has_writer(fifo)
    finally:
        os.close(fifo)


def _has_writer(fifo: int) -> bool:
    """Return whether a process holds the FIFO open for writing; its content is discarded."""
    while True:
        try:
            if not os.read(fifo, 64):
                return False
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return True
