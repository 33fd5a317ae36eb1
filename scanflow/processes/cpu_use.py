"""How many cores others used while something was measured."""

from __future__ import annotations

import math
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from scanflow.placement.available_cpus import read_affinity_mask
from scanflow.processes.proc_stat import compute_cpu_seconds, read_busy_seconds, read_stat_fields

BUSY_CORES: Final = 0.1
"""A measurement is disturbed if others use more than this many cores."""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds since boot."""

    whole: float
    """Of all processes; time stolen by a hypervisor belongs to none."""

    own: float
    """Of what is measured, and of this process with its ended children."""

    @classmethod
    def read(cls, pids: Sequence[int] = ()) -> Self:
        """Read them now. ``pids``: the processes that are measured and no children of this one."""
        own_seconds = sum(
            used.ru_utime + used.ru_stime
            for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        return cls(_read_busy_seconds(), own_seconds + sum(map(_read_process_seconds, pids)))

    def compute_others(self, before: CpuUse, seconds: float) -> float:
        """Compute how many cores other processes used since ``before``."""
        used = (self.whole - before.whole) - (self.own - before.own)
        return max(0.0, used / seconds) if seconds else math.nan


def _read_busy_seconds() -> float:
    """Read the busy CPU seconds of the CPUs that we may use; 0 if unknown."""
    seconds = read_busy_seconds()
    return sum(seconds.get(cpu, 0.0) for cpu in read_affinity_mask())


def _read_process_seconds(pid: int) -> float:
    with suppress(OSError):
        return compute_cpu_seconds(read_stat_fields(pid))
    return 0.0
