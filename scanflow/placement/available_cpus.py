"""The CPUs and memory that this process may use: by affinity mask and control groups, not what is installed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from scanflow.errors import InvalidError
from scanflow.placement.cpulist import parse_cpus

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")
_T = TypeVar("_T")
_UNLIMITED = 2**62  # the first version writes "no limit" as the largest whole number of pages

_CONTROLLERS = {"cpu": ("cpu", "cpu,cpuacct", "cpuacct,cpu"), "cpuset": ("cpuset",), "memory": ("memory",)}


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The limits of control groups. None: no limit. The quota is in cores' worth of time."""

    cpus: tuple[int, ...] | None = None
    memory_nodes: tuple[int, ...] | None = None
    quota: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """CPUs and memory that this process may use, by affinity mask, cpuset and memory limit."""

    cpus: tuple[int, ...]
    quota: float | None
    """Cores' worth of time that the control groups grant; None: no limit."""

    memory_bytes: int

    @property
    def cores(self) -> int:
        return max(1, min(len(self.cpus), math.ceil(self.quota)) if self.quota else len(self.cpus))


def read_this_machine(cgroup: Path = CGROUP, proc: Path = PROC) -> Machine:
    limits = read_limits(cgroup, proc)
    mask = read_affinity_mask()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        # A cpuset that has none of them was changed under us, or is another machine's: the mask is what counts.
        cpus=tuple(cpu for cpu in mask if limits.cpus is None or cpu in limits.cpus) or mask,
        quota=limits.quota,
        memory_bytes=memory if limits.memory_bytes is None else min(memory, limits.memory_bytes),
    )


def read_limits(cgroup: Path = CGROUP, proc: Path = PROC) -> CgroupLimits:
    """Return the limits of this process' control groups (``self/cgroup`` below ``proc``) and of those above them."""
    groups = _Groups(cgroup, proc)
    return CgroupLimits(
        groups.read_cpuset("cpus"), groups.read_cpuset("mems"), groups.read_quota(), groups.read_memory_limit()
    )


def find_memory_group_folder(cgroup: Path = CGROUP, proc: Path = PROC) -> tuple[Path, bool] | None:
    """Return this process' own memory control group, and whether it is a cgroup v2 group; None: there is none."""
    return _Groups(cgroup, proc).find_memory_folder()


def read_affinity_mask() -> tuple[int, ...]:
    """Return the CPUs this process may run on; all CPUs on systems without such a mask."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


class _Groups:
    def __init__(self, root: Path, proc: Path) -> None:
        self._root = root
        self._unified: str | None = None
        self._first: dict[str, str] = {}
        for line in (read_as(str, proc / "self" / "cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if number == "0" and not names:
                self._unified = path
            for name in names.split(","):
                self._first[name] = path

    def read_quota(self) -> float | None:
        quotas = [limit for folder in self._list_v2_folders() if (limit := _read_v2_quota(folder)) is not None]
        quotas += [limit for folder in self._list_v1_folders("cpu") if (limit := _read_v1_quota(folder)) is not None]
        return min(quotas, default=None)

    def read_memory_limit(self) -> int | None:
        limits = [read_as(int, folder / "memory.max") for folder in self._list_v2_folders()]
        limits += [read_as(int, folder / "memory.limit_in_bytes") for folder in self._list_v1_folders("memory")]
        return min((limit for limit in limits if limit is not None and 0 < limit < _UNLIMITED), default=None)

    def find_memory_folder(self) -> tuple[Path, bool] | None:
        if "memory" in self._first:
            return next(self._list_v1_folders("memory")), False
        return None if self._unified is None else (next(self._list_v2_folders()), True)

    def read_cpuset(self, what: str) -> tuple[int, ...] | None:
        """Return the CPUs (``cpus``) or nodes (``mems``) of the nearest group that names any."""
        names = (f"cpuset.{what}.effective", f"cpuset.effective_{what}", f"cpuset.{what}")
        for folder in (*self._list_v2_folders(), *self._list_v1_folders("cpuset")):
            for name in names:
                if numbers := read_as(parse_cpus, folder / name):
                    return numbers
        return None

    def _list_v2_folders(self) -> Iterator[Path]:
        """Yield the cgroup v2 folders, innermost first; beside v1 it may be mounted in ``unified``."""
        for root in (self._root, self._root / "unified"):
            yield from _walk_up(root, self._unified)

    def _list_v1_folders(self, controller: str) -> Iterator[Path]:
        for name in _CONTROLLERS[controller]:
            yield from _walk_up(self._root / name, self._first.get(controller))


def _walk_up(root: Path, path: str | None) -> Iterator[Path]:
    """Yield the folder of a group below ``root``, then those above it, ``root`` last.

    Inside a container the path may begin with folders that only the host sees; what is left of it then counts.
    """
    parts = [part for part in PurePosixPath(path or "/").parts if part not in {"/", ".."}]
    while parts and not root.joinpath(*parts).is_dir():
        parts = parts[1:]
    for length in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:length])


def _read_v2_quota(folder: Path) -> float | None:
    words = (read_as(str, folder / "cpu.max") or "").split()
    if not words or not words[0].isdigit():
        return None
    period = int(words[1]) if len(words) > 1 and words[1].isdigit() else 100_000
    return int(words[0]) / period if int(words[0]) and period else None


def _read_v1_quota(folder: Path) -> float | None:
    quota, period = read_as(int, folder / "cpu.cfs_quota_us"), read_as(int, folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def read_as(make: Callable[[str], _T], path: Path) -> _T | None:
    """Parse a file with ``make``; None: it is missing, or holds something else."""
    try:
        return make(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, InvalidError):
        return None
