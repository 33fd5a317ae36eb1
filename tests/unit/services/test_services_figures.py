"""Figures read from prometheus_client's files, compared with what that library itself reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scanflow.backends.local.services.figures import Conducted, between, quantile, read_totals, read_usage, tidy

WRITER = """
import sys
from prometheus_client import Counter, Gauge, Histogram
requests = Counter("scanflow_requests", "r", ["service", "revision", "code"])
seconds = Histogram("scanflow_request_seconds", "s", ["service", "revision"], buckets=[0.1, 1.0])
Gauge("scanflow_in_flight", "f", ["service"], multiprocess_mode="livesum").labels("w").set(3)
Counter("scanflow_recorded", "n").inc(5)
requests.labels("w", "r1", "200").inc(8)
requests.labels("w", "r1", "503").inc(2)
requests.labels("w", "r2", "200").inc(1)
for value in (0.05, 0.05, 0.5, 3.0):
    seconds.labels("w", "r1").observe(value)
"""


def write(folder: Path, times: int = 1) -> None:
    for _ in range(times):
        subprocess.run(
            [sys.executable, "-c", WRITER], env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}, check=True
        )


def test_counts_of_all_processes_are_added_up(tmp_path: Path) -> None:
    write(tmp_path, times=2)
    totals = read_totals(tmp_path)
    first = totals.revisions["r1"]
    assert (first.requests, first.errors, first.timed) == (20, 4, 8)
    assert first.seconds == pytest.approx(7.2)
    assert first.buckets == {0.1: 4, 1.0: 2, float("inf"): 2}
    assert totals.revisions["r2"].requests == 2
    assert (totals.recorded, totals.requests) == (10, 22)


def test_files_of_processes_that_are_gone_are_put_together_without_losing_a_count(tmp_path: Path) -> None:
    write(tmp_path)
    names = [path for path in tmp_path.glob("*.db") if not path.name.startswith("gauge")]
    for number in range(20):
        for path in names:
            copy = path.with_name(f"{path.name.partition('_')[0]}_{900000 + number}.db")
            copy.write_bytes(path.read_bytes())
    before = read_totals(tmp_path)
    tidy(tmp_path, ())
    assert read_totals(tmp_path) == before
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["counter_0.db", "histogram_0.db"]
    code = (
        "from prometheus_client import CollectorRegistry, generate_latest, multiprocess as m\n"
        "registry = CollectorRegistry(); m.MultiProcessCollector(registry); print(generate_latest(registry).decode())"
    )
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout
    assert 'scanflow_requests_total{code="200",revision="r1",service="w"} 168.0' in told


def test_files_of_living_processes_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path)
    pids = {int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("*.db")}
    before = sorted(tmp_path.iterdir())
    tidy(tmp_path, pids)
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_is_cut_short_gives_what_is_whole(tmp_path: Path) -> None:
    write(tmp_path)
    for path in tmp_path.glob("counter*.db"):
        path.write_bytes(path.read_bytes()[:100])
    (tmp_path / "counter_1.db").write_bytes(b"\x00")
    read_totals(tmp_path)


def test_what_was_done_between_two_moments_is_never_negative() -> None:
    before = Conducted(requests=10, buckets={1.0: 10})
    assert between(before, Conducted(requests=12, buckets={1.0: 12, 2.0: 1})).buckets == {1.0: 2, 2.0: 1}
    assert between(before, Conducted()).requests == 0


def test_quantiles_lie_inside_their_bucket() -> None:
    buckets = {0.1: 90.0, 0.2: 10.0, float("inf"): 0.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.1 * 50 / 90)
    assert quantile(buckets, 0.95) == pytest.approx(0.15)
    assert quantile({0.1: 0.0, float("inf"): 3.0}, 0.5) == 0.1
    assert quantile({}, 0.5) is None


def test_a_process_tells_what_it_uses() -> None:
    usage = read_usage(os.getpid())
    assert usage is not None
    assert usage.rss_bytes > 1_000_000
    assert read_usage(2**22 + 1) is None
