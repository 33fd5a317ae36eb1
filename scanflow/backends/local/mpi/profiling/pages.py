"""Memory traffic of processes without counters of the CPU: which pages they touch in a few milliseconds.

The kernel marks pages that are used, and takes the marks back when asked (``/proc/PID/clear_refs``). What was touched
in a moment beyond what the last cache holds has come from memory. That is a lower bound: a page that is read twice
counts once. Marks are of pages, so a byte of a huge page counts as all of it.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

WINDOWS_S: Final = (0.004, 0.008, 0.016, 0.032)
"""How long pages are watched: short for small arrays, which are touched whole at once, and longer for large ones."""

_LEAST_CPU_S: Final = 0.001  # in a window; a process that did not run tells nothing
_LEAST_SAMPLES: Final = 3
_REFERENCED: Final = re.compile(r"^Referenced:\s+(\d+) kB$", re.MULTILINE)


class Touched(NamedTuple):
    """What a process touched in one window."""

    at_s: float
    """By the monotonic clock."""

    window_s: float
    cpu_s: float
    bytes: int


def touched(pid: int, window_s: float) -> Touched | None:
    """Return what a process touches in a window; None: it has ended, or this may not be asked."""
    folder = Path("/proc") / str(pid)
    try:
        (folder / "clear_refs").write_text("1", encoding="ascii")
        before = _cpu_s(folder)
        time.sleep(window_s)
        after = _cpu_s(folder)
        found = _REFERENCED.search((folder / "smaps_rollup").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    return Touched(time.monotonic(), window_s, after - before, int(found[1]) * 1024)


def traffic(samples: Iterable[Touched], cache_bytes: int, *, outside_mpi: float = 1.0) -> float | None:
    """Return the bytes from memory for each second of CPU outside MPI, at least; None: too little was seen.

    Args:
        samples: Of all ranks, which are alike.
        cache_bytes: A rank's share of the last cache.
        outside_mpi: The share of the ranks' CPU time that is not MPI's, which waits by asking again and again.
    """
    windows: dict[float, list[Touched]] = defaultdict(list)
    for one in samples:
        if one.cpu_s >= _LEAST_CPU_S:
            windows[one.window_s].append(one)
    rates = [
        sum(max(0, one.bytes - cache_bytes) for one in found) / (sum(one.cpu_s for one in found) * outside_mpi)
        for found in windows.values()
        if len(found) >= _LEAST_SAMPLES and outside_mpi > 0
    ]
    return max(rates, default=None)


def _cpu_s(folder: Path) -> float:
    """Return the CPU time of a process, all its threads: exact, which ``/proc/PID/stat`` is not."""
    return (
        sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in (folder / "task").iterdir())
        / 1e9
    )
