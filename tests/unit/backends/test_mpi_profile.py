"""What bounds an MPI program, from what was measured of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.backends.local.mpi.profiling.classify import MEMORY_BYTES, MeasuredTotals, classify
from scanflow.backends.local.mpi.profiling.mpi_calls import CallCounters, compile_library, read_calls, sum_calls
from scanflow.backends.local.mpi.profiling.perf import build_record_command, parse_mpi_share
from scanflow.backends.local.mpi.profiling.profile import MAX_DURATION_S, START_S, build_end_predicate
from scanflow.backends.local.mpi.profiling.touched_pages import TouchedBytes, estimate_traffic
from scanflow.errors import InvalidError
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import plan_job
from scanflow.placement.mpi.local_plan import plan_local_job
from scanflow.placement.topology import uniform

MB = 10**6


def make_totals(**fields: float) -> MeasuredTotals:
    return MeasuredTotals(how="by hand", seconds=10, **fields)  # type: ignore[arg-type]  # numbers by name


@pytest.mark.parametrize(
    ("fields", "profile", "message"),
    [
        ({"cpu_s": 10}, "cpu", "0% of its time would be spent on gigabit Ethernet (0 messages, 0.0 MB; 10.0 s of CPU"),
        ({"cpu_s": 10, "memory_bytes": 4e9}, "memory", "memory traffic is 4.0 GB per CPU second"),
        ({"cpu_s": 10, "bytes": 600 * MB, "memory_bytes": 4e9}, "network", "34% of its time"),
        ({"cpu_s": 1, "messages": 100_000}, "network", "83% of its time"),
        ({"cpu_s": 10, "messages": 1000, "memory_bytes": 0.5e9}, "cpu", "1,000 messages"),
        ({"share_in_mpi": 0.7}, "network", "70% of its CPU time is spent in MPI, and memory traffic is unknown"),
        ({"share_in_mpi": 0.3, "memory_bytes": 2e9}, "memory", "30% of its CPU time"),
        ({}, "cpu", "0% of its time"),
    ],
)
def test_what_bounds_a_program_and_why(fields: dict[str, float], profile: str, message: str) -> None:
    classification = classify(make_totals(**fields))
    assert classification.profile == profile
    assert message in classification.reason
    assert str(classification).startswith(f"{profile}-bound: ")


@given(st.floats(0, 1e4), st.integers(0, 10**9), st.integers(0, 10**13))
def test_more_messages_never_make_a_network_job_another(cpu_s: float, messages: int, sent: int) -> None:
    if classify(make_totals(cpu_s=cpu_s, messages=messages, bytes=sent)).profile == "network":
        assert classify(make_totals(cpu_s=cpu_s, messages=2 * messages, bytes=2 * sent)).profile == "network"


def windows(number: int, *, cpu_s: float, touched: int, window_s: float = 0.01) -> list[TouchedBytes]:
    return [TouchedBytes(float(at), window_s, cpu_s, touched) for at in range(number)]


def test_traffic_is_what_no_cache_holds() -> None:
    assert estimate_traffic(windows(5, cpu_s=0.01, touched=48 * MB), 16 * MB) == pytest.approx(3.2e9)
    assert estimate_traffic(windows(5, cpu_s=0.01, touched=15 * MB), 16 * MB) == 0
    # an array that is touched whole in the shorter window shows less of its traffic in the longer
    both = windows(5, cpu_s=0.01, touched=48 * MB) + windows(5, cpu_s=0.03, touched=48 * MB, window_s=0.03)
    assert estimate_traffic(both, 16 * MB) == pytest.approx(3.2e9)
    # half of the CPU time is waiting in MPI, which touches nothing
    assert estimate_traffic(windows(5, cpu_s=0.01, touched=24 * MB), 16 * MB, outside_mpi=0.5) == pytest.approx(1.6e9)


def test_too_little_seen_is_no_traffic_that_is_known() -> None:
    assert estimate_traffic(windows(2, cpu_s=0.01, touched=48 * MB), 0) is None
    assert estimate_traffic(windows(9, cpu_s=0.0001, touched=48 * MB), 0) is None


def test_what_a_rank_noted_is_read_and_a_line_that_is_cut_is_not(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("1000000000 1 2 3 4000000000 5000000000 6000000000\n2000000000 2 4 6 5000000000 6000")
    assert read_calls(tmp_path, 0) == [CallCounters(1.0, 1, 2, 3, 4.0, 5.0, 6.0)]
    assert read_calls(tmp_path, 1) == []
    assert sum_calls([CallCounters(1, 1, 1, 1, 1, 1, 1), CallCounters(1, 2, 3, 4, 5, 6, 7)]) == CallCounters(
        2, 3, 4, 5, 6, 7, 8
    )


def test_a_report_of_perf_tells_the_share_of_mpis_libraries() -> None:
    report = """
# Samples: 2K of event 'cpu-clock:u'
# Overhead  Shared Object
    60.00%  libopen-pal.so.40.30.2
    20.00%  hpcc
    15.00%  mca_btl_vader.so
     5.00%  libc.so.6
"""
    assert parse_mpi_share(report) == pytest.approx(0.75 / 0.95)
    assert parse_mpi_share("") is None
    assert parse_mpi_share(report.replace("2K", "199")) is None, "a start alone tells nothing"


def test_messages_that_mpi_copies_in_the_c_library_are_not_taken_for_the_programs_own_work() -> None:
    report = """
# Samples: 6K of event 'cpu-clock:u'
    77.00%  libc.so.6
    20.00%  mca_btl_vader.so
     2.50%  kernels
     0.50%  ld-linux-x86-64.so.2
"""
    assert parse_mpi_share(report) == pytest.approx(20 / 22.5)
    mostly_copies = report.replace("77.00", "97.00").replace("20.00", "1.00").replace("2.50", "1.50")
    assert parse_mpi_share(mostly_copies) == pytest.approx(0.01), "too few elsewhere to tell by"


def test_without_a_compiler_or_perf_nothing_measures(tmp_path: Path) -> None:
    assert compile_library("openmpi", tmp_path, which=lambda name: None) is None
    assert compile_library("openmpi", tmp_path, which=lambda name: "/bin/false") is None
    assert build_record_command(tmp_path, which=lambda name: None) is None
    assert build_record_command(tmp_path, which=lambda name: "/bin/false") is None


def test_a_job_to_be_measured_is_planned_here_and_refused_elsewhere() -> None:
    workload = sf.MPIWorkload(name="hpl", mainfile="hpl", n_tasks=2, profile="auto")
    assert "is measured when the job starts" in plan_local_job(workload, uniform(cores_per_socket=2)).reasons[-1]
    with pytest.raises(InvalidError, match="scanflow mpi plan --measure"):
        plan_job(workload, [ClusterNode(name="node0", cores=4)])


def test_a_core_can_do_more_than_what_counts_as_memory_bound() -> None:
    assert classify(make_totals(cpu_s=1, memory_bytes=MEMORY_BYTES)).profile == "memory"


def test_a_program_is_measured_from_when_all_its_ranks_run_and_given_time_to_begin(tmp_path: Path) -> None:
    now = [0.0]
    enough = build_end_predicate(tmp_path, 2, clock=lambda: now[0])
    (tmp_path / "0.pid").touch()
    now[0] = 20.0
    assert not enough()
    (tmp_path / "1.pid").touch()
    for at, over in ((25.0, False), (54.0, False), (56.0, True)):
        now[0] = at
        assert enough() is over
    never = build_end_predicate(tmp_path, 3, clock=lambda: now[0])
    now[0] = 56.0 + START_S + MAX_DURATION_S + 1
    assert never()
