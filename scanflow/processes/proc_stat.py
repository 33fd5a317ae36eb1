"""Fields of ``/proc/PID/stat``, and the CPU seconds of ``/proc/stat``, see proc(5)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM, _STARTED = 11, 12, 19  # counted from the state
_IMPORTED = time.time()


def read_stat_fields(pid: int) -> list[str]:
    """Return the fields from the state on; the program's name before it may contain anything, even a bracket.

    Raises:
        OSError: there is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def compute_start_time() -> float:
    """Return when this process started, in seconds since the epoch, to 10 ms."""
    try:
        ticks = int(read_stat_fields(os.getpid())[_STARTED])
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS)
    except (OSError, AttributeError):  # not Linux
        return _IMPORTED


def compute_cpu_seconds(fields: Sequence[str]) -> float:
    """Return the CPU time of a process, without its ended children."""
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def read_busy_seconds(proc: Path = Path("/proc")) -> dict[int, float]:
    """Return the seconds since boot that each CPU was busy for this machine; empty if unknown."""
    try:
        lines = (proc / "stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    seconds: dict[int, float] = {}
    for name, *fields in (line.split() for line in lines if line.startswith("cpu")):
        if name != "cpu":
            user, nice, system, _idle, _wait, interrupts, soft = map(int, fields[:7])
            seconds[int(name.removeprefix("cpu"))] = (user + nice + system + interrupts + soft) / _TICKS
    return seconds
