"""The report of a load, and how it is shown: as lines, a table and a plot."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scanflow.app.quantities import format_count
from scanflow_client.formatting.service_text import format_shape
from scanflow_client.formatting.text import format_amount, format_latency
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from markupsafe import Markup

    from scanflow.backends.service_records import Shape
    from scanflow.load.arrivals import RateTrace
    from scanflow.load.load_process import LoadMetrics, LoadResult
    from scanflow.load.mlperf import MlperfSettings, MlperfSummary

DEFAULT_S = 10.0
"""Default duration of a load."""

SLICES = 40
"""Points of the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """The load to generate: an open loop if there is a trace, else a closed one."""

    trace: RateTrace | None = None
    poisson: int | None = None
    """The seed of a Poisson process; None: requests are due at even intervals."""

    seconds: float = DEFAULT_S
    """Duration of a closed loop."""

    mlperf: MlperfSettings | None = None
    """LoadGen decides when requests are due."""

    connections: int = 16
    timeout_s: float = 30.0
    rows: int = 1
    """Samples of a request."""

    grpc: bool = False
    """Whether requests are sent over gRPC; else over REST."""

    @classmethod
    def build(
        cls, trace: RateTrace | None, *, poisson: int | None, seconds: float | None, connections: int
    ) -> LoadSpec:
        """Build a specification; ``seconds`` None: the default duration."""
        duration_s = DEFAULT_S if seconds is None else seconds
        return cls(trace=trace, poisson=poisson, seconds=duration_s, connections=connections)

    @property
    def duration_s(self) -> float | None:
        """The duration; None: LoadGen decides."""
        if self.mlperf is not None:
            return None
        return self.seconds if self.trace is None else self.trace.seconds

    @property
    def protocol(self) -> str:
        return "gRPC" if self.grpc else "REST"

    @property
    def loop(self) -> str:
        if self.mlperf is not None:
            return f"MLPerf {self.mlperf.scenario}"
        return "closed" if self.trace is None else "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A load and its result."""

    service: str
    shape: Shape
    """The shape of the service."""

    spec: LoadSpec
    result: LoadResult
    interrupted: bool = False
    energy_j: float | None = None
    """What the service's own GPUs took meanwhile; None: it has none, or they do not count."""

    @property
    def energy_j_per_1000(self) -> float | None:
        """The energy of a thousand samples; None: unknown, or none was predicted."""
        metrics = self.result.metrics()
        samples = (metrics.requests - metrics.failed) * self.spec.rows
        return None if self.energy_j is None or not samples else 1000 * self.energy_j / samples

    @property
    def target_rate(self) -> float | None:
        """Requests a second that were due, on average; None in a closed loop."""
        trace = self.spec.trace
        return None if trace is None else trace.requests / trace.seconds

    @property
    def rate(self) -> float:
        """Requests a second that succeeded, from the first that was due to the last answer or the trace's end."""
        metrics, trace = self.result.metrics(), self.spec.trace
        seconds = metrics.seconds if trace is None or self.interrupted else max(metrics.seconds, trace.seconds)
        return (metrics.requests - metrics.failed) / seconds if seconds else 0.0

    def _summarize_mlperf(self) -> dict[str, Any] | None:
        settings, summary = self.spec.mlperf, self.result.mlperf
        if settings is None:
            return None
        return {"settings": asdict(settings), "summary": None if summary is None else asdict(summary)}

    def summary(self) -> dict[str, Any]:
        """Return the report without the individual requests, in JSON types."""
        metrics = {name: None if math.isnan(value) else value for name, value in asdict(self.result.metrics()).items()}
        return {
            "service": self.service,
            "shape": self.shape.model_dump(mode="json"),
            "protocol": self.spec.protocol,
            "loop": self.spec.loop,
            "arrivals": None if self.spec.trace is None else "even" if self.spec.poisson is None else "poisson",
            "connections": self.spec.connections,
            "wanted_rate": self.target_rate,
            **metrics,
            "rate": self.rate,
            "rows": self.spec.rows,
            "samples_rate": self.rate * self.spec.rows,
            "energy_j": self.energy_j,
            "energy_j_per_1000": self.energy_j_per_1000,
            "reasons": dict(self.result.reasons),
            "reconnects": self.result.reconnects,
            "interrupted": self.interrupted,
            "mlperf": self._summarize_mlperf(),
        }


