"""MLPerf LoadGen on a service: the process that runs LoadGen, its settings and its summary.

Reddi et al., "MLPerf Inference Benchmark", ISCA 2020; the scenarios and settings are those of thesis Table 4.2. LoadGen
decides when which query is issued, and what is valid; the requests are sent as those of any other load are.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from scanflow.errors import InvalidError, UnavailableError
from scanflow.load.generator import RequestSender, run_plan
from scanflow.load.load_plan import LoadPlan

Scenario = Literal["single-stream", "multi-stream", "server", "offline"]

SETTINGS: Final = "mlperf.json"
SUMMARY: Final = "mlperf_log_summary.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlperfSettings:
    """The settings of LoadGen. ``scale`` is the factor of Table 4.2's counts."""

    scenario: Scenario
    queries: int
    """Minimum number of queries; of samples in the offline scenario."""

    target_qps: float = 1.0
    """Target of the server scenario; expected value of the offline scenario."""

    target_latency_s: float = 20.0
    """Of the server scenario: 99 % of its queries must be answered within it."""

    samples_per_query: int = 1
    scale: float = 1.0


TABLE_4_2: Final[Mapping[Scenario, MlperfSettings]] = {
    "single-stream": MlperfSettings(scenario="single-stream", queries=1664),
    "multi-stream": MlperfSettings(scenario="multi-stream", queries=2000, target_latency_s=8.0, samples_per_query=8),
    "server": MlperfSettings(scenario="server", queries=12_800, target_qps=200.0, target_latency_s=20.0),
    "offline": MlperfSettings(scenario="offline", queries=32_768, target_qps=200.0),
}
"""The thesis' settings. Its multi-stream dropped queries that were late, as LoadGen did before version 2; since then it
sends a query of N samples when the last one was answered, and N is 8."""


def scale_settings(
    scenario: Scenario,
    scale: float,
    *,
    target_qps: float | None = None,
    target_latency_s: float | None = None,
    samples_per_query: int | None = None,
) -> MlperfSettings:
    """Return Table 4.2's settings of a scenario with its counts multiplied, and the given values in place of others.

    Raises:
        InvalidError: a value that no load can have.
    """
    base = TABLE_4_2[scenario]
    overrides = {"target_qps": target_qps, "target_latency_s": target_latency_s, "samples_per_query": samples_per_query}
    changes: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    if not all(math.isfinite(value) and value > 0 for value in (scale, *changes.values())):
        raise InvalidError("The scale and the targets of a scenario must be numbers above 0.")
    return replace(base, queries=max(1, round(base.queries * scale)), scale=scale, **changes)


@dataclass(frozen=True, slots=True)
class MlperfSummary:
    """LoadGen's summary of a run."""

    valid: bool
    metric: str
    """The metric by which LoadGen rates the scenario: ``Completed samples per second``."""

    value: float
    """Its value: per second, or in nanoseconds if the metric is in nanoseconds."""

    reasons: tuple[str, ...]
    """Why the run is not valid, in LoadGen's words."""

    fields: Mapping[str, str]
    """All lines ``name : value``."""


_METRICS: Final[Mapping[Scenario, tuple[str, ...]]] = {
    "single-stream": ("90th percentile latency (ns)", "90.0th percentile latency (ns)"),
    "multi-stream": ("99th percentile latency (ns)", "99.0th percentile latency (ns)"),
    "server": ("Completed samples per second", "Scheduled samples per second"),
    "offline": ("Samples per second",),
}
_FIELD: Final = re.compile(r"^\s*(.+?)\s*:\s+(\S.*?)\s*$")


