"""When a process began: with its id, this names one process for ever."""

from __future__ import annotations

from pathlib import Path

_ENDED = {"Z", "X"}  # a process that has ended and was not waited for is none any more
_THREADS, _BIRTH = 17, 19  # where proc(5) has them, counted from the state


def birth_of(pid: int) -> str:
    """Return when a process began, in the kernel's own clock; nothing where there is none, or it has ended."""
    try:
        return living_since(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def living_since(stat: str) -> str:
    """Return the time of birth in a line of ``/proc/PID/stat``, if it tells of a living process. Pure.

    One that was killed holds on to its ports until the last of its threads is gone, though the first counts as ended.
    """
    fields = stat.rpartition(")")[2].split()  # a program's name may hold anything, also a bracket
    if len(fields) <= _BIRTH or (fields[0] in _ENDED and int(fields[_THREADS]) <= 1):
        return ""
    return fields[_BIRTH]
