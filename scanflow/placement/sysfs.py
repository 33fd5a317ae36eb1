"""A machine as its kernel shows it below ``/sys``: this one, or another one whose tree was copied.

What a kernel leaves out is taken for the simplest thing it can be: a CPU without siblings is a core, cores without a
package are one socket, a machine without nodes is one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from scanflow.errors import InvalidError
from scanflow.placement.available_cpus import PROC, CgroupLimits, affinity_mask, read_as, read_limits
from scanflow.placement.cpulist import parse_cpus, parse_mask
from scanflow.placement.topology import Cache, Core, NumaNode, Topology

SYSFS = Path("/sys")

_SIZE = re.compile(r"([0-9]+)([KMG]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_list, _mask, _text = partial(read_as, parse_cpus), partial(read_as, parse_mask), partial(read_as, str)
_number = partial(read_as, partial(int, base=0))
_SAME_TIER = 0.9  # cores of one design still differ by a few hundredths: favoured ones may clock higher


def read_topology(sysfs: Path = SYSFS, *, proc: Path = PROC, affinity: Collection[int] | None = None) -> Topology:
    """Return the machine below ``sysfs``, and what its control groups leave of ``affinity``.

    ``affinity``: default: this process' own mask where ``sysfs`` is
    this machine's, else all.
    """
    own = sysfs == SYSFS
    limits = read_limits(sysfs / "fs" / "cgroup", proc)
    mask = affinity_mask() if own and affinity is None else affinity
    tree = _Tree(sysfs, proc)
    if not tree.online:
        if not own:
            raise InvalidError(
                f"There is no machine in {str(sysfs)!r}: it has no devices/system/cpu with CPUs in it. "
                "Give a copy of /sys, or of the folder that holds it."
            )
        tree.online = affinity_mask()  # macOS, or a sandbox that hides /sys
    usable, nodes = _usable(mask, limits, tree.online), tree.nodes()
    known = [node.id for node in nodes]
    near = [node for node in known if limits.memory_nodes is None or node in limits.memory_nodes]
    installed = sum(node.memory_bytes or 0 for node in nodes)
    limit = limits.memory_bytes
    return Topology(
        title=tree.title(),
        cores=tree.cores(nodes),
        nodes=nodes,
        caches=tree.caches(),
        offline=tree.offline(),
        allowed=None if usable == tree.online else usable,
        allowed_nodes=None if not near or near == known else tuple(near),
        quota=limits.quota,
        memory_limit_bytes=None if limit is None or 0 < installed <= limit else limit,
    )


def _usable(mask: Collection[int] | None, limits: CgroupLimits, online: tuple[int, ...]) -> tuple[int, ...]:
    masked = tuple(cpu for cpu in online if mask is None or cpu in mask) or online
    # A cpuset that leaves nothing was changed under us, or is another machine's: the mask is what counts.
    return tuple(cpu for cpu in masked if limits.cpus is None or cpu in limits.cpus) or masked


def another_machine(folder: Path) -> Topology:
    """Return the machine whose ``/sys`` was copied to ``folder``, or to ``folder/sys`` with a ``/proc`` beside it."""
    sysfs = next((one for one in (folder, folder / "sys") if (one / "devices" / "system" / "cpu").is_dir()), folder)
    if sysfs.resolve() == SYSFS:
        return read_topology()
    proc = next((one for one in (folder / "proc", sysfs.parent / "proc") if one.is_dir()), folder / "proc")
    return read_topology(sysfs, proc=proc)


class _Tree:
    def __init__(self, sysfs: Path, proc: Path) -> None:
        self._devices = sysfs / "devices"
        self._cpus = self._devices / "system" / "cpu"
        self._proc = proc
        self._there = sorted(_numbered(self._cpus, "cpu"))
        listed = _list(self._cpus / "online")
        switched_on = [cpu for cpu in self._there if _number(self._cpus / f"cpu{cpu}" / "online") != 0]
        self.online: tuple[int, ...] = listed or tuple(switched_on)

    def offline(self) -> tuple[int, ...]:
        """CPUs that are there but switched off; those that could still be plugged in are not there."""
        there = set(self._there) | set(_list(self._cpus / "present") or ())
        return tuple(sorted(there - set(self.online)))

    def title(self) -> str:
        for line in (_text(self._proc / "cpuinfo") or "").splitlines():
            field, _, value = line.partition(":")
            if field.strip() in {"model name", "Model", "cpu", "Processor", "Hardware"} and value.strip():
                return " ".join(value.split())
        return ""

    def cores(self, nodes: Iterable[NumaNode]) -> tuple[Core, ...]:
        """Return the cores with their siblings that are online. Without packages, a node stands for a socket."""
        tiers = self._tiers()
        homes = {cpu: node.id for node in nodes for cpu in node.cpus}
        packages = {cpu: self._topology(cpu, "physical_package_id") for cpu in self.online}
        if all(package is None or package < 0 for package in packages.values()):
            packages = dict(homes)
        found: list[Core] = []
        left = set(self.online)
        for cpu in self.online:
            if cpu in left:
                siblings = tuple(sorted((self._siblings(cpu) & left) | {cpu}))
                left.difference_update(siblings)
                found.append(Core(cpus=siblings, socket=max(0, packages[cpu] or 0), tier=tiers.get(cpu, 0)))
        return tuple(found)

    def _siblings(self, cpu: int) -> set[int]:
        folder = self._cpus / f"cpu{cpu}" / "topology"
        for name in ("core_cpus", "thread_siblings"):
            if listed := _shared(folder, name, cpu):
                return set(listed)
        names = ("physical_package_id", "die_id", "core_id")
        own = [self._topology(cpu, name) for name in names]
        if own[-1] is None or own[-1] < 0:
            return {cpu}
        return {other for other in self.online if [self._topology(other, name) for name in names] == own}

    def _topology(self, cpu: int, name: str) -> int | None:
        return _number(self._cpus / f"cpu{cpu}" / "topology" / name)

    def _tiers(self) -> Mapping[int, int]:
        """Return how fast each CPU's core is on a hybrid machine: by capacity (ARM, Intel since 6.12), else by PMU."""
        capacities = {
            cpu: capacity for cpu in self.online if (capacity := _number(self._cpus / f"cpu{cpu}" / "cpu_capacity"))
        }
        if len(capacities) == len(self.online) and len(set(capacities.values())) > 1:
            tiers: dict[int, int] = {}
            best, tier = max(capacities.values()), 0
            for cpu in sorted(capacities, key=lambda cpu: -capacities[cpu]):
                if capacities[cpu] < _SAME_TIER * best:
                    best, tier = capacities[cpu], tier + 1
                tiers[cpu] = tier
            return tiers
        groups = [_list(self._devices / name / "cpus") or () for name in ("cpu_core", "cpu_atom", "cpu_lowpower")]
        return {cpu: tier for tier, cpus in enumerate(filter(None, groups)) for cpu in cpus}

    def nodes(self) -> tuple[NumaNode, ...]:
        """Return the NUMA nodes; one where there are none. CPUs that are in none join the node of their socket."""
        folder = self._devices / "system" / "node"
        online = _list(folder / "online")
        numbers = [node for node in sorted(_numbered(folder, "node")) if online is None or node in online]
        owned: dict[int, int] = {}
        for node in numbers:
            for cpu in _list(folder / f"node{node}" / "cpulist") or _mask(folder / f"node{node}" / "cpumap") or ():
                owned.setdefault(cpu, node)
        if not owned:
            memory = [_memory(folder / f"node{node}" / "meminfo") for node in numbers]
            total = sum(one for one in memory if one) or self._memory()
            return (NumaNode(id=numbers[0] if numbers else 0, cpus=self.online, memory_bytes=total),)
        packages = {cpu: self._topology(cpu, "physical_package_id") for cpu in self.online}
        homes = {packages[cpu]: node for cpu, node in sorted(owned.items(), reverse=True) if cpu in packages}
        for cpu in self.online:
            owned.setdefault(cpu, homes.get(packages[cpu], numbers[0]))
        distances = [_distances(folder / f"node{node}", len(numbers)) for node in numbers]
        return tuple(
            NumaNode(
                id=node,
                cpus=tuple(cpu for cpu in self.online if owned[cpu] == node),
                memory_bytes=_memory(folder / f"node{node}" / "meminfo")
                if len(numbers) > 1
                else self._of_the_only(node),
                distances=apart,
            )
            for node, apart in zip(numbers, distances, strict=True)
        )

    def _of_the_only(self, node: int) -> int | None:
        # Memory that was added to a running virtual machine may be counted here or there.
        found = (_memory(self._devices / "system" / "node" / f"node{node}" / "meminfo"), self._memory())
        return max((memory for memory in found if memory is not None), default=None)

    def _memory(self) -> int | None:
        return _memory(self._proc / "meminfo")

    def caches(self) -> tuple[Cache, ...]:
        found: dict[tuple[int, tuple[int, ...]], Cache] = {}
        online = set(self.online)
        for cpu in self.online:
            folder = self._cpus / f"cpu{cpu}" / "cache"
            for index in sorted(_numbered(folder, "index")):
                cache = folder / f"index{index}"
                level = _number(cache / "level")
                if not level or not 0 < level <= 9 or (_text(cache / "type") or "").strip() == "Instruction":
                    continue
                cpus = tuple(sorted((set(_shared(cache, "shared_cpu", cpu)) & online) | {cpu}))
                found.setdefault((level, cpus), Cache(level=level, cpus=cpus, size_bytes=_size(cache / "size")))
        return tuple(found[key] for key in sorted(found))


