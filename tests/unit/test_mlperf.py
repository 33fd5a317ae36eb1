"""MLPerf LoadGen: what it is told, what it says, and the real one before a server that answers as one is told to."""

from __future__ import annotations

import re
import signal

import pytest

from scanflow.errors import InvalidError, UnavailableError
from scanflow.load.mlperf import TABLE_4_2, MlperfSettings, Scenario, read_summary, scale_settings
from scanflow_client.load_report import LoadSpec, format_load
from scanflow_client.service_load import build_mlperf_settings
from tests.unit.test_load import say, server
from tests.unit.test_service_load import measure_load

pytestmark = pytest.mark.processes

SUMMARY = """
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 190.18
Result is : INVALID
  Performance constraints satisfied : Yes
  Min queries satisfied : Yes
  Early stopping satisfied: NO
Early Stopping Result:
 * Run unsuccessful.
 * Processed 200 queries.

Scheduled samples per second : 190.42
90.00 percentile latency (ns)   : 1818757
"""


def test_table_4_2_is_listed_and_scaled() -> None:
    rows = {name: (row.queries, row.target_qps, row.target_latency_s) for name, row in TABLE_4_2.items()}
    assert rows == {
        "single-stream": (1664, 1.0, 20.0),
        "multi-stream": (2000, 1.0, 8.0),
        "server": (12_800, 200.0, 20.0),
        "offline": (32_768, 200.0, 20.0),
    }
    small = scale_settings("server", 0.01, target_qps=50.0)
    assert (small.queries, small.target_qps, small.target_latency_s, small.scale) == (128, 50.0, 20.0, 0.01)
    assert scale_settings("single-stream", 1e-9).queries == 1
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidError, match="above 0"):
            scale_settings("server", wrong)
    with pytest.raises(InvalidError, match="Did you mean 'server'"):
        build_mlperf_settings("serve", 1.0, rate=None, bound_s=None)


def test_a_summary_is_read_and_one_that_has_no_result_is_refused() -> None:
    summary = read_summary(SUMMARY, "server")
    assert (summary.valid, summary.metric, summary.value) == (False, "Completed samples per second", 190.18)
    assert summary.reasons == ("Early stopping satisfied: no", "Run unsuccessful.", "Processed 200 queries.")
    assert summary.fields["Scenario"] == "Server"
    for text in ("", SUMMARY.replace("Result is", "It is")):
        with pytest.raises(UnavailableError, match="no result of the scenario server"):
            read_summary(text, "server")
    with pytest.raises(UnavailableError, match="offline"):
        read_summary(SUMMARY, "offline")


@pytest.mark.parametrize("scenario", list(TABLE_4_2))
def test_loadgen_issues_at_least_so_many_samples_and_says_what_became_of_them(scenario: Scenario) -> None:
    settings = MlperfSettings(scenario=scenario, queries=70, target_qps=500.0, samples_per_query=2, scale=0.1)
    with server(lambda handler, number: say(handler)) as url:
        report = measure_load(url, LoadSpec(mlperf=settings, connections=4))
    assert report.result.requests >= (140 if scenario == "multi-stream" else 70)
    assert report.result.failed == 0
    assert all(0 <= waited <= took for waited, took in zip(report.result.waited, report.result.took, strict=True))
    assert report.result.mlperf is not None
    assert report.result.mlperf.value > 0
    assert report.summary()["loop"] == f"MLPerf {scenario}"
    lines = "\n".join(map(str, format_load(report, bound_s=None)))
    assert re.search(rf"valid: MLPerf {scenario}, at 0.1 of Table 4.2's queries; .+: \d", lines)


def test_requests_that_fail_under_loadgen_are_counted_and_an_interrupted_run_keeps_what_was_measured() -> None:
    settings = MlperfSettings(scenario="server", queries=100_000, target_qps=200.0)

    def interrupt(finished: int, _failed: int) -> None:
        if finished >= 20:
            signal.raise_signal(signal.SIGINT)

    with server(lambda handler, number: say(handler, 503 if number == 3 else 200, b"full")) as url:
        report = measure_load(url, LoadSpec(mlperf=settings, connections=2), observe=interrupt)
    assert (report.interrupted, report.result.failed, report.result.mlperf) == (True, 1, None)
    assert report.result.requests >= 20
    assert report.summary()["mlperf"]["summary"] is None
