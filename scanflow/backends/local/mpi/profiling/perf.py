"""The share of CPU time that is MPI's, where nothing can be compiled: by ``perf``, which looks where a program is."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

_REPORT_S: Final = 60
LEAST_SAMPLES: Final = 200
"""A second of CPU: starting MPI takes a part of that, in which nearly all is MPI's."""

_SAMPLES: Final = re.compile(r"^# Samples: (\d+)(K?)", re.MULTILINE)
_LINE: Final = re.compile(r"\s*([0-9.]+)%\s+(\S+)")
_OF_MPI: Final = re.compile(r"(lib)?(mpi|mpich|mpifort|open-rte|open-pal|pmix|psm2?|fabric|uc[pst]|mca_)[\w.+-]*")
_OF_C: Final = re.compile(r"(libc|ld-linux[\w-]*)[.-][\w.]*")

_RECORD: Final = (
    'folder=$1; shift; exec "$0" record --quiet --event cpu-clock:u --freq 199 '
    '--output "$folder/$SCANFLOW_MPI_RANK.perf" -- "$@"'
)


def record_command(folder: Path, *, which: Callable[[str], str | None] = shutil.which) -> list[str] | None:
    """Return what each rank's program is started by so that its samples go to ``folder``; None: there is no ``perf``.

    The samples are by the clock, which needs no counters of the CPU.
    """
    perf = which("perf")
    return None if perf is None or _refused(perf) else ["/bin/sh", "-c", _RECORD, perf, str(folder)]


def share_in_mpi(folder: Path, rank: int) -> float | None:
    """Return the share of a rank's samples that are in a library of MPI's; None: there are none."""
    argv = ["perf", "report", "--stdio", "--sort", "dso", "--input", str(folder / f"{rank}.perf")]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_REPORT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return share_of(done.stdout)


def share_of(report: str) -> float | None:
    """Return the share of MPI's libraries in a report by library; None: it has too few samples, as of a start alone.

    The C library is left out while enough samples are elsewhere: where a process may not read the other's memory, MPI
    copies messages by ``memcpy``, which is then most of what a program does that only sends.
    """
    counted = _SAMPLES.search(report)
    samples = int(counted[1]) * (1000 if counted[2] else 1) if counted else 0
    if samples < LEAST_SAMPLES:
        return None
    found = [(float(match[1]), match[2]) for line in report.splitlines() if (match := _LINE.match(line))]
    elsewhere = [(share, name) for share, name in found if not _OF_C.match(name)]
    if samples * sum(share for share, _ in elsewhere) / 100 >= LEAST_SAMPLES:
        found = elsewhere
    whole = sum(share for share, _ in found)
    return sum(share for share, name in found if _OF_MPI.match(name)) / whole if whole else None


def _refused(perf: str) -> bool:
    tried = [perf, "stat", "--event", "cpu-clock:u", "true"]
    try:
        return subprocess.run(tried, capture_output=True, timeout=_REPORT_S, check=False).returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return True
