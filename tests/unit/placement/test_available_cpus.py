"""What control groups leave: trees of both versions, as hosts, containers and services see them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scanflow.placement.available_cpus import CgroupLimits, read_limits, read_this_machine
from tests.unit.placement.trees import write


def limits(root: Path, groups: str = "") -> CgroupLimits:
    """Read the tree below ``root`` as a process in those groups would."""
    write(root, {"proc/self/cgroup": groups})
    return read_limits(root / "cgroup", root / "proc")


def test_without_a_control_group_the_affinity_mask_counts(tmp_path: Path) -> None:
    machine = read_this_machine(tmp_path, tmp_path)
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory_bytes > 2**28
    write(tmp_path, {"cpu.max": "max 100000", "memory.max": "max", "cpuset.cpus.effective": "60000"})
    assert read_this_machine(tmp_path, tmp_path) == machine, "what limits nothing, and a cpuset of another machine"
    assert 1 <= read_this_machine().cores <= machine.cores


def test_a_quota_of_half_a_core_is_one_core(tmp_path: Path) -> None:
    write(tmp_path, {"cpu.max": "50000 100000", "memory.max": "268435456"})
    machine = read_this_machine(tmp_path, tmp_path)
    assert (machine.cores, machine.quota, machine.memory_bytes) == (1, 0.5, 268435456)


def test_a_cpuset_is_taken_from_the_mask(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    write(tmp_path, {"cpuset.cpus.effective": f"{first}"})
    assert read_this_machine(tmp_path, tmp_path).cpus == (first,)


OWN_GROUP = {
    "cpu.max": "150000 100000",
    "cpuset.cpus.effective": "0-3",
    "cpuset.mems.effective": "0",
    "memory.max": 2**30,
}
GROUPS_ABOVE = {
    "a/cpu.max": "200000 100000",
    "a/memory.max": "1000000",
    "a/b/cpu.max": "400000 100000",
    "a/b/memory.max": "max",
    "a/b/c/cpu.max": "max 100000",
    "a/cpuset.cpus.effective": "0-7",
    "a/b/cpuset.cpus": "",
}
MOUNT = {"cpu.max": "300000 100000", "cpuset.cpus.effective": "4-6"}
UNLIMITED = {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu/cpu.cfs_quota_us": "-1"}
BOTH_VERSIONS = {
    "unified/jobs/cpu.pressure": "",
    "cpu/jobs/cpu.cfs_quota_us": "100000",
    "cpu/jobs/cpu.cfs_period_us": "50000",
    "cpuset/cpuset.effective_cpus": "0-1",
}


@pytest.mark.parametrize(
    ("files", "groups", "value"),
    [
        (
            {f"s/a.service/{name}": text for name, text in OWN_GROUP.items()},
            "0::/s/a.service",
            ((0, 1, 2, 3), (0,), 1.5, 2**30),
        ),
        (GROUPS_ABOVE, "0::/a/b/c", (tuple(range(8)), None, 2.0, 1_000_000)),
        # In a container a path that only the host sees means the mount, and what is left of it counts.
        *((MOUNT, f"0::{path}", ((4, 5, 6), None, 3.0, None)) for path in ("/docker/0123", "/../../outside", "/")),
        ({"cpu.max": "max 100000", "workers/cpu.max": "100000 100000"}, "0::/docker/0123/workers", (None, None, 1.0)),
        (UNLIMITED, "4:memory:/\n3:cpu:/", ()),
        (BOTH_VERSIONS, "2:cpuset:/\n1:cpu,cpuacct:/jobs\n0::/jobs", ((0, 1), None, 2.0, None)),
    ],
    ids=["own", "above", "docker", "outside", "root", "inside a container", "unlimited", "both versions"],
)
def test_the_groups_of_a_process_limit_it(
    tmp_path: Path, files: dict[str, object], groups: str, value: tuple[Any, ...]
) -> None:
    write(tmp_path / "cgroup", files)
    assert limits(tmp_path, groups) == CgroupLimits(*value)


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_the_first_version_has_a_folder_for_each_controller(tmp_path: Path, folder: str) -> None:
    write(
        tmp_path / "cgroup",
        {
            f"{folder}/jobs/one/cpu.cfs_quota_us": "-1",
            f"{folder}/jobs/one/cpu.cfs_period_us": "100000",
            f"{folder}/jobs/cpu.cfs_quota_us": "250000",
            f"{folder}/jobs/cpu.cfs_period_us": "100000",
            "cpuset/jobs/cpuset.cpus": "8-11",
            "cpuset/jobs/cpuset.effective_cpus": "8-9",
            "cpuset/jobs/cpuset.mems": "1",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "memory/jobs/memory.limit_in_bytes": "536870912",
        },
    )
    groups = f"5:{folder}:/jobs/one\n4:cpuset:/jobs\n3:memory:/jobs\n1:name=systemd:/elsewhere\n0::/"
    assert limits(tmp_path, groups) == CgroupLimits((8, 9), (1,), 2.5, 536870912)


@pytest.mark.parametrize("text", ["", "nonsense", "max", "0 100000", "100000 0", "-5 100000"])
def test_files_that_cannot_be_read_are_no_limit(tmp_path: Path, text: str) -> None:
    write(tmp_path / "cgroup", {"cpu.max": text, "memory.max": "lots", "cpuset.cpus.effective": "all"})
    assert limits(tmp_path, "a line of something\n::\n0::/") == CgroupLimits()
