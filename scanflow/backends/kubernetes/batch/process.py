"""Runs a step's own process inside its pod: its streams to the pod's log and to the claim. Standard library only."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from scanflow.backends.kubernetes.batch.framing import framed

GRACE_S = 5.0
"""How long a process that is to end may take, before it is killed."""

TAIL_BYTES = 65_536
_TIMED_OUT = 124
_BLOCK = 65_536


class ProcessEnd(NamedTuple):
    """How a process ended; the fields that :class:`~scanflow.backends.kubernetes.batch.report.TaskReport` has too have
    its names."""

    began: float
    seconds: float
    exit_code: int
    """128 and the signal's number where a signal ended it."""

    cpu_s: float
    max_rss_bytes: int
    code: int
    """Negative: the signal that ended it."""

    cause: str
    """``timeout``, ``stopped``, ``ended`` (its pod is); empty: nobody ended it."""

    stderr: str
    """The end of its standard error."""

    timeout_s: float | None

    @property
    def succeeded(self) -> bool:
        return self.code == 0 and not self.cause

    def text(self) -> str:
        """Return the report of one that succeeded, as short JSON."""
        return json.dumps({name: getattr(self, name) for name in self._fields[:5]})


class _Lines:
    """One stream of a process, handed on in whole lines."""

    def __init__(self, source: IO[bytes], kept: IO[bytes] | None, *, error: bool) -> None:
        self.source, self._kept, self._error = source, kept, error
        self._rest, self.tail = b"", b""

    def read(self) -> bool:
        """Take what there is; say whether there will be more."""
        data = os.read(self.source.fileno(), _BLOCK)
        if self._kept is not None:
            self._kept.write(data)
            self._kept.flush()
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        self._hand_on(whole + newline)
        if not data:
            self._hand_on(self._rest)
        return bool(data)

    def _hand_on(self, data: bytes) -> None:
        sys.stdout.buffer.write(framed(data, error=self._error))
        sys.stdout.buffer.flush()


def run_process(
    argv: list[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float | None, logs: Path
) -> ProcessEnd:
    """Run a process to its end; what it started ends with it. SIGTERM ends it too, SIGUSR1 tells that it was asked."""
    began, clock = time.time(), time.monotonic()
    asked: list[str] = []
    process = subprocess.Popen(
        argv, cwd=cwd, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )

    def end(number: int, _: Any = None) -> None:
        asked.append("stopped" if number == signal.SIGUSR1 else "ended")
        _signal(process, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def kill(*_: Any) -> None:
        if not asked:
            asked.append("timeout")
        _signal(process, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, end)
    write_pid()
    if timeout_s is not None:
        signal.setitimer(signal.ITIMER_REAL, max(0.001, timeout_s))
    text = _follow(process, logs)
    _, status, usage = os.wait4(process.pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    _signal(process, signal.SIGKILL)  # what it started and left behind
    process.returncode = code = os.waitstatus_to_exitcode(status)
    how = asked[0] if asked else ""
    return ProcessEnd(
        began=began,
        seconds=time.monotonic() - clock,
        exit_code=_TIMED_OUT if how == "timeout" else code if code >= 0 else 128 - code,
        cpu_s=usage.ru_utime + usage.ru_stime,
        max_rss_bytes=usage.ru_maxrss * 1024,
        code=code,
        cause=how,
        stderr=text,
        timeout_s=timeout_s,
    )


PID_FILE = Path("/tmp/scanflow-step.pid")  # noqa: S108  the pod's own


def write_pid() -> None:
    """Note who is to be signalled; Argo's own program is the first one of the pod."""
    try:
        PID_FILE.write_text(str(os.getpid()), encoding="ascii")
    except OSError:
        pass


def _follow(process: subprocess.Popen[bytes], logs: Path) -> str:
    """Hand on what a process writes until it closes its streams; return the end of its standard error."""
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        kept = [_kept(logs, name) for name in ("stdout", "stderr")]
        out, err = (_Lines(process.stdout, kept[0], error=False), _Lines(process.stderr, kept[1], error=True))
        for one in (out, err):
            selector.register(one.source, selectors.EVENT_READ, one)
        while selector.get_map():
            for found, _ in selector.select():
                if not found.data.read():
                    selector.unregister(found.fileobj)
        for file in (*kept, process.stdout, process.stderr):
            if file is not None:
                file.close()
    return err.tail.decode("utf-8", errors="replace")


def _kept(logs: Path, name: str) -> IO[bytes] | None:
    """Open the copy on the claim. A claim that is full does not end a step: its log is in the pod too."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        return (logs / f"{name}.log").open("wb", buffering=0)
    except OSError:
        return None


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass
