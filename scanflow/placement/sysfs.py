"""Reads a machine's topology from ``/sys``: this machine's, or a copy of another one's.

What a kernel leaves out is taken for the simplest thing it can be: a CPU without siblings is a core, cores without a
package are one socket, a machine without nodes is one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from scanflow.errors import InvalidError
from scanflow.placement.available_cpus import PROC, CgroupLimits, read_affinity_mask, read_as, read_limits
from scanflow.placement.cpulist import parse_cpus, parse_mask
from scanflow.placement.topology import Cache, Core, NumaNode, Topology

SYSFS = Path("/sys")

_SIZE = re.compile(r"([0-9]+)([KMG]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_read_list, _read_mask, _read_text = partial(read_as, parse_cpus), partial(read_as, parse_mask), partial(read_as, str)
_read_number = partial(read_as, partial(int, base=0))
_SAME_TIER = 0.9  # cores of one design still differ by a few hundredths: favoured ones may clock higher


def read_topology(sysfs: Path = SYSFS, *, proc: Path = PROC, affinity: Collection[int] | None = None) -> Topology:
    """Read the topology below ``sysfs``, limited by its control groups and ``affinity``.

    ``affinity``: default: this process' own mask where ``sysfs`` is
    this machine's, else all.
    """
    own = sysfs == SYSFS
    limits = read_limits(sysfs / "fs" / "cgroup", proc)
    mask = read_affinity_mask() if own and affinity is None else affinity
    tree = _Tree(sysfs, proc)
    if not tree.online:
        if not own:
            raise InvalidError(
                f"{str(sysfs)!r} describes no machine: it has no CPUs in devices/system/cpu. Give a copy of /sys, or "
                "of its parent folder."
            )
        tree.online = read_affinity_mask()  # macOS, or a sandbox that hides /sys
    usable, nodes = _compute_usable(mask, limits, tree.online), tree.read_nodes()
    node_ids = [node.id for node in nodes]
    near = [node for node in node_ids if limits.memory_nodes is None or node in limits.memory_nodes]
    installed = sum(node.memory_bytes or 0 for node in nodes)
    limit = limits.memory_bytes
    return Topology(
        title=tree.read_title(),
        cores=tree.read_cores(nodes),
        nodes=nodes,
        caches=tree.read_caches(),
        offline=tree.read_offline(),
        allowed=None if usable == tree.online else usable,
        allowed_nodes=None if not near or near == node_ids else tuple(near),
        quota=limits.quota,
        memory_limit_bytes=None if limit is None or 0 < installed <= limit else limit,
    )


def _compute_usable(mask: Collection[int] | None, limits: CgroupLimits, online: tuple[int, ...]) -> tuple[int, ...]:
    masked = tuple(cpu for cpu in online if mask is None or cpu in mask) or online
    # A cpuset that leaves nothing was changed under us, or is another machine's: the mask is what counts.
    return tuple(cpu for cpu in masked if limits.cpus is None or cpu in limits.cpus) or masked


def read_machine_copy(folder: Path) -> Topology:
    """Read the topology of a copy of ``/sys`` in ``folder``, or in ``folder/sys`` with a ``/proc`` beside it."""
    sysfs = next(
        (candidate for candidate in (folder, folder / "sys") if (candidate / "devices" / "system" / "cpu").is_dir()),
        folder,
    )
    if sysfs.resolve() == SYSFS:
        return read_topology()
    proc = next(
        (candidate for candidate in (folder / "proc", sysfs.parent / "proc") if candidate.is_dir()), folder / "proc"
    )
    return read_topology(sysfs, proc=proc)


class _Tree:
    def __init__(self, sysfs: Path, proc: Path) -> None:
        self._devices = sysfs / "devices"
        self._cpus = self._devices / "system" / "cpu"
        self._proc = proc
        self._there = sorted(_list_numbers(self._cpus, "cpu"))
        listed = _read_list(self._cpus / "online")
        switched_on = [cpu for cpu in self._there if _read_number(self._cpus / f"cpu{cpu}" / "online") != 0]
        self.online: tuple[int, ...] = listed or tuple(switched_on)

    def read_offline(self) -> tuple[int, ...]:
        """Return the CPUs that are present but offline; those that could be hot-plugged are not present."""
        there = set(self._there) | set(_read_list(self._cpus / "present") or ())
        return tuple(sorted(there - set(self.online)))

    def read_title(self) -> str:
        for line in (_read_text(self._proc / "cpuinfo") or "").splitlines():
            field, _, value = line.partition(":")
            if field.strip() in {"model name", "Model", "cpu", "Processor", "Hardware"} and value.strip():
                return " ".join(value.split())
        return ""

    def read_cores(self, nodes: Iterable[NumaNode]) -> tuple[Core, ...]:
        """Return the cores with their siblings that are online. Without packages, a node counts as a socket."""
        tiers = self._compute_tiers()
        homes = {cpu: node.id for node in nodes for cpu in node.cpus}
        packages = {cpu: self._read_topology_number(cpu, "physical_package_id") for cpu in self.online}
        if all(package is None or package < 0 for package in packages.values()):
            packages = dict(homes)
        cores: list[Core] = []
        remaining = set(self.online)
        for cpu in self.online:
            if cpu in remaining:
                siblings = tuple(sorted((self._read_siblings(cpu) & remaining) | {cpu}))
                remaining.difference_update(siblings)
                cores.append(Core(cpus=siblings, socket=max(0, packages[cpu] or 0), tier=tiers.get(cpu, 0)))
        return tuple(cores)

    def _read_siblings(self, cpu: int) -> set[int]:
        folder = self._cpus / f"cpu{cpu}" / "topology"
        for name in ("core_cpus", "thread_siblings"):
            if listed := _read_shared(folder, name, cpu):
                return set(listed)
        names = ("physical_package_id", "die_id", "core_id")
        own = [self._read_topology_number(cpu, name) for name in names]
        if own[-1] is None or own[-1] < 0:
            return {cpu}
        return {other for other in self.online if [self._read_topology_number(other, name) for name in names] == own}

    def _read_topology_number(self, cpu: int, name: str) -> int | None:
        return _read_number(self._cpus / f"cpu{cpu}" / "topology" / name)

    def _compute_tiers(self) -> Mapping[int, int]:
        """Return the tier of each CPU's core on a hybrid machine: by capacity (ARM, Intel since 6.12), else by PMU."""
        capacities = {
            cpu: capacity
            for cpu in self.online
            if (capacity := _read_number(self._cpus / f"cpu{cpu}" / "cpu_capacity"))
        }
        if len(capacities) == len(self.online) and len(set(capacities.values())) > 1:
            tiers: dict[int, int] = {}
            best, tier = max(capacities.values()), 0
            for cpu in sorted(capacities, key=lambda cpu: -capacities[cpu]):
                if capacities[cpu] < _SAME_TIER * best:
                    best, tier = capacities[cpu], tier + 1
                tiers[cpu] = tier
            return tiers
        groups = [_read_list(self._devices / name / "cpus") or () for name in ("cpu_core", "cpu_atom", "cpu_lowpower")]
        return {cpu: tier for tier, cpus in enumerate(filter(None, groups)) for cpu in cpus}

    def read_nodes(self) -> tuple[NumaNode, ...]:
        """Return the NUMA nodes; one if there are none. CPUs that are in none join the node of their socket."""
        folder = self._devices / "system" / "node"
        online = _read_list(folder / "online")
        numbers = [node for node in sorted(_list_numbers(folder, "node")) if online is None or node in online]
        owned: dict[int, int] = {}
        for node in numbers:
            for cpu in (
                _read_list(folder / f"node{node}" / "cpulist") or _read_mask(folder / f"node{node}" / "cpumap") or ()
            ):
                owned.setdefault(cpu, node)
        if not owned:
            memory = [_read_mem_total(folder / f"node{node}" / "meminfo") for node in numbers]
            total = sum(amount for amount in memory if amount) or self._read_total_memory()
            return (NumaNode(id=numbers[0] if numbers else 0, cpus=self.online, memory_bytes=total),)
        packages = {cpu: self._read_topology_number(cpu, "physical_package_id") for cpu in self.online}
        homes = {packages[cpu]: node for cpu, node in sorted(owned.items(), reverse=True) if cpu in packages}
        for cpu in self.online:
            owned.setdefault(cpu, homes.get(packages[cpu], numbers[0]))
        distances = [_read_distances(folder / f"node{node}", len(numbers)) for node in numbers]
        return tuple(
            NumaNode(
                id=node,
                cpus=tuple(cpu for cpu in self.online if owned[cpu] == node),
                memory_bytes=_read_mem_total(folder / f"node{node}" / "meminfo")
                if len(numbers) > 1
                else self._read_only_node_memory(node),
                distances=node_distances,
            )
            for node, node_distances in zip(numbers, distances, strict=True)
        )

    def _read_only_node_memory(self, node: int) -> int | None:
        # Memory that was added to a running virtual machine may be counted here or there.
        amounts = (
            _read_mem_total(self._devices / "system" / "node" / f"node{node}" / "meminfo"),
            self._read_total_memory(),
        )
        return max((memory for memory in amounts if memory is not None), default=None)

    def _read_total_memory(self) -> int | None:
        return _read_mem_total(self._proc / "meminfo")

    def read_caches(self) -> tuple[Cache, ...]:
        caches: dict[tuple[int, tuple[int, ...]], Cache] = {}
        online = set(self.online)
        for cpu in self.online:
            folder = self._cpus / f"cpu{cpu}" / "cache"
            for index in sorted(_list_numbers(folder, "index")):
                cache = folder / f"index{index}"
                level = _read_number(cache / "level")
                if not level or not 0 < level <= 9 or (_read_text(cache / "type") or "").strip() == "Instruction":
                    continue
                cpus = tuple(sorted((set(_read_shared(cache, "shared_cpu", cpu)) & online) | {cpu}))
                caches.setdefault((level, cpus), Cache(level=level, cpus=cpus, size_bytes=_read_size(cache / "size")))
        return tuple(caches[key] for key in sorted(caches))


