"""The runner's side of a shim: start attempts, wait for their exits, adopt those of an earlier runner.

One FIFO per attempt is both the notification and the proof of life: the shim holds it open until the attempt has ended,
so waiting needs no polling and trusts no process id.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from scanflow.errors import UnavailableError
from scanflow.files.closing import Closing
from scanflow.files.private import create_private_folder, write_private
from scanflow.processes import shim

MAX_LOST = 10
"""How many warm shims in a row may end before they start anything: one that cannot import its module never will."""

_GONE_MS = 2000
"""Longest wait for a killed process to end."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One command for a shim to run."""

    argv: Sequence[str]
    cwd: str
    request: str | None = None
    """A function step's request, to be run by a fork of the warm shim instead of ``argv``."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the runner's own environment, which is not written to disk, because it may hold secrets."""

    cpus: Sequence[int] = ()
    """The CPUs it may use; empty: those of its shim."""

    timeout_s: float | None = None
    grace_s: float = shim.GRACE_S
    log: str | None = None
    """The file its output is appended to. None: ``stdout.log`` and ``stderr.log`` of the attempt."""

    restart: bool = False
    """Whether the shim starts it again when it is killed, or fails once it has run, until it is stopped or exits with
    0 or 2."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of an attempt."""

    exit_code: int | None
    """None if a signal killed it, or if it is unknown."""

    signal: int | None = None
    reason: Literal["timeout", "stopped", "lost", "void"] | None = None
    """Why it was stopped; ``lost``: its shim was killed; ``void``: it never started and never will."""

    began: float | None = None
    seconds: float | None = None
    user_s: float | None = None
    system_s: float | None = None
    max_rss_bytes: int | None = None

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 and self.reason is None


def create_attempt_folder(folder: Path, spec: Spec) -> Path:
    create_private_folder(folder)
    os.mkfifo(folder / "alive", 0o600)
    write_private(folder / "spec.json", json.dumps(asdict(spec)))
    return folder


