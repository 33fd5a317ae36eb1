"""One long-lived process under a shim of its own: the server, the tracker, an agent, what drives a run.

It outlives whoever starts it. Each start is an attempt (see ``shim.py``) in a folder ``attempts/1``, ``attempts/2`` …;
whether it lives, and which process it is, is asked of the newest of them.
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
from scanflow.private import private_folder
from scanflow.processes import shim
from scanflow.processes.shims import Exit, Spec, attempt_folder, end_lost, read_exit, read_started, stop_attempt

_START_S = 30.0
_POLL_S = 0.002


class Daemon:
    """A process that at most one attempt at a time is, by its folder. Any process may ask, start and stop it."""

    def __init__(self, folder: Path) -> None:
        self._attempts = folder / "attempts"

    @property
    def alive(self) -> bool:
        """Whether it runs, or is about to."""
        return (newest := self._newest()) is not None and _is_locked(newest)

    @property
    def pid(self) -> int | None:
        newest = self._newest()
        started = None if newest is None else read_started(newest)
        return int(started["pid"]) if started is not None and newest is not None and _is_locked(newest) else None

    @property
    def exit(self) -> Exit | None:
        """How its last attempt ended; None: it runs, was never started, or nobody saw its end."""
        newest = self._newest()
        return None if newest is None else read_exit(newest)

    def start(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        grace_s: float = shim.GRACE_S,
    ) -> bool:
        """Start it, unless it runs; return whether that was done. What a killed shim left of it is ended first.

        Args:
            command: The program, by its path, and its arguments.
            log: Where it writes, to the end.
            environment: All of its variables. None: this process'.
            grace_s: Between asking it to end and killing it, with all that it started.

        Raises:
            UnavailableError: it could not be started.
        """
        before = self._newest()
        if not self.withdraw():
            return False
        if before is not None and read_exit(before) is None:
            end_lost(before)
        folder = private_folder(self._attempts) / str(1 if before is None else int(before.name) + 1)
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            return False  # another process starts it at this moment
        attempt_folder(folder, Spec(argv=command, cwd="/", log=str(log), grace_s=grace_s))
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
        _ask_for(folder, environment)
        return True

    def withdraw(self) -> bool:
        """See to it that a start which was asked for and has not happened never does; return whether nothing runs."""
        newest = self._newest()
        # A shim that was asked for it holds `alive` before it claims: so either it is seen, or it never begins.
        return newest is None or not (_is_locked(newest) or (not shim.claim(str(newest)) and _is_locked(newest)))

    def stop(self) -> None:
        """Ask it to end; its shim kills it, and all it started, when the grace period is over."""
        newest = self._newest()
        if newest is not None and _is_locked(newest):
            stop_attempt(newest)
        elif newest is not None and read_exit(newest) is None and not shim.claim(str(newest)):
            end_lost(newest)  # its shim was killed

    def kill(self) -> None:
        """Kill it, if it runs; its shim kills what it started."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is gone, and return whether it is."""
        if (newest := self._newest()) is None:
            return True
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        bell = os.open(newest / "alive", os.O_RDONLY | os.O_NONBLOCK)
        try:
            poller = select.poll()
            poller.register(bell, select.POLLIN)
            while _has_writer(bell):
                left = None if give_up is None else (give_up - time.monotonic()) * 1000
                if left is not None and left <= 0:
                    return False
                poller.poll(left)
            return True
        finally:
            os.close(bell)

    def _newest(self) -> Path | None:
        try:
            numbers = [int(name) for name in os.listdir(self._attempts) if name.isdecimal()]  # noqa: PTH208  only names
        except FileNotFoundError:
            return None
        return self._attempts / str(max(numbers)) if numbers else None


def _ask_for(folder: Path, environment: Mapping[str, str] | None) -> None:
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
    give_up = time.monotonic() + _START_S
    while not (folder / "started").exists():
        if (folder / "shim.error").exists() or time.monotonic() > give_up:
            raise UnavailableError(f"The process of {str(folder)!r} could not be started. Is the disk full?")
        time.sleep(_POLL_S)


def _is_locked(folder: Path) -> bool:
    try:
        bell = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        return _has_writer(bell)
    finally:
        os.close(bell)


def _has_writer(bell: int) -> bool:
    """Return whether anybody holds a FIFO open for writing; what was written is read."""
    while True:
        try:
            if not os.read(bell, 64):
                return False
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return True
