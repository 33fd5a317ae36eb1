"""The share of CPU time in MPI by sampling with ``perf``, for machines without a compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

_REPORT_TIMEOUT_S: Final = 60
MIN_SAMPLES: Final = 200
"""One second of CPU time: starting MPI takes a part of it, and that part is spent almost entirely in MPI."""

_SAMPLE_COUNT: Final = re.compile(r"^# Samples: (\d+)(K?)", re.MULTILINE)
_REPORT_LINE: Final = re.compile(r"\s*([0-9.]+)%\s+(\S+)")
_MPI_LIBRARY: Final = re.compile(r"(lib)?(mpi|mpich|mpifort|open-rte|open-pal|pmix|psm2?|fabric|uc[pst]|mca_)[\w.+-]*")
_C_LIBRARY: Final = re.compile(r"(libc|ld-linux[\w-]*)[.-][\w.]*")

_RECORD_SCRIPT: Final = (
    'folder=$1; shift; exec "$0" record --quiet --event cpu-clock:u --freq 199 '
    '--output "$folder/$SCANFLOW_MPI_RANK.perf" -- "$@"'
)


def build_record_command(folder: Path, *, which: Callable[[str], str | None] = shutil.which) -> list[str] | None:
    """Return the command prefix that records a rank's samples into ``folder``; None: ``perf`` cannot be used.

    Samples are by the clock, which needs no CPU counters.
    """
    perf = which("perf")
    return None if perf is None or _is_refused(perf) else ["/bin/sh", "-c", _RECORD_SCRIPT, perf, str(folder)]


def read_mpi_share(folder: Path, rank: int) -> float | None:
    """Return the share of a rank's samples in MPI libraries; None: there are too few."""
    argv = ["perf", "report", "--stdio", "--sort", "dso", "--input", str(folder / f"{rank}.perf")]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_REPORT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_mpi_share(done.stdout)


def parse_mpi_share(report: str) -> float | None:
    """Parse a report by library, and return the share of MPI libraries; None: it has too few samples.

    The C library is left out if there are enough other samples: where a process may not read another's memory, MPI
    copies messages by ``memcpy``, which is then most of the time of a program that only sends.
    """
    counted = _SAMPLE_COUNT.search(report)
    samples = int(counted[1]) * (1000 if counted[2] else 1) if counted else 0
    if samples < MIN_SAMPLES:
        return None
    shares = [(float(match[1]), match[2]) for line in report.splitlines() if (match := _REPORT_LINE.match(line))]
    elsewhere = [(share, name) for share, name in shares if not _C_LIBRARY.match(name)]
    if samples * sum(share for share, _ in elsewhere) / 100 >= MIN_SAMPLES:
        shares = elsewhere
    total = sum(share for share, _ in shares)
    return sum(share for share, name in shares if _MPI_LIBRARY.match(name)) / total if total else None


def _is_refused(perf: str) -> bool:
    tried = [perf, "stat", "--event", "cpu-clock:u", "true"]
    try:
        return subprocess.run(tried, capture_output=True, timeout=_REPORT_TIMEOUT_S, check=False).returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return True