def read_summary(text: str, scenario: Scenario) -> MlperfSummary:
    """Parse LoadGen's summary.

    Raises:
        UnavailableError: it is not one of that scenario.
    """
    lines = [(match[1], match[2]) for line in text.splitlines() if (match := _FIELD.match(line))]
    fields = dict(lines)
    metric = next((name for name in _METRICS[scenario] if name in fields), None)
    if metric is None or "Result is" not in fields:
        raise UnavailableError(f"LoadGen's summary has no result of the scenario {scenario}: {text[:200]!r}")
    unmet = tuple(f"{name}: no" for name, value in lines if name.endswith("satisfied") and value.upper() == "NO")
    advice = tuple(line.strip(" *") for line in text.splitlines() if line.startswith(" * "))
    return MlperfSummary(fields["Result is"] == "VALID", metric, float(fields[metric]), (*unmet, *advice), fields)


class _Queries(RequestSender):
    """Samples that LoadGen has issued: each is a request, and LoadGen is told of its answer."""

    def __init__(self, plan: LoadPlan, folder: Path, tell: Callable[[int], None]) -> None:
        super().__init__(plan, folder, requests=None, closed=False)
        self._tell = tell
        self._ids: list[int] = []
        self._rows: list[int] = []

    def issue(self, at: float, samples: Sequence[tuple[int, int]]) -> None:
        """``samples``: for each, the id of its answer and its row."""
        first = len(self._ids)
        self._ids += [id for id, _ in samples]
        self._rows += [row for _, row in samples]
        self.send_due([(at, number) for number in range(first, len(self._ids))], late=True)

    def build_message(self, number: int) -> bytes:
        return super().build_message(self._rows[number])

    def record_result(
        self, number: int, due: float, sent: float, status: int, reason: str | None, tally: str | None
    ) -> None:
        super().record_result(number, due, sent, status, reason, tally)
        self._tell(self._ids[number])  # also where it failed: LoadGen has no failures, and would wait


def _build_settings(settings: MlperfSettings, loadgen: Any) -> Any:
    test_settings = loadgen.TestSettings()
    names = {"single-stream": "SingleStream", "multi-stream": "MultiStream", "server": "Server", "offline": "Offline"}
    test_settings.scenario = getattr(loadgen.TestScenario, names[settings.scenario])
    test_settings.mode = loadgen.TestMode.PerformanceOnly
    test_settings.min_duration_ms = 0
    test_settings.min_query_count = settings.queries
    test_settings.multi_stream_samples_per_query = settings.samples_per_query
    test_settings.server_target_qps = settings.target_qps
    test_settings.server_target_latency_ns = round(settings.target_latency_s * 1e9)
    test_settings.offline_expected_qps = settings.target_qps
    return test_settings


async def _make(plan: LoadPlan, folder: Path) -> None:
    import mlperf_loadgen as loadgen

    settings = MlperfSettings(**json.loads((folder / SETTINGS).read_text()))
    loop = asyncio.get_running_loop()
    run = _Queries(plan, folder, lambda id: loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(id, 0, 0)]))
    await asyncio.gather(*(run.connect() for _ in range(plan.connections)))

    def issue(samples: Sequence[Any]) -> None:
        loop.call_soon_threadsafe(run.issue, time.monotonic(), [(sample.id, sample.index) for sample in samples])

    rows = settings.queries if settings.scenario == "offline" else max(len(plan.bodies), settings.samples_per_query)
    system = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(rows, rows, lambda _: None, lambda _: None)
    log = loadgen.LogSettings()
    log.enable_trace = False
    log.log_output.outdir = str(folder)

    def test() -> None:
        loadgen.StartTestWithLogSettings(system, library, _build_settings(settings, loadgen), log)
        loop.call_soon_threadsafe(run.stop)

    def end() -> None:  # LoadGen itself cannot be stopped
        run.write(folder)
        os._exit(0)

    loop.add_signal_handler(signal.SIGTERM, end)
    run.start()
    testing = threading.Thread(target=test, daemon=True)
    testing.start()
    await run.sweep_until_over()
    await asyncio.to_thread(testing.join)
    run.write(folder)
    await run.disconnect()


if __name__ == "__main__":
    sys.exit(run_plan(_make))
