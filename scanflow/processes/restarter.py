"""A shim that restarts one program: a service's supervisor.

``restarter.py LOCK LOG COMMAND…`` is run as a file, as ``shim.py`` is. The program's standard input is the request
channel. It may hand over listening sockets, which all processes started afterwards inherit. It is restarted until it
exits with 0.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

if TYPE_CHECKING or __package__:
    from scanflow.processes.shim import Shim, detach, reset_signals
else:  # run as a file, it finds nothing of scanflow but what lies beside it
    sys.path.insert(0, os.path.dirname(__file__))
    from shim import Shim, detach, reset_signals

    del sys.path[0]

_RESTART_S, _RESTART_MAX_S, _HEALTHY_S = 0.1, 30.0, 60.0


class Restarter(Shim):
    """A shim that restarts one program, and holds sockets that all its children inherit.

    A request is either a folder, or ``{"hold": N}`` with a socket attached (SCM_RIGHTS): all children started from now
    on inherit it as the descriptor N. ``{"release": N}`` closes it. ``{"end": true}`` ends all: the program, its
    attempts and the shim.
    """

    def __init__(self, log: str, command: list[str]) -> None:
        super().__init__(-1)
        self.requests = None
        self._log, self._command = log, command
        self._pid: int | None = None
        self._channel: Any = None
        self._held: list[int] = []
        self._began = 0.0
        self._pause_s = 0.0
        self._restart: float | None = 0.0
        self._ending = False

    @property
    def busy(self) -> bool:
        return self._pid is not None or self._restart is not None or bool(self._attempts)

    def compute_due(self) -> float | None:
        return min((at for at in (super().compute_due(), self._restart) if at is not None), default=None)

    def receive(self) -> bytes:
        import socket

        try:
            data, fds, _, _ = socket.recv_fds(self._channel, 65536, 8)
        except ConnectionError:
            return b""
        self._held += fds
        return data

    def close_channel(self) -> None:
        super().close_channel()
        self._channel.close()

    def handle_request(self, request: Any) -> str | None:
        if isinstance(request, dict):
            if "hold" in request and self._held:
                held = self._held.pop(0)
                os.dup2(held, request["hold"], inheritable=True)
                os.close(held)
            elif "release" in request:
                os.closerange(request["release"], request["release"] + 1)
            elif "end" in request:
                self._stop = True
            return None
        return super().handle_request(request)

    def handle_child_exit(self, pid: int, status: int, used: Any) -> None:
        if pid != self._pid:
            super().handle_child_exit(pid, status, used)
            return
        self._pid = None
        if status == 0 or self._ending:
            return
        now = time.monotonic()
        if now - self._began >= _HEALTHY_S:
            self._pause_s = 0.0
        self._restart = now + self._pause_s
        self._pause_s = min(max(_RESTART_S, 2 * self._pause_s), _RESTART_MAX_S)

    def _act(self, now: float) -> None:
        if self._stop:  # end the program first, so that it replaces nothing
            self._restart, self._ending = None, True
            if self._pid is not None:
                os.kill(self._pid, signal.SIGKILL)
        super()._act(now)
        if self._restart is not None and now >= self._restart and self.requests is None:
            self._restart = None
            try:
                self._run(now)
            except OSError:  # out of processes or files for now
                self._restart = now + 1.0

    def _run(self, now: float) -> None:
        import socket

        self._unread = b""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                reset_signals()
                log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(theirs.fileno(), 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.execv(self._command[0], self._command)
            finally:
                os._exit(127)
        theirs.close()
        self._channel, self.requests = ours, ours.fileno()
        self._pid, self._began = pid, now


def _main(lock: str, log: str, command: list[str]) -> None:
    """Run a program and restart it, unless another shim does."""
    if os.fork():  # so that it is nobody's child
        os._exit(0)
    try:
        held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    detach(0, 1, 2)
    Restarter(log, command).serve()


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3:])
