"""Start times of processes: together with its id, a start time identifies a process uniquely."""

from __future__ import annotations

from pathlib import Path

_ENDED_STATES = {"Z", "X"}  # a zombie counts as ended
_SUSPENDED_STATES = {"T", "t"}
_THREADS, _START_TIME = 17, 19  # fields of proc(5), counted from the state


def read_start_time(pid: int) -> str:
    """Return a process' start time in clock ticks; empty: there is no such process, or it has ended."""
    return parse_start_time(_read_stat(pid))


def is_suspended(pid: int) -> bool:
    """Return whether a process is stopped by a signal, as by Ctrl-Z, or by a debugger."""
    fields = _split_stat(_read_stat(pid))
    return bool(fields) and fields[0] in _SUSPENDED_STATES


def parse_start_time(stat: str) -> str:
    """Return the start time in a line of ``/proc/PID/stat``; empty: the process has ended. Pure.

    A killed process keeps its ports until its last thread has ended, though the first is a zombie already.
    """
    fields = _split_stat(stat)
    if len(fields) <= _START_TIME or (fields[0] in _ENDED_STATES and int(fields[_THREADS]) <= 1):
        return ""
    return fields[_START_TIME]


def _read_stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _split_stat(stat: str) -> list[str]:
    """Return the fields from the state on."""
    return stat.rpartition(")")[2].split()  # a program's name may hold anything, also a bracket
