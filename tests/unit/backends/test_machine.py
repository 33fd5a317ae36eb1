from __future__ import annotations

import os
from pathlib import Path

from scanflow.backends.local.machine import this_machine


def test_without_a_cgroup_the_affinity_mask_counts(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory_bytes > 2**28


def test_a_quota_of_half_a_core_is_one_core(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("268435456\n")
    machine = this_machine(tmp_path)
    assert machine.cores == 1
    assert machine.memory_bytes == 268435456


def test_a_quota_without_a_limit_is_none(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert this_machine(tmp_path) == this_machine(tmp_path / "nothing")


def test_the_first_version_of_cgroups_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("536870912\n")
    machine = this_machine(tmp_path)
    assert (machine.cores, machine.memory_bytes) == (1, 536870912)


def test_a_quota_of_minus_one_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert this_machine(tmp_path).cores == len(os.sched_getaffinity(0))
