"""What instances report of themselves, added up."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scanflow.backends.canary_analysis import RevisionStats, subtract_stats
from scanflow.backends.local.services.supervisor.instance_metrics import ServiceMetrics, read_usage
from scanflow.backends.run_records import DeviceUse
from scanflow.backends.service_metrics import MetricsWindow, compute_totals
from scanflow.backends.service_records import SHARES, RevisionRecord, compute_quantile
from scanflow_serving.serving_metrics import Metrics, RevisionMetrics


def samples(times: int = 1) -> list[list[Any]]:
    """Return what an instance reports of a registry, as the library itself gives it."""
    registry = CollectorRegistry()
    requests = Counter("scanflow_requests", "r", ["service", "revision", "code"], registry=registry)
    seconds = Histogram("scanflow_request_seconds", "s", ["service", "revision"], buckets=[0.1, 1.0], registry=registry)
    Gauge("scanflow_in_flight", "f", ["service"], registry=registry).labels("w").set(3)
    Counter("scanflow_recorded", "n", registry=registry).inc(5 * times)
    requests.labels("w", "r1", "200").inc(8 * times)
    requests.labels("w", "r1", "503").inc(2 * times)
    requests.labels("w", "r2", "200").inc(1 * times)
    for value in (0.05, 0.05, 0.5, 3.0) * times:
        seconds.labels("w", "r1").observe(value)
    return [[sample.name, sample.labels, sample.value] for family in registry.collect() for sample in family.samples]


def test_counts_of_all_instances_are_added_up(tmp_path: Path) -> None:
    metrics = ServiceMetrics(tmp_path / "metrics.json")
    metrics.report("1", samples())
    metrics.report("2", samples())
    first = metrics.totals.revisions["r1"]
    assert (first.requests, first.errors, first.timed) == (20, 4, 8)
    assert first.mean_s == pytest.approx(0.9)
    assert first.buckets == {0.1: 4, 1.0: 6, float("inf"): 8}
    assert metrics.totals.revisions["r2"].requests == 2
    assert (metrics.totals.recorded, metrics.totals.requests) == (10, 22)


def test_what_a_model_refused_counts_against_its_version_and_what_the_server_refused_does_not() -> None:
    labels = {code: (("code", code), ("revision", "r1")) for code in ("200", "400", "422", "504")}
    totals = compute_totals({("scanflow_requests_total", pairs): 1.0 for pairs in labels.values()})
    stats = totals.revisions["r1"]
    assert (stats.requests, stats.errors, stats.invalid, stats.valid) == (4, 2, 1, 3)
    record = RevisionRecord(id="r1", requests=4, invalid=1, buckets=((0.1, 2),))
    assert record.counts == {0.1: 2, math.inf: 3}
    assert record.compute_latency(0.5) is not None


def test_what_ended_instances_counted_stays_also_for_the_next_supervisor(tmp_path: Path) -> None:
    first = ServiceMetrics(tmp_path / "metrics.json")
    first.report("1", samples())
    first.retire("1")
    second = ServiceMetrics(tmp_path / "metrics.json")
    second.report("2", samples(2))
    assert second.totals.revisions["r1"].requests == 30
    others = {name: value for name, labels, value in second.sum_others("2") if labels.get("code") != "503"}
    assert others["scanflow_recorded_total"] == 5
    assert "scanflow_in_flight" not in others  # a gauge of a process that is gone
    assert {name for name, _, _ in second.sum_others("1")} >= {"scanflow_in_flight"}


def test_gpus_are_in_the_metrics_of_each_instance_by_uuid_and_service(tmp_path: Path) -> None:
    metrics, instance = ServiceMetrics(tmp_path / "metrics.json"), Metrics("w")
    whole = DeviceUse(number=0, uuid="GPU-0", sharing="exclusive", busy_share=0.93, power_w=412.0, used_bytes=2**30)
    share = DeviceUse(number=1, uuid="GPU-1", sharing="mps", share=0.5, used_bytes=2**20)
    silent = DeviceUse(number=2, uuid="GPU-2", sharing="exclusive")
    metrics.report("1", instance.collect_samples())
    metrics.report_devices("w", [whole, share, share, silent])
    others = [(name, labels, value) for name, labels, value in metrics.sum_others("1")]
    text = instance.render(others)[0].decode()
    assert [line for line in text.splitlines() if "gpu" in line and not line.startswith("# HELP")] == [
        "# TYPE scanflow_gpu_busy_share gauge",
        'scanflow_gpu_busy_share{service="w",uuid="GPU-0"} 0.93',
        "# TYPE scanflow_gpu_power_watts gauge",
        'scanflow_gpu_power_watts{service="w",uuid="GPU-0"} 412.0',
        "# TYPE scanflow_gpu_memory_bytes gauge",
        'scanflow_gpu_memory_bytes{service="w",uuid="GPU-0"} 1.073741824e+09',
        'scanflow_gpu_memory_bytes{service="w",uuid="GPU-1"} 2.097152e+06',
    ]
    metrics.report_devices("w", [])
    assert "gpu" not in str(metrics.sum_others("1"))


@pytest.mark.parametrize("broken", ["x", [["name"]], [["name", {}, "much"]], None])
def test_what_is_no_sample_changes_nothing(tmp_path: Path, broken: Any) -> None:
    metrics = ServiceMetrics(tmp_path / "metrics.json")
    metrics.report("1", samples())
    metrics.report("1", broken)
    assert metrics.totals.requests == 11
    (tmp_path / "metrics.json").write_text("{")
    assert ServiceMetrics(tmp_path / "metrics.json").totals.requests == 0


def test_a_window_gives_rates_and_quantiles_of_its_seconds(tmp_path: Path) -> None:
    metrics, window = ServiceMetrics(tmp_path / "metrics.json"), MetricsWindow(0)
    metrics.report("1", samples())
    window.record(metrics.totals, 100, in_flight=0)
    assert window.sample("rps", 10, queues=[0]) is None
    metrics.report("1", samples(2))
    window.record(metrics.totals, 110, in_flight=0)
    assert window.active == 110
    assert window.compute_rps("r1") == 1.0
    assert window.sample("rps", 10, queues=[0, 0]) == pytest.approx(0.55)
    assert window.sample("p95", 10, queues=[0]) == 1.0
    assert window.sample("queue", 10, queues=[1, 3]) == 2
    for metric in SHARES:
        assert window.sample(metric, 10, queues=[0], shares=[0.5, None, 0.7]) == pytest.approx(0.6)
        assert window.sample(metric, 10, queues=[0], shares=[None]) is None


def test_the_traffic_of_each_node_is_what_its_instances_count(tmp_path: Path) -> None:
    metrics, window, instance = ServiceMetrics(tmp_path / "metrics.json"), MetricsWindow(0), Metrics("w")
    node = RevisionMetrics(instance, "r1").make_node_metrics("cnn")
    metrics.report("1", instance.collect_samples())
    window.record(metrics.totals, 100, in_flight=0)
    assert window.compute_node_traffic("r1") == {}, "one look has no rate"
    for _ in range(8):
        node.seconds.observe(0.0099)
    node.failed.value += 2
    metrics.report("1", instance.collect_samples())
    window.record(metrics.totals, 110, in_flight=0)
    assert window.compute_node_traffic("r2") == {}
    traffic = window.compute_node_traffic("r1")["cnn"]
    assert (traffic.rps, traffic.error_share) == (1.0, 0.2)
    assert traffic.p95_s == pytest.approx(0.0099, abs=0.0002)


def test_what_was_done_between_two_moments_is_never_negative() -> None:
    before = RevisionStats(requests=10, buckets={1.0: 10})
    assert subtract_stats(before, RevisionStats(requests=12, buckets={1.0: 12, 2.0: 13})).buckets == {1.0: 2, 2.0: 13}
    assert subtract_stats(before, RevisionStats()).requests == 0


def test_quantiles_lie_inside_their_bucket() -> None:
    buckets = {0.1: 90.0, 0.2: 100.0, float("inf"): 100.0}
    assert compute_quantile(buckets, 0.5) == pytest.approx(0.1 * 50 / 90)
    assert compute_quantile(buckets, 0.95) == pytest.approx(0.15)
    assert compute_quantile({0.1: 0.0, float("inf"): 3.0}, 0.5) == 0.1
    assert compute_quantile({}, 0.5) is None


def test_the_usage_of_a_process_is_read() -> None:
    usage = read_usage(os.getpid())
    assert usage is not None
    assert usage.rss_bytes > 1_000_000
    assert read_usage(2**22 + 1) is None
