"""Start times of processes: together with its id, a start time identifies a process uniquely."""

from __future__ import annotations

from pathlib import Path

_ENDED_STATES = {"Z", "X"}  # a zombie counts as ended
_SUSPENDED_STATES = {"T", "t"}
_THREADS, _START_TIME = 17, 19  # fields of proc(5), counted from the state


def read_start_time(pid: int) -> str:
    """Return a process' start time in clock ticks; empty: there is no such process, or it has ended."""
    try:
        return parse_start_time(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def is_suspended(pid: int) -> bool:
    """Return whether a process is stopped by a signal, as by Ctrl-Z, or by a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in [[state] for state in _SUSPENDED_STATES]


def parse_start_time(stat: str) -> str:
    """Return the start time in a line of ``/proc/PID/stat``; empty: the process has ended. Pure.

    A killed process keeps its ports until its last thread has ended, though the first is a zombie already.
    """
    fields = stat.rpartition(")")[2].split()  # a program's name may hold anything, also a bracket
    if len(fields) <= _START_TIME or (fields[0] in _ENDED_STATES and int(fields[_THREADS]) <= 1):
        return ""
    return fields[_START_TIME]