def _numbered(folder: Path, prefix: str) -> Iterable[int]:
    try:
        names = [one.name for one in folder.iterdir()]
    except OSError:
        return
    for name in names:
        if name.startswith(prefix) and name[len(prefix) :].isdigit():
            yield int(name[len(prefix) :])


def _shared(folder: Path, name: str, cpu: int) -> tuple[int, ...]:
    """Return the CPUs that share something with this one: from ``<name>_list``, or the mask that older kernels have."""
    for read in (_list(folder / f"{name}_list"), *(_mask(folder / one) for one in (name, f"{name}_map"))):
        if read is not None and cpu in read:
            return read
    return ()


def _size(path: Path) -> int | None:
    match = _SIZE.fullmatch((_text(path) or "").strip())
    return int(match[1]) * _UNITS[match[2]] if match else None


def _memory(path: Path) -> int | None:
    """Return MemTotal in bytes, from ``MemTotal: 16 kB`` or ``NumaNode 0 MemTotal: 16 kB``."""
    match = re.search(r"\bMemTotal:\s*([0-9]+)\s*kB", _text(path) or "")
    return int(match[1]) * 1024 if match else None


def _distances(folder: Path, count: int) -> tuple[int, ...]:
    words = (_text(folder / "distance") or "").split()
    return tuple(map(int, words)) if len(words) == count and all(word.isdigit() for word in words) else ()
