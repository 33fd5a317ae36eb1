"""Memory traffic of processes without CPU counters, by the pages they touch in a few milliseconds.

The kernel marks referenced pages, and clears the marks on request (``/proc/PID/clear_refs``). Bytes touched in a window
beyond the size of the last-level cache have come from memory. That is a lower bound: a page that is read twice counts
once. Marks are per page, so a byte of a huge page counts as all of it.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

WINDOWS_S: Final = (0.004, 0.008, 0.016, 0.032)
"""Lengths of the windows: short for small arrays, which are touched whole at once, and longer for large ones."""

_MIN_CPU_S: Final = 0.001  # in a window; a process that did not run is no sample
_MIN_SAMPLES: Final = 3
_REFERENCED: Final = re.compile(r"^Referenced:\s+(\d+) kB$", re.MULTILINE)


class TouchedBytes(NamedTuple):
    """The bytes a process touched in one window."""

    at_s: float
    """Time of the monotonic clock."""

    window_s: float
    cpu_s: float
    bytes: int


def sample_pages(pid: int, window_s: float) -> TouchedBytes | None:
    """Sample the pages a process touches in a window; None: the process has ended, or permission is denied."""
    folder = Path("/proc") / str(pid)
    try:
        (folder / "clear_refs").write_text("1", encoding="ascii")
        before = _read_cpu_s(folder)
        time.sleep(window_s)
        after = _read_cpu_s(folder)
        referenced = _REFERENCED.search((folder / "smaps_rollup").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if referenced is None:
        return None
    return TouchedBytes(time.monotonic(), window_s, after - before, int(referenced[1]) * 1024)


def estimate_traffic(samples: Iterable[TouchedBytes], cache_bytes: int, *, outside_mpi: float = 1.0) -> float | None:
    """Return a lower bound of memory traffic in bytes per CPU second outside MPI; None: there are too few samples.

    Args:
        samples: Samples of all ranks.
        cache_bytes: A rank's share of the last-level cache.
        outside_mpi: The share of the ranks' CPU time outside MPI, which polls while it waits.
    """
    windows: dict[float, list[TouchedBytes]] = defaultdict(list)
    for sample in samples:
        if sample.cpu_s >= _MIN_CPU_S:
            windows[sample.window_s].append(sample)
    rates = [
        sum(max(0, sample.bytes - cache_bytes) for sample in window)
        / (sum(sample.cpu_s for sample in window) * outside_mpi)
        for window in windows.values()
        if len(window) >= _MIN_SAMPLES and outside_mpi > 0
    ]
    return max(rates, default=None)


def _read_cpu_s(folder: Path) -> float:
    """Return the CPU time of a process' threads, more exactly than ``/proc/PID/stat``."""
    return (
        sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in (folder / "task").iterdir())
        / 1e9
    )
