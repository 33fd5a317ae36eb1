"""The supervisor of one service: ``python -m …services.supervisor FOLDER``.

One loop, no threads: it waits for sockets, pipes and the clock, observes everything, computes the actions by
:func:`~scanflow.backends.local.services.supervisor.reconcile.reconcile`, and performs them. It has no state of its own:
the desired state is in ``service.json``, processes are in the attempts' folders, instances report the rest, and the
shim, which restarts it, holds the listening socket.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scanflow.backends.local.services.control.supervisor_control import start_supervisor
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state.desired import read_desired
from scanflow.backends.local.services.supervisor.controller import ServiceController
from scanflow.backends.service_desired import DesiredState
from scanflow.errors import ScanflowError
from scanflow.files.open_files import raise_open_file_limit
from scanflow.processes import seqpacket
from scanflow.processes.cpu_priority import take_short_slices
from scanflow.processes.home_watch import is_same_file
from scanflow.processes.shared_files import take_lock
from scanflow.processes.shims import Shims

_log = logging.getLogger(__name__)

PATIENCE_S = 2.0  # longest wait for the lock: ``is_locked`` holds it for an instant
LOG_BYTES = 1_000_000  # a larger log is truncated
IDLE_S = 1.0  # longest that the loop sleeps
RESTART = 1  # the exit code after which the shim restarts the supervisor; after 0 it does not


class Supervisor:
    """The event loop around one :class:`ServiceController`."""

    def __init__(
        self,
        folder: ServiceFolder,
        desired: DesiredState,
        shims: Shims,
        stopping: threading.Event,
        *,
        is_in_place: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_in_place``: whether the folder is where it was; if not, the service ends with its instances."""
        self._stopping = stopping  # ends the loop; instances run on
        self._is_in_place = is_in_place
        self._selector = selectors.DefaultSelector()
        self._listener = seqpacket.listen(folder.socket)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self.service = ServiceController(folder, desired, shims, self._selector)
        self._selector.register(shims, selectors.EVENT_READ, _ignore_event)

    def run(self) -> bool:
        """Run the loop until the service has ended, and return whether it has."""
        self.service.adopt()
        while not (self._stopping.is_set() or self.service.shims.has_lost_shim):
            if not self._is_in_place():
                _log.error("The home was moved or deleted: the service ends. The next command about it starts it again")
                self.service.shims.end()
                return False
            try:
                if self.service.tick():
                    return True
            except (ScanflowError, OSError) as error:  # mostly a full disk: instances serve on
                _log.warning("%s", error)
                self._wait(IDLE_S)
                continue
            self._wait(self.service.pause_s())
        return False

    def close(self) -> None:
        self.service.close()
        self._listener.close()
        self._selector.close()

    def _wait(self, pause_s: float) -> None:
        callers = self.service.find_watched_socket()
        if callers is not None:
            self._selector.register(callers, selectors.EVENT_READ, _ignore_event)
        for key, _ in self._selector.select(min(pause_s, IDLE_S)):
            key.data()
        if callers is not None:
            self._selector.unregister(callers)

    def _accept(self) -> None:
        """Accept connections of processes that changed the desired state, look for a supervisor or await a report."""
        while (peer := seqpacket.accept(self._listener)) is not None:
            self.service.readers.add(peer)


def _ignore_event() -> None:
    """Do nothing: the event wakes the loop, which checks everything."""


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    folder = ServiceFolder(Path(arguments[0]))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        # A bare descriptor, which only the end of the process closes: if the lock is free, there is no supervisor.
        lock = os.open(folder.supervised, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return 0  # deleted meanwhile
    if not take_lock(lock, PATIENCE_S) or (desired := read_desired(folder)) is None:
        return 0
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        if folder.log.stat().st_size > LOG_BYTES:
            os.truncate(folder.log, 0)
    except OSError as error:
        _log.warning("%s", error)
    raise_open_file_limit()
    take_short_slices(inherited=False)  # clients wait for this process when an instance was killed
    with Shims(channel=socket.socket(fileno=0)) as shims:
        in_place = partial(is_same_file, folder.supervised, lock)
        supervisor = Supervisor(folder, desired, shims, stopping, is_in_place=in_place)
        try:
            done = supervisor.run()
            if shims.has_lost_shim:  # nothing can be started any more, nor would this process be restarted
                _log.error("the shim was killed: starting another")
                start_supervisor(folder, inherit=[shared.number for shared in supervisor.service.sockets])
        finally:
            supervisor.close()
    if not done:
        return RESTART
    folder.grants.unlink(missing_ok=True)
    folder.socket.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
