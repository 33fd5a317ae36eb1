"""Runs a program on some CPUs, with limited memory, for a limited time, and measures the resources it uses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from scanflow.characterization.measurement import Outcome, Placement, ProgramRun
from scanflow.characterization.memory_group import MemoryGroup, open_memory_group
from scanflow.errors import NotFoundError, UnsupportedError
from scanflow.placement.threads import build_thread_variables
from scanflow.processes.cpu_use import CpuUse

EVENTS = {"cpu-migrations": "migrations", "cache-misses": "cache_misses"}
"""The names of ``perf``'s events, and their names here."""

_JOIN = 'echo $$ > "$0" && exec "$@"'
"""A shell joins the memory group and becomes the program: no part of it runs outside the group."""

_MAX_SHOWN = 2000


@cache
def list_counters() -> tuple[str, ...]:
    """Return the ``perf`` events that this machine counts."""
    program = shutil.which("perf")
    if program is None:
        return ()
    with suppress(OSError, subprocess.TimeoutExpired):
        command = [program, "stat", "-x,", "-e", ",".join(EVENTS), "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return tuple(_parse_counts(done.stderr))
    return ()


@cache
def find_memory_group_problem() -> str | None:
    """Return the reason why memory cannot be limited here; None: it can."""
    try:
        with open_memory_group(2**30):
            return None
    except UnsupportedError as error:
        return str(error)


def run_program(
    argv: Sequence[str], where: Placement, *, timeout_s: float, limit_bytes: int | None = None
) -> ProgramRun:
    """Run a program to its end, or for at most ``timeout_s``.

    Raises:
        NotFoundError: there is no such program.
        UnsupportedError: ``limit_bytes`` is given, and memory cannot be limited here.
    """
    if shutil.which(argv[0]) is None:
        raise NotFoundError(
            f"There is no program {argv[0]!r}, or it is not executable. Give its path, or a program on PATH; make it "
            f"executable: chmod +x {argv[0]}"
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="characterize-")))
        group = None
        if limit_bytes is not None or find_memory_group_problem() is None:
            group = stack.enter_context(open_memory_group(limit_bytes))
        command = list(argv)
        if group is not None:
            command = ["/bin/sh", "-c", _JOIN, str(group.members), *command]
        if list_counters():
            command = ["perf", "stat", "-x,", "-o", str(folder / "perf"), "-e", ",".join(list_counters()), *command]
        return _run(command, where, folder, group, timeout_s)


def _run(
    command: Sequence[str], where: Placement, folder: Path, group: MemoryGroup | None, timeout_s: float
) -> ProgramRun:
    environ = {**os.environ, **build_thread_variables(len(where.cpus))}
    output = folder / "output"
    before, began = CpuUse.read(), time.monotonic()
    with output.open("wb") as file:
        process = _start_on_cpus(command, where, environ, file.fileno())
    timer = threading.Timer(timeout_s, _kill_session, [process.pid])
    timer.start()
    try:
        _, status, used = os.wait4(process.pid, 0)
    except KeyboardInterrupt:
        _kill_session(process.pid)
        os.wait4(process.pid, 0)
        raise
    finally:
        timer.cancel()
    process.returncode = code = os.waitstatus_to_exitcode(status)  # it was waited for here
    seconds = time.monotonic() - began
    others = CpuUse.read().compute_others(before, seconds)
    _kill_session(process.pid)  # what it has left behind
    counted = _parse_counts((folder / "perf").read_text(errors="replace")) if (folder / "perf").exists() else {}
    outcome: Outcome = "succeeded" if code == 0 else "failed"
    if group is not None and group.kills:
        outcome = "out of memory"
    elif code != 0 and seconds >= timeout_s:
        outcome = "timed out"
    peak = None if group is None else group.peak_bytes
    return ProgramRun(
        outcome=outcome,
        seconds=seconds,
        cpu_s=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024 if peak is None else peak,
        voluntary_switches=used.ru_nvcsw,
        involuntary_switches=used.ru_nivcsw,
        minor_faults=used.ru_minflt,
        major_faults=used.ru_majflt,
        read_blocks=used.ru_inblock,
        written_blocks=used.ru_oublock,
        others=others,
        exit_code=code,
        last_lines="" if code == 0 else output.read_text(errors="replace")[-_MAX_SHOWN:].strip(),
        **{EVENTS[name]: count for name, count in counted.items()},
    )


def _start_on_cpus(
    command: Sequence[str], where: Placement, environ: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    """Start a program on some CPUs: it inherits those of the thread that starts it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, where.cpus)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, start_new_session=True
        )
    finally:
        os.sched_setaffinity(0, before)


def _kill_session(session: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def _parse_counts(text: str) -> dict[str, int]:
    """Parse the output of ``perf stat -x,``: a count, a unit, the event's name."""
    rows = [line.split(",") for line in text.splitlines()]
    return {row[2]: int(row[0]) for row in rows if len(row) > 2 and row[2] in EVENTS and row[0].isdecimal()}
