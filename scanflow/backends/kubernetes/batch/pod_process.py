"""Run a step's process in its pod, with its streams to the pod's log and the claim. Standard library only."""

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

from scanflow.backends.kubernetes.batch.log_framing import build_frame

GRACE_S = 5.0
"""How long a terminated process may take to end, before it is killed."""

TAIL_BYTES = 1_048_576
"""Of standard error, as of :data:`scanflow.text.tracebacks.TAIL_BYTES`."""

_EXIT_TIMED_OUT = 124
_BLOCK = 65_536
_PIPE_BYTES = 1_048_576
"""The most that a pipe holds."""


class ProcessEnd(NamedTuple):
    """How a process ended. Fields common to :class:`~scanflow.backends.kubernetes.batch.task_report.TaskReport` have
    the same names."""

    began: float
    seconds: float
    exit_code: int
    """128 plus the signal's number if a signal ended it."""

    cpu_s: float
    max_rss_bytes: int
    code: int
    """Negative: the signal that ended it."""

    cause: str
    """``timeout``, ``stopped``, ``ended`` (with its pod); empty: it ended by itself."""

    stderr: str
    """The end of its standard error."""

    timeout_s: float | None
    files: list[tuple[str, int]] | None = None
    """The names and bytes of the files that the task left, where they are few."""

    @property
    def succeeded(self) -> bool:
        return self.code == 0 and not self.cause

    def to_json(self) -> str:
        """Return the report of a successful process as short JSON."""
        fields = {name: getattr(self, name) for name in self._fields[:5]}
        return json.dumps(fields if self.files is None else {**fields, "files": self.files})


class _Lines:
    """One stream of a process, forwarded in whole lines."""

    def __init__(self, source: IO[bytes], copy: IO[bytes] | None, *, error: bool) -> None:
        self.source, self._copy, self._error = source, copy, error
        self._rest, self.tail = b"", bytearray()

    def read(self) -> bool:
        """Read the available data; return whether the stream is still open."""
        try:
            data = os.read(self.source.fileno(), _BLOCK)
        except BlockingIOError:
            return False
        if self._copy is not None:
            self._copy.write(data)
            self._copy.flush()
        self.tail += data
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        self._forward(whole + newline)
        return bool(data)

    def finish(self) -> None:
        """Forward what is left of a stream that its process no longer writes to, and close it.

        Another process may hold it open, so it is not read to its end: only what a pipe may hold by now.
        """
        os.set_blocking(self.source.fileno(), False)
        for _ in range(_PIPE_BYTES // _BLOCK):
            if not self.read():
                break
        self._forward(self._rest)
        for file in (self.source, self._copy):
            if file is not None:
                file.close()

    def _forward(self, data: bytes) -> None:
        sys.stdout.buffer.write(build_frame(data, error=self._error))
        sys.stdout.buffer.flush()


def run_process(
    argv: list[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float | None, logs: Path
) -> ProcessEnd:
    """Run a process and its children to the end. SIGTERM terminates it; SIGUSR1 too, as a requested stop."""
    began, clock = time.time(), time.monotonic()
    causes: list[str] = []
    process = subprocess.Popen(
        argv, cwd=cwd, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )

    def end(number: int, _: Any = None) -> None:
        causes.append("stopped" if number == signal.SIGUSR1 else "ended")
        _signal(process, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def kill(*_: Any) -> None:
        if not causes:
            causes.append("timeout")
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
    process.returncode = code = os.waitstatus_to_exitcode(status)
    cause = causes[0] if causes else ""
    return ProcessEnd(
        began=began,
        seconds=time.monotonic() - clock,
        exit_code=_EXIT_TIMED_OUT if cause == "timeout" else code if code >= 0 else 128 - code,
        cpu_s=usage.ru_utime + usage.ru_stime,
        max_rss_bytes=usage.ru_maxrss * 1024,
        code=code,
        cause=cause,
        stderr=text,
        timeout_s=timeout_s,
    )


PID_FILE = Path("/tmp/scanflow-step.pid")  # noqa: S108  the pod's own


def write_pid() -> None:
    """Write the pid to signal; the first process of the pod is Argo's own program."""
    try:
        PID_FILE.write_text(str(os.getpid()), encoding="ascii")
    except OSError:
        pass


def _follow(process: subprocess.Popen[bytes], logs: Path) -> str:
    """Forward a process' output until it has ended, and kill its children; return the end of its standard error.

    The streams may stay open for longer: a child that it left behind holds them.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: os.write(wake, b"."))
    copies = [_open_log_copy(logs, name) for name in ("stdout", "stderr")]
    out, err = (_Lines(process.stdout, copies[0], error=False), _Lines(process.stderr, copies[1], error=True))
    with selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        for lines in (out, err):
            selector.register(lines.source, selectors.EVENT_READ, lines)
        while not _has_ended(process):
            for key, _ in selector.select():
                if key.data is None:
                    os.read(woken, _BLOCK)
                elif not key.data.read():
                    selector.unregister(key.fileobj)
    _signal(process, signal.SIGKILL)  # children that it left behind
    for lines in (out, err):
        lines.finish()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in (woken, wake):
        os.close(end)
    return err.tail.decode("utf-8", errors="replace")


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, and leave its status to be read."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _open_log_copy(logs: Path, name: str) -> IO[bytes] | None:
    """Open the log's copy on the claim; None: it cannot be written. A full claim does not fail a step."""
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
