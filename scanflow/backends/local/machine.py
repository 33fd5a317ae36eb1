"""How much of this machine may be used: what the kernel and the container really grant, not what is installed."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "this_machine"]

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores and memory that this process may use."""

    cores: int
    memory_bytes: int


def this_machine(cgroup: Path = CGROUP) -> Machine:
    """Return ``min(affinity mask, quota rounded up)`` cores, and the smaller of memory and its limit."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    quota = _quota(cgroup)
    limit = _number(cgroup / "memory.max") or _number(cgroup / "memory" / "memory.limit_in_bytes")
    return Machine(
        cores=max(1, min(allowed, math.ceil(quota)) if quota else allowed),
        memory_bytes=min(memory, limit) if limit else memory,
    )


def _quota(cgroup: Path) -> float | None:
    """Return the cgroup's CPU limit in cores: version 2 has one file, version 1 two."""
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _number(cgroup / "cpu" / "cpu.cfs_quota_us"), _number(cgroup / "cpu" / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
