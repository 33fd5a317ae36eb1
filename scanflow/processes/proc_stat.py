"""Fields of ``/proc/PID/stat``, see proc(5)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12  # counted from the state


def read_stat_fields(pid: int) -> list[str]:
    """Return the fields from the state on; the program's name before it may contain anything, even a bracket.

    Raises:
        OSError: there is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def compute_cpu_seconds(fields: Sequence[str]) -> float:
    """Return the CPU time of a process, without its ended children."""
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
