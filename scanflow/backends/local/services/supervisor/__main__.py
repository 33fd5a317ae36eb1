"""The small process that keeps one service as it is wanted: ``python -m …services.supervisor FOLDER``.

One loop, no threads: it waits for sockets, pipes and the clock, looks at everything, asks
:func:`~scanflow.backends.local.services.supervisor.reconcile.reconcile` what to do, and does it. Nothing it knows is
lost with it: what is wanted is in ``service.json``, what runs is in the attempts' folders, instances report the rest
when asked, and the shim, which starts it again, holds the listening socket.
"""

from __future__ import annotations

import fcntl
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from scanflow.backends.local.services.control.rollout import start_supervisor
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.state.desired import read_desired
from scanflow.backends.local.services.supervisor.controller import ServiceController
from scanflow.backends.service_desired import DesiredState
from scanflow.cpu_priority import take_short_slices
from scanflow.errors import ScanflowError
from scanflow.processes import seqpacket
from scanflow.processes.files import try_lock
from scanflow.processes.open_files import open_many
from scanflow.processes.shims import Shims

_log = logging.getLogger(__name__)

PATIENCE_S = 2.0
LOG_BYTES = 1_000_000  # a larger log is begun again
IDLE_S = 1.0  # longest that the loop sleeps
RESTART = 1  # the exit code that has the shim start another supervisor; with 0 it does not


class Supervisor:
    """The loop around one :class:`ServiceController`: what wakes it, and when it looks again."""

    def __init__(self, folder: ServiceFolder, desired: DesiredState, shims: Shims, stopping: threading.Event) -> None:
        self._stopping = stopping  # what ends the loop; instances run on
        self._selector = selectors.DefaultSelector()
        self._door = seqpacket.listen(folder.socket)
        self._selector.register(self._door, selectors.EVENT_READ, self._accept)
        self.service = ServiceController(folder, desired, shims, self._selector)
        self._selector.register(shims, selectors.EVENT_READ, _nothing)

    def run(self) -> bool:
        """Watch the service until there is nothing left of it; say whether that is so."""
        self.service.adopt()
        while not (self._stopping.is_set() or self.service.shims.has_lost_shim):
            try:
                if self.service.tick():
                    return True
            except (ScanflowError, OSError) as error:  # a full disk, most of the time: what serves goes on serving
                _log.warning("%s", error)
                self._wait(IDLE_S)
                continue
            self._wait(self.service.pause_s())
        return False

    def close(self) -> None:
        self.service.close()
        self._door.close()
        self._selector.close()

    def _wait(self, pause_s: float) -> None:
        callers = self.service.callers()
        if callers is not None:
            self._selector.register(callers, selectors.EVENT_READ, _nothing)
        for key, _ in self._selector.select(min(pause_s, IDLE_S)):
            key.data()
        if callers is not None:
            self._selector.unregister(callers)

    def _accept(self) -> None:
        """Be woken by a process that changed what is wanted, or asks whether there is a supervisor."""
        while (peer := seqpacket.accept(self._door)) is not None:
            peer.close()


def _nothing() -> None:
    """Be woken: the loop looks at everything anyway."""


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    folder = ServiceFolder(Path(arguments[0]))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        # A bare descriptor, which only the end of the process closes: where the lock is free, no supervisor is left.
        lock = os.open(folder.supervised, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return 0  # deleted meanwhile
    if not _taken(lock) or (desired := read_desired(folder)) is None:
        return 0
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        if folder.log.stat().st_size > LOG_BYTES:
            os.truncate(folder.log, 0)
    except OSError as error:
        _log.warning("%s", error)
    open_many()
    take_short_slices(inherited=False)  # clients wait for this process when an instance was killed
    with Shims(channel=socket.socket(fileno=0)) as shims:
        supervisor = Supervisor(folder, desired, shims, stopping)
        try:
            done = supervisor.run()
            if shims.has_lost_shim:  # nothing can be started any more, nor would this process be started again
                _log.error("the shim was killed: starting another")
                start_supervisor(folder, inherit=[shared.number for shared in supervisor.service.sockets])
        finally:
            supervisor.close()
    if not done:
        return RESTART
    folder.grants.unlink(missing_ok=True)
    folder.socket.unlink(missing_ok=True)
    return 0


def _taken(lock: int) -> bool:
    """Take the lock, unless another supervisor has it; a process that only looks holds it for an instant."""
    give_up = time.monotonic() + PATIENCE_S
    while not try_lock(lock, fcntl.LOCK_EX):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
