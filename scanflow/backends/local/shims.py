"""The runner's side of the shims: start them, see them end, adopt those that an earlier runner started.

One FIFO an attempt is both the bell and the proof of life: the shim holds it open until its last instruction, so
waiting needs no polling, and no process id has to be believed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from scanflow.backends.local import shim

__all__ = ["Exit", "Shims", "Spec", "attempt_folder", "read_exit", "stop_attempt"]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a shim is told: one command."""

    argv: Sequence[str]
    cwd: str
    request: str | None = None
    """A function step's request, to be run by a fork of the warm spawner instead of ``argv``."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the runner's own environment, which is not written down: it may hold secrets."""

    timeout_s: float | None = None
    grace_s: float = shim.GRACE_S


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended."""

    exit_code: int | None
    """None when a signal ended it, or when nobody knows."""

    signal: int | None = None
    reason: Literal["timeout", "stopped", "lost", "void"] | None = None
    """Why it was ended; ``lost``: its shim was killed; ``void``: it never started, and never will."""

    began: float | None = None
    seconds: float | None = None
    user_s: float | None = None
    system_s: float | None = None
    max_rss_bytes: int | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the step ran to its end and said it went well."""
        return self.exit_code == 0 and self.reason is None


def attempt_folder(folder: Path, spec: Spec) -> Path:
    """Make an attempt's folder, ready for :meth:`Shims.start`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "alive")
    (folder / "spec.json").write_text(json.dumps(asdict(spec)), encoding="utf-8")
    return folder


def read_exit(folder: Path) -> Exit | None:
    """Return how an attempt ended, or None while there is no record of it."""
    try:
        return Exit(**json.loads((folder / "exit").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


@dataclass(slots=True)
class _Watched:
    folder: Path
    bell: int
    own_end: int | None
    """Our own writing end, held until the shim has opened its: without it the FIFO would look closed from the start."""

    def close(self) -> None:
        for end in (self.bell, self.own_end):
            if end is not None:
                os.close(end)


class Shims:
    """The shims of one runner. ``with Shims() as shims``: leaving lets go of them; they run on.

    ``warm``: the spawner is made ready for function steps (``Spec.request``).
    """

    def __init__(self, *, warm: bool = False) -> None:
        self._warm = warm
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Path, _Watched] = {}
        self._spawner: subprocess.Popen[bytes] | None = None
        self._wake_from, self._wake_to = socket.socketpair()
        self._wake_from.setblocking(False)
        self._selector.register(self._wake_from, selectors.EVENT_READ, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of every shim and end the spawner."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()
        self._end_spawner()
        self._selector.close()
        self._wake_from.close()
        self._wake_to.close()

    def fileno(self) -> int:
        """Return what becomes readable when :meth:`wait` has something to tell; for a selector of the caller's."""
        number: int = self._selector.fileno()
        return number

    def wake(self) -> None:
        """Make :meth:`wait` return. The one method that other threads may call."""
        self._wake_to.send(b"w")

    def warm_up(self) -> None:
        """Start the spawner now, so that the first step does not wait for it."""
        self._ensure_spawner()

    def start(self, folder: Path) -> None:
        """Start the attempt that ``folder`` describes."""
        self._watch(folder, os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK), ours=True)
        line = f"{json.dumps(str(folder))}\n".encode()
        pipe = self._ensure_spawner().stdin
        if pipe is not None:
            try:
                pipe.write(line)
                pipe.flush()
            except BrokenPipeError:
                pass  # the spawner was killed: wait() sees that and voids what it had not begun

    def adopt(self, folder: Path) -> Exit | None:
        """Take over an attempt of an earlier runner: return how it ended, or None when it runs on and is now
        watched."""
        if not (folder / "claim").exists() and _void(folder):
            return Exit(exit_code=None, reason="void")
        if ended := read_exit(folder):
            return ended
        bell = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
        if _rings(bell) == "ended":
            os.close(bell)
            return read_exit(folder) or _lost(folder)
        self._watch(folder, bell, ours=False)
        return None

    def wait(self, timeout_s: float | None) -> list[tuple[Path, Exit]]:
        """Return the attempts that ended, waiting for the first of them, for :meth:`wake` or for the time limit."""
        ended: list[tuple[Path, Exit]] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._drain_wakes()
            elif isinstance(key.data, subprocess.Popen):
                ended += self._spawner_died()
            elif exit_ := self._hear(key.data):
                ended.append((key.data.folder, exit_))
        return ended

    def _watch(self, folder: Path, bell: int, *, ours: bool) -> None:
        own_end = os.open(folder / "alive", os.O_WRONLY | os.O_NONBLOCK) if ours else None
        watched = _Watched(folder, bell, own_end)
        self._watched[folder] = watched
        self._selector.register(bell, selectors.EVENT_READ, watched)

    def _hear(self, watched: _Watched) -> Exit | None:
        heard = _rings(watched.bell)
        if heard == "started" and watched.own_end is not None:
            os.close(watched.own_end)
            watched.own_end = None
        if heard != "ended":
            return None
        self._forget(watched)
        return read_exit(watched.folder) or _lost(watched.folder)

    def _forget(self, watched: _Watched) -> None:
        self._selector.unregister(watched.bell)
        watched.close()
        del self._watched[watched.folder]

    def _ensure_spawner(self) -> subprocess.Popen[bytes]:
        if self._spawner is None:
            cold = [sys.executable, "-IS", shim.__file__]
            warm = [sys.executable, shim.__file__, "--warm", *(entry or str(Path.cwd()) for entry in sys.path)]
            self._spawner = subprocess.Popen(
                warm if self._warm else cold,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert self._spawner.stdout is not None
            self._selector.register(self._spawner.stdout, selectors.EVENT_READ, self._spawner)
        return self._spawner

    def _spawner_died(self) -> list[tuple[Path, Exit]]:
        """Void what the spawner was told of and had not begun; the next start makes a new spawner."""
        self._end_spawner()
        unstarted = [one for one in self._watched.values() if one.own_end is not None and _void(one.folder)]
        for watched in unstarted:
            self._forget(watched)
        return [(watched.folder, Exit(exit_code=None, reason="void")) for watched in unstarted]

    def _end_spawner(self) -> None:
        spawner, self._spawner = self._spawner, None
        if spawner is None or spawner.stdin is None or spawner.stdout is None:
            return
        self._selector.unregister(spawner.stdout)
        try:
            spawner.stdin.close()
        except BrokenPipeError:
            pass
        spawner.stdout.close()
        spawner.wait(timeout=10)

    def _drain_wakes(self) -> None:
        try:
            while self._wake_from.recv(4096):
                pass
        except BlockingIOError:
            pass


def stop_attempt(folder: Path) -> None:
    """Ask an attempt to end, whoever started it; one that has not begun never will. :meth:`Shims.wait` tells when."""
    if _void(folder):
        return
    started = _started(folder)
    if started and _is_shim(started):
        try:
            os.kill(int(started["shim"]), signal.SIGTERM)
        except ProcessLookupError:
            pass


def _rings(bell: int) -> Literal["started", "ended", "silent"]:
    try:
        return "started" if os.read(bell, 64) else "ended"
    except BlockingIOError:
        return "silent"


def _void(folder: Path) -> bool:
    return shim.claim(str(folder))


def _lost(folder: Path) -> Exit:
    """End what a killed shim left behind, if it is still the same process, and say that nobody knows how it went.

    Without a record of its start there was none: that is written before the step's first instruction.
    """
    started = _started(folder)
    if started is None:
        return Exit(exit_code=None, reason="void")
    if started["birth"] == shim.birth(int(started["pid"])):
        shim.signal_group(int(started["pid"]), signal.SIGKILL)
    return Exit(exit_code=None, reason="lost", began=started.get("began"))


def _is_shim(started: Mapping[str, Any]) -> bool:
    """A process id can be given to another process; the step's parent is its shim as long as the step lives."""
    return bool(started["birth"]) and started["birth"] == shim.birth(int(started["pid"]))


def _started(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "started").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
