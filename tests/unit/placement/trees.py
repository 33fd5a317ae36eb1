"""Writes the part of ``/sys`` and ``/proc`` that tells of a machine, as its kernel would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scanflow.placement.cpulist import format_cpus
from scanflow.placement.topology import Topology


def write(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def write_mask(cpus: Iterable[int], words: int = 2) -> str:
    bits = sum(1 << cpu for cpu in cpus)
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def write_machine(root: Path, topology: Topology, *, leave_out: Sequence[str] = ()) -> Path:
    """Write the tree of a described machine; files whose path has a word of ``leave_out`` in it are missing."""
    present = [*topology.cpus, *topology.offline]
    files: dict[str, object] = {
        "devices/system/cpu/online": format_cpus(topology.cpus),
        "devices/system/cpu/present": format_cpus(present),
        "devices/system/cpu/possible": f"0-{max(present) + 8}",
        "devices/system/cpu/offline": format_cpus(topology.offline),
        "devices/system/node/online": format_cpus(node.id for node in topology.nodes),
    }
    files |= {f"devices/system/cpu/cpu{cpu}/uevent": f"DEVTYPE=cpu{cpu}" for cpu in present}
    for cpu in topology.offline:
        files[f"devices/system/cpu/cpu{cpu}/online"] = 0
    for number, core in enumerate(topology.ordered_cores):
        package = [cpu for other in topology.cores if other.socket == core.socket for cpu in other.cpus]
        for cpu in core.cpus:
            folder = f"devices/system/cpu/cpu{cpu}"
            if cpu:  # the first cannot be switched off
                files[f"{folder}/online"] = 1
            files |= {
                f"{folder}/topology/physical_package_id": core.socket,
                f"{folder}/topology/die_id": 0,
                f"{folder}/topology/core_id": number % 24,  # not unique, as on real machines
                f"{folder}/topology/core_cpus_list": format_cpus(core.cpus),
                f"{folder}/topology/thread_siblings_list": format_cpus(core.cpus),
                f"{folder}/topology/package_cpus_list": format_cpus(package),
            }
            own = [cache for cache in topology.caches if cpu in cache.cpus]
            files |= _caches(folder, [(cache.level, "Unified", cache.size_bytes, cache.cpus) for cache in own])
            files |= _caches(folder, [(1, "Instruction", 32 * 1024, core.cpus)], first=len(own))
    for node in topology.nodes:
        folder = f"devices/system/node/node{node.id}"
        files[f"{folder}/cpulist"] = format_cpus(node.cpus)
        files[f"{folder}/meminfo"] = (
            f"NumaNode {node.id} MemTotal:  {(node.memory_bytes or 0) // 1024} kB\nNode {node.id} MemFree: 1 kB"
        )
        if node.distances:
            files[f"{folder}/distance"] = " ".join(map(str, node.distances))
    return write(root, {name: text for name, text in files.items() if not any(word in name for word in leave_out)})


def _caches(
    folder: str, caches: Sequence[tuple[int, str, int | None, Sequence[int]]], *, first: int = 0
) -> dict[str, object]:
    files: dict[str, object] = {}
    for index, (level, kind, size, cpus) in enumerate(caches, first):
        files |= {
            f"{folder}/cache/index{index}/level": level,
            f"{folder}/cache/index{index}/type": kind,
            f"{folder}/cache/index{index}/size": f"{(size or 0) // 1024}K",
            f"{folder}/cache/index{index}/shared_cpu_list": format_cpus(cpus),
        }
    return files