def format_load(report: LoadReport, *, bound_s: float | None = None) -> Screen:
    """Return the rate, the latencies and the reasons of failures of a load. ``bound_s``: the bound of the p99."""
    result = report.result
    metrics = result.metrics()
    failed = f"{metrics.failed:,} failed" if metrics.failed else "none failed"
    columns = {"completed/s": format_amount(report.rate, 4)}
    if report.spec.rows > 1:
        columns["samples/s"] = format_amount(report.rate * report.spec.rows, 4)
    columns |= {"mean": _format_known_latency(metrics.mean_s), **_format_percentiles(metrics)}
    if report.target_rate is not None:
        columns = {"target/s": format_amount(report.target_rate, 4), **columns}
    ended = " It was interrupted." if report.interrupted else ""
    requests, shape = format_count(metrics.requests, "request"), format_shape(report.shape)
    sent = f"{requests} to {report.service} ({shape}) in {metrics.seconds:.3g} s"
    screen: list[str | Table] = [
        f"{sent} over {format_count(report.spec.connections, f'{report.spec.protocol} connection')}: {failed}.{ended}",
        Table(list(columns), [list(columns.values())]),
    ]
    if report.energy_j_per_1000 is not None:
        each = format_amount(report.energy_j_per_1000)
        screen.append(f"Its GPUs took {report.energy_j:,.0f} J: {each} J for 1,000 predictions.")
    screen += [f"  {count:,} × {reason}" for reason, count in sorted(result.reasons.items(), key=lambda item: -item[1])]
    if result.mlperf is not None and report.spec.mlperf is not None:
        screen += _format_mlperf(report.spec.mlperf, result.mlperf)
    elif bound_s is not None:
        holds = metrics.p99_s <= bound_s and not metrics.failed
        rate = f"{format_amount(report.rate, 4)} requests/s" if holds else "not at this rate"
        screen.append(f"{'✓' if holds else '✗'} p99 within {format_latency(bound_s)} and none failed: {rate}")
    return screen


def _format_mlperf(settings: MlperfSettings, summary: MlperfSummary) -> list[str]:
    value = format_amount(summary.value, 4)
    if summary.metric.endswith("(ns)"):
        value = format_latency(summary.value / 1e9)
    at = "" if settings.scale == 1 else f", at {settings.scale:g} of Table 4.2's queries"
    head = f"{'✓ valid' if summary.valid else '✗ not valid'}: MLPerf {settings.scenario}{at}; {summary.metric}: {value}"
    return [head.replace(" (ns)", ""), *(f"  {reason}" for reason in summary.reasons)]


def draw_load(report: LoadReport) -> Markup:
    """Return latency over time as SVG: of each slice of the load the median and the 99th percentile."""
    from scanflow.drawing import svg
    from scanflow.drawing.line_chart import LinePanel, Point, draw_panels

    result = report.result
    begin = min(result.due, default=0.0)
    width = max(max(result.due, default=0.0) - begin, 1e-3) / SLICES
    wall = time.time() - time.monotonic()
    lines: dict[str, list[Point]] = {"p50": [], "p99": []}
    for place, metrics in enumerate(result.slice_metrics(SLICES)):
        for name, value in (("p50", metrics.p50_s), ("p99", metrics.p99_s)):
            if not math.isnan(value):  # else none of the slice succeeded
                words = f"{name} {format_latency(value)}, {format_amount(metrics.rate, 4)} completed/s"
                lines[name].append(Point(wall + begin + (place + 0.5) * width, 1000 * value, words))
    span = (wall + begin, wall + begin + SLICES * width)
    name = f"Latency of {report.service}"
    if not any(lines.values()):
        return svg.draw_figure(
            40.0, name, svg.draw_text(f"{name}: no request succeeded", 12.0, 24.0, "ink", anchor="start")
        )
    return draw_panels(name, [LinePanel(name="latency", lines=lines, form="{:.3g} ms")], span=span)


def _format_percentiles(metrics: LoadMetrics) -> dict[str, str]:
    """Return the percentiles that the number of requests supports."""
    succeeded = metrics.requests - metrics.failed
    percentiles = (("p50", 2, metrics.p50_s), ("p90", 10, metrics.p90_s), ("p99", 100, metrics.p99_s))
    cells = {name: _format_known_latency(value) if succeeded >= least else "-" for name, least, value in percentiles}
    return {
        **cells,
        "p99.9": _format_known_latency(metrics.p999_s) if succeeded >= 1000 else "-",
        "max": _format_known_latency(metrics.max_s),
    }


def _format_known_latency(seconds: float) -> str:
    return "-" if math.isnan(seconds) else format_latency(seconds)