def _list_numbers(folder: Path, prefix: str) -> Iterable[int]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return
    for name in names:
        if name.startswith(prefix) and name[len(prefix) :].isdigit():
            yield int(name[len(prefix) :])


def _read_shared(folder: Path, name: str, cpu: int) -> tuple[int, ...]:
    """Read the CPUs that share a resource with this one: from ``<name>_list``, or the mask of older kernels."""
    for read in (_read_list(folder / f"{name}_list"), *(_read_mask(folder / mask) for mask in (name, f"{name}_map"))):
        if read is not None and cpu in read:
            return read
    return ()


def _read_size(path: Path) -> int | None:
    match = _SIZE.fullmatch((_read_text(path) or "").strip())
    return int(match[1]) * _UNITS[match[2]] if match else None


def _read_mem_total(path: Path) -> int | None:
    """Return MemTotal in bytes, from ``MemTotal: 16 kB`` or ``NumaNode 0 MemTotal: 16 kB``."""
    match = re.search(r"\bMemTotal:\s*([0-9]+)\s*kB", _read_text(path) or "")
    return int(match[1]) * 1024 if match else None


def _read_distances(folder: Path, count: int) -> tuple[int, ...]:
    words = (_read_text(folder / "distance") or "").split()
    return tuple(map(int, words)) if len(words) == count and all(word.isdigit() for word in words) else ()