def read_exit(folder: Path) -> Exit | None:
    try:
        return Exit(**json.loads((folder / "exit").read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(slots=True)
class _Watched:
    folder: Path
    fifo: int
    own_end: int | None
    """Our own write end, held until the shim has opened its own: without it the FIFO would look closed from the
    start."""

    def close(self) -> None:
        for end in (self.fifo, self.own_end):
            if end is not None:
                os.close(end)


class Shims(Closing):
    """One shim and the attempts that run under it. Attempts continue when the context ends.

    ``warm``: a module that the shim imports once; its ``main`` is called in a fork with each ``Spec.request``.
    ``channel``: the request channel of a shim that is there already, instead of one of its own.
    """

    def __init__(self, *, warm: str | None = None, channel: socket.socket | None = None) -> None:
        self._warm = warm
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Path, _Watched] = {}
        self._shim: subprocess.Popen[bytes] | None = None
        self._lost = 0  # shims in a row that ended before they started anything
        self._channel = channel
        self._wake_from, self._wake_to = socket.socketpair()
        self._wake_from.setblocking(False)
        self._selector.register(self._wake_from, selectors.EVENT_READ, None)
        if channel is not None:
            self._selector.register(channel, selectors.EVENT_READ, channel)

    def close(self) -> None:
        """Release all attempts; the shim ends with the last of them."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()
        self._leave_shim()
        self._selector.close()
        self._wake_from.close()
        self._wake_to.close()

    def fileno(self) -> int:
        number: int = self._selector.fileno()
        return number

    def wake(self) -> None:
        """Make :meth:`wait` return. The one method that other threads may call."""
        self._wake_to.send(b"w")

    def warm_up(self) -> None:
        """Start the shim now, so that the first attempt does not wait for it."""
        self._request(None)

    def start(self, folder: Path) -> None:
        """Start the attempt that ``folder`` describes."""
        self._watch(folder, os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK), ours=True)
        self._request(str(folder))

    def hold(self, number: int, sock: socket.socket) -> None:
        """Have the shim hold a socket, which all its later children inherit as descriptor ``number``."""
        if self._channel is not None:
            try:
                socket.send_fds(self._channel, [f"{json.dumps({'hold': number})}\n".encode()], [sock.fileno()])
            except (BrokenPipeError, ConnectionError):
                pass  # wait() reports it

    def release(self, number: int) -> None:
        self._request({"release": number})

    def end(self) -> None:
        """End all that the shim which restarts this process has started, this process included."""
        self._request({"end": True})

    def adopt(self, folder: Path) -> Exit | None:
        """Adopt an attempt of an earlier runner: return its exit, or None when it still runs and is now watched."""
        if not (folder / "claim").exists() and _claim_void(folder):
            return Exit(exit_code=None, reason="void")
        if ended := read_exit(folder):
            return ended
        fifo = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
        if _read_fifo(fifo) == "ended":
            os.close(fifo)
            return read_exit(folder) or end_lost_attempt(folder)
        self._watch(folder, fifo, ours=False)
        return None

    def wait(self, timeout_s: float | None) -> list[tuple[Path, Exit]]:
        """Wait until an attempt ends, :meth:`wake` is called or the time is up; return the attempts that ended."""
        ended: list[tuple[Path, Exit]] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._drain_wakes()
            elif not isinstance(key.data, _Watched):
                ended += self._discard_unstarted()
            elif exit_ := self._receive(key.data):
                ended.append((key.data.folder, exit_))
        return ended

    @property
    def has_lost_shim(self) -> bool:
        """Whether the shim whose channel was given has been killed."""
        return self._channel is not None and self._channel.fileno() < 0

    def _watch(self, folder: Path, fifo: int, *, ours: bool) -> None:
        own_end = os.open(folder / "alive", os.O_WRONLY | os.O_NONBLOCK) if ours else None
        watched = _Watched(folder, fifo, own_end)
        self._watched[folder] = watched
        self._selector.register(fifo, selectors.EVENT_READ, watched)

    def _receive(self, watched: _Watched) -> Exit | None:
        event = _read_fifo(watched.fifo)
        if event == "started" and watched.own_end is not None:
            os.close(watched.own_end)
            watched.own_end = None
            self._lost = 0
        if event != "ended":
            return None
        self._forget(watched)
        return read_exit(watched.folder) or end_lost_attempt(watched.folder)

    def _forget(self, watched: _Watched) -> None:
        self._selector.unregister(watched.fifo)
        watched.close()
        del self._watched[watched.folder]

    def _request(self, request: Any) -> None:
        line = b"" if request is None else f"{json.dumps(request)}\n".encode()
        try:
            if self._channel is not None:
                if not self.has_lost_shim:
                    self._channel.sendall(line)
                return
            pipe = self._ensure_shim().stdin
            assert pipe is not None
            pipe.write(line)
            pipe.flush()
        except (BrokenPipeError, ConnectionError):
            pass  # the shim was killed: wait() sees that and voids what it had not started

    def _ensure_shim(self) -> subprocess.Popen[bytes]:
        if self._shim is None:
            cold = [sys.executable, "-IS", shim.__file__]
            warm = [
                sys.executable,
                shim.__file__,
                "--warm",
                self._warm or "",
                *(entry or str(Path.cwd()) for entry in sys.path),
            ]
            self._shim = subprocess.Popen(
                warm if self._warm else cold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._shim.stdout is not None
            self._selector.register(self._shim.stdout, selectors.EVENT_READ, self._shim)
        return self._shim

    def _discard_unstarted(self) -> list[tuple[Path, Exit]]:
        """Void the attempts that a killed shim had not started; the next start makes a new shim.

        Raises:
            UnavailableError: none of the last shims has started anything, and the next one would not either.
        """
        self._leave_shim()
        self._lost += 1
        if self._warm and self._lost > MAX_LOST:
            raise UnavailableError(
                f"The process that starts steps ended {MAX_LOST} times before it started one. Its output is above. To "
                f"see the reason, run: {sys.executable} -c 'import {self._warm}'"
            )
        unstarted = [
            attempt for attempt in self._watched.values() if attempt.own_end is not None and _claim_void(attempt.folder)
        ]
        for watched in unstarted:
            self._forget(watched)
        return [(watched.folder, Exit(exit_code=None, reason="void")) for watched in unstarted]

    def _leave_shim(self) -> None:
        if self._channel is not None and not self.has_lost_shim:
            self._selector.unregister(self._channel)
            self._channel.close()
        process, self._shim = self._shim, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        self._selector.unregister(process.stdout)
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.stdout.close()
        process.wait(timeout=10)  # it forks the shim and exits

    def _drain_wakes(self) -> None:
        try:
            while self._wake_from.recv(4096):
                pass
        except BlockingIOError:
            pass


def stop_attempt(folder: Path) -> None:
    """Ask an attempt to end, whichever runner started it; one that has not started is voided."""
    if _claim_void(folder):
        return
    (folder / "stop").touch()
    started = read_started(folder)  # read after the request: a shim that writes it later looks for the request then
    if started and started["shim_birth"] and started["shim_birth"] == shim.read_start_time(int(started["shim"])):
        try:
            os.kill(int(started["shim"]), signal.SIGUSR1)
        except ProcessLookupError:
            pass


def _read_fifo(fifo: int) -> Literal["started", "ended", "silent"]:
    try:
        return "started" if os.read(fifo, 64) else "ended"
    except BlockingIOError:
        return "silent"


def _claim_void(folder: Path) -> bool:
    return shim.claim(str(folder))


def end_lost_attempt(folder: Path) -> Exit:
    """Kill the process that a killed shim left behind, if it is still the same one, and return an unknown exit.

    Without ``started`` there was no process: it is written before the first instruction.
    """
    started = read_started(folder)
    if started is None:
        return Exit(exit_code=None, reason="lost" if (folder / "shim.error").exists() else "void")
    _kill_leftover(int(started["pid"]), started["birth"])
    return Exit(exit_code=None, reason="lost", began=started.get("began"))


def _kill_leftover(pid: int, birth: str) -> None:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if birth and birth == shim.read_start_time(pid):
            shim.signal_group(pid, signal.SIGKILL)
            poller = select.poll()
            poller.register(process, select.POLLIN)
            poller.poll(_GONE_MS)
    finally:
        os.close(process)


def read_started(folder: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((folder / "started").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record
