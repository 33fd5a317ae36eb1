"""Machines read from trees like their kernels': whole ones, and odd ones with parts missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.placement.sysfs import read_machine_copy, read_topology
from scanflow.placement.topology import Core, NumaNode, Topology, uniform
from tests.unit.placement.trees import write, write_machine, write_mask

CPU = "devices/system/cpu"
NODE = "devices/system/node"


@pytest.mark.parametrize(
    "machine",
    [
        uniform(1, 1),
        uniform(2, 18),
        uniform(2, 18, 2),
        uniform(2, 16, 2, adjacent=True),
        uniform(1, 16, 2, l3_group=4),
        uniform(2, 16, 2, l3_group=2, nodes_per_socket=4),
        uniform(2, 8, 8),
    ],
    ids=["1x1", "2x18", "2x18 smt", "2x16 adjacent", "epyc smt", "nps4", "smt8"],
)
def test_a_machine_is_read_as_it_is(tmp_path: Path, machine: Topology) -> None:
    assert read_machine_copy(write_machine(tmp_path, machine)) == machine


def test_this_machine_is_read() -> None:
    machine = read_topology()
    assert set(machine.effective_cpus) <= os.sched_getaffinity(0)
    assert machine.memory_bytes is None or machine.memory_bytes > 2**28


def test_a_copy_may_hold_proc_beside_sys(tmp_path: Path) -> None:
    write_machine(tmp_path / "sys", uniform(1, 2), leave_out=["node"])
    write(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name : A  Fine   Processor\n",
            "proc/meminfo": "MemTotal:        2048 kB",
            "proc/self/cgroup": "0::/jobs",
            "sys/fs/cgroup/jobs/cpu.max": "100000 100000",
        },
    )
    machine = read_machine_copy(tmp_path)
    assert (machine.title, machine.memory_bytes, machine.quota) == ("A Fine Processor", 2048 * 1024, 1.0)
    assert machine.effective_count == 1


def test_a_folder_without_a_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"describes no machine: .* Give a copy of /sys"):
        read_machine_copy(tmp_path)
    (tmp_path / CPU).mkdir(parents=True)
    with pytest.raises(InvalidError, match="describes no machine"):
        read_machine_copy(tmp_path)


@pytest.mark.parametrize(
    ("described", "left_out", "changes"),
    [
        (uniform(2, 4), "node", {"nodes": (NumaNode(cpus=tuple(range(8)), memory_bytes=None),)}),
        (uniform(2, 4, 2), "cache", {"caches": ()}),
        (
            uniform(2, 2, 2),
            "topology cache",
            {"cores": tuple(Core(cpus=(cpu,), socket=cpu // 2 % 2) for cpu in range(8))},
        ),
        (uniform(1, 4).replace(offline=(4, 5)), "cpu/online cpu/present", {}),
        (uniform(2, 12, 2), "core_cpus siblings", {}),
    ],
)
def test_without_some_files_others_tell(
    tmp_path: Path, described: Topology, left_out: str, changes: dict[str, object]
) -> None:
    machine = read_machine_copy(write_machine(tmp_path, described, leave_out=left_out.split()))
    wanted = described.replace(**changes)
    assert (machine.cores, machine.nodes, machine.offline) == (wanted.cores, wanted.nodes, wanted.offline)
    assert "caches" not in changes or machine.caches == ()


def test_cpus_that_are_switched_off_are_reported_and_not_used(tmp_path: Path) -> None:
    """A core with a sibling switched off has one CPU; the numbers need not follow on each other."""
    cores = (Core(cpus=(0,)), Core(cpus=(3, 7)), Core(cpus=(5,), socket=1))
    described = Topology(
        cores=cores,
        nodes=(NumaNode(id=0, cpus=(0, 3, 7), memory_bytes=2**30), NumaNode(id=1, cpus=(5,), memory_bytes=2**30)),
        offline=(1, 2, 4, 6),
    )
    root = write_machine(tmp_path, described)
    # Lists of siblings, caches and nodes may go on naming CPUs that are off.
    write(
        root,
        {
            f"{CPU}/cpu0/topology/core_cpus_list": "0,4",
            f"{CPU}/cpu0/cache/index5/level": 3,
            f"{CPU}/cpu0/cache/index5/shared_cpu_list": "0-7",
            f"{NODE}/node0/cpulist": "0-4,6-7",
        },
    )
    machine = read_machine_copy(root)
    assert (machine.cores, machine.offline, machine.nodes) == (cores, (1, 2, 4, 6), described.nodes)
    assert machine.caches[0].cpus == (0, 3, 5, 7)


def test_a_node_without_memory_and_one_without_cpus(tmp_path: Path) -> None:
    described = Topology(
        cores=(Core(cpus=(0,)), Core(cpus=(1,), socket=1)),
        nodes=(
            NumaNode(id=0, cpus=(0,), memory_bytes=2**30, distances=(10, 21, 17)),
            NumaNode(id=1, cpus=(1,), memory_bytes=0, distances=(21, 10, 28)),
            NumaNode(id=4, memory_bytes=2**34, distances=(17, 28, 10)),
        ),
    )
    machine = read_machine_copy(write_machine(tmp_path, described))
    assert machine == described
    assert machine.list_nearest_memory([1]) == (0,)


def test_old_kernels_write_masks(tmp_path: Path) -> None:
    machine = uniform(2, 20, 2)
    write_machine(tmp_path, machine, leave_out=["topology/core_cpus", "siblings_list", "cache", "cpulist"])
    files: dict[str, object] = {}
    for core in machine.cores:
        for cpu in core.cpus:
            files[f"{CPU}/cpu{cpu}/topology/thread_siblings"] = write_mask(core.cpus, words=3)
            files[f"{CPU}/cpu{cpu}/cache/index0/level"] = 2
            files[f"{CPU}/cpu{cpu}/cache/index0/shared_cpu_map"] = write_mask(core.cpus, words=3)
    for node in machine.nodes:
        files[f"{NODE}/node{node.id}/cpumap"] = write_mask(node.cpus, words=3)
    machine_copy = read_machine_copy(write(tmp_path, files))
    assert (machine_copy.cores, machine_copy.nodes) == (machine.cores, machine.nodes)
    assert machine_copy.cache_group(60, 2) == 20


@pytest.mark.parametrize("machine", [uniform(1, 2), uniform(2, 2)], ids=["one node", "two nodes"])
def test_without_packages_a_node_stands_for_a_socket(tmp_path: Path, machine: Topology) -> None:
    write_machine(tmp_path, machine)
    write(tmp_path, {f"{CPU}/cpu{cpu}/topology/physical_package_id": -1 for cpu in machine.cpus})
    assert read_machine_copy(tmp_path) == machine


def test_a_list_that_does_not_name_the_cpu_itself_is_not_believed(tmp_path: Path) -> None:
    write_machine(tmp_path, uniform(1, 4, 2), leave_out=["thread_siblings"])
    write(
        tmp_path, {f"{CPU}/cpu1/topology/core_cpus_list": "0,4", f"{CPU}/cpu1/topology/core_cpus": write_mask([1, 5])}
    )
    assert read_machine_copy(tmp_path) == uniform(1, 4, 2)


def test_cpus_that_no_node_names_belong_to_the_node_of_their_socket(tmp_path: Path) -> None:
    write_machine(tmp_path, uniform(2, 2))
    write(tmp_path, {f"{NODE}/node1/cpulist": "2"})
    assert read_machine_copy(tmp_path).nodes[1].cpus == (2, 3)


@pytest.mark.parametrize("how", ["capacity", "pmu"])
def test_a_hybrid_machine_has_faster_and_slower_cores(tmp_path: Path, how: str) -> None:
    cores = (Core(cpus=(0, 1)), Core(cpus=(2, 3)), Core(cpus=(4,), tier=1), Core(cpus=(5,), tier=1))
    described = Topology(cores=cores, nodes=(NumaNode(cpus=(0, 1, 2, 3, 4, 5), memory_bytes=2**30),))
    root = write_machine(tmp_path, described)
    if how == "capacity":
        sizes = {0: 1024, 1: 1024, 2: 1009, 3: 1009, 4: 623, 5: 623}  # favoured cores are of no other kind
        write(root, {f"{CPU}/cpu{cpu}/cpu_capacity": size for cpu, size in sizes.items()})
    else:
        write(root, {"devices/cpu_core/cpus": "0-3", "devices/cpu_atom/cpus": "4-5"})
    assert read_machine_copy(root) == described


def test_garbage_in_any_file_is_taken_for_missing(tmp_path: Path) -> None:
    write_machine(tmp_path, uniform(2, 2))
    for path in [*tmp_path.glob(f"{CPU}/cpu1/**/*"), *tmp_path.glob(f"{NODE}/node1/*")]:
        if path.is_file():
            path.write_bytes(b"\xff garbage \x00")
    machine = read_machine_copy(tmp_path)
    assert machine.cpus == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("files", "effective", "count"),
    [
        ({"cpuset.cpus.effective": "2-3"}, (2, 3), 2),
        ({"cpuset.cpus.effective": "2-3", "cpu.max": "100000 100000"}, (2, 3), 1),
        ({"cpuset.cpus.effective": "99"}, (0, 1, 2, 3), 4),
        ({"cpu.max": "250000 100000"}, (0, 1, 2, 3), 3),
        ({"cpuset/cpuset.cpus": "1"}, (1,), 1),
    ],
)
def test_control_groups_count(tmp_path: Path, files: dict[str, object], effective: tuple[int, ...], count: int) -> None:
    write_machine(tmp_path, uniform(1, 4))
    write(tmp_path / "fs/cgroup", files)
    machine = read_machine_copy(tmp_path)
    assert (machine.effective_cpus, machine.effective_count) == (effective, count)


def test_the_mask_may_be_handed_in(tmp_path: Path) -> None:
    machine = read_topology(write_machine(tmp_path, uniform(1, 4)), proc=tmp_path, affinity={1, 2, 77})
    assert machine.effective_cpus == (1, 2)


def test_the_cpuset_s_nodes_limit_memory(tmp_path: Path) -> None:
    write_machine(tmp_path, uniform(2, 2))
    write(tmp_path / "fs/cgroup", {"cpuset.mems.effective": "1", "memory.max": "1048576"})
    machine = read_machine_copy(tmp_path)
    assert (machine.memory_nodes, machine.memory_bytes) == ((1,), 1048576)


PARTS = ["node", "cache", "topology", "siblings", "core_cpus", "package", "core_id", "meminfo", "present", "online"]


@given(
    st.sampled_from([uniform(2, 3, 2), uniform(1, 4, l3_group=2), uniform(2, 2, nodes_per_socket=2)]),
    st.sets(st.sampled_from(PARTS)),
)
def test_every_cpu_is_there(tmp_path_factory: pytest.TempPathFactory, machine: Topology, missing: set[str]) -> None:
    root = write_machine(tmp_path_factory.mktemp("sys"), machine, leave_out=sorted(missing))
    machine_copy = read_machine_copy(root)
    assert machine_copy.cpus == machine.cpus
    assert machine_copy.effective_count == len(machine_copy.cpus)
