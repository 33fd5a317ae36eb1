"""The report of a load as lines, a table and a plot."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from scanflow.app.quantities import format_count
from scanflow_client.formatting.services import format_shape
from scanflow_client.formatting.table import Screen, Table, render_html
from scanflow_client.formatting.text import format_latency

if TYPE_CHECKING:
    from scanflow.load.load import LoadMetrics
    from scanflow.load.mlperf import MlperfSettings, MlperfSummary
    from scanflow_client.service_load import LoadReport

SLICES = 40
"""Points of the plot."""


def format_load(report: LoadReport, *, bound_s: float | None) -> Screen:
    """Return the rate, the latencies and the reasons of failures of a load. ``bound_s``: the bound of the p99."""
    result = report.result
    metrics = result.metrics()
    failed = f"{metrics.failed:,} failed" if metrics.failed else "none failed"
    columns = {"completed/s": f"{report.rate:.4g}"}
    if report.spec.rows > 1:
        columns["samples/s"] = f"{report.rate * report.spec.rows:.4g}"
    columns |= {"mean": _format_known_latency(metrics.mean_s), **_format_percentiles(metrics)}
    if report.target_rate is not None:
        columns = {"target/s": f"{report.target_rate:.4g}", **columns}
    ended = " It was interrupted." if report.interrupted else ""
    requests, shape = format_count(metrics.requests, "request"), format_shape(report.shape)
    sent = f"{requests} to {report.service} ({shape}) in {metrics.seconds:.3g} s"
    screen: list[str | Table] = [
        f"{sent} over {format_count(report.spec.connections, f'{report.spec.protocol} connection')}: {failed}.{ended}",
        Table(list(columns), [list(columns.values())]),
    ]
    screen += [f"  {count:,} × {reason}" for reason, count in sorted(result.reasons.items(), key=lambda item: -item[1])]
    if result.mlperf is not None and report.spec.mlperf is not None:
        screen += _format_mlperf(report.spec.mlperf, result.mlperf)
    elif bound_s is not None:
        holds = metrics.p99_s <= bound_s and not metrics.failed
        rate = f"{report.rate:.4g} requests/s" if holds else "not at this rate"
        screen.append(f"{'✓' if holds else '✗'} p99 within {format_latency(bound_s)} and none failed: {rate}")
    return screen


def _format_mlperf(settings: MlperfSettings, summary: MlperfSummary) -> list[str]:
    value = f"{summary.value:.4g}"
    if summary.metric.endswith("(ns)"):
        value = format_latency(summary.value / 1e9)
    at = "" if settings.scale == 1 else f", at {settings.scale:g} of Table 4.2's queries"
    head = f"{'✓ valid' if summary.valid else '✗ not valid'}: MLPerf {settings.scenario}{at}; {summary.metric}: {value}"
    return [head.replace(" (ns)", ""), *(f"  {reason}" for reason in summary.reasons)]


def render_load(report: LoadReport) -> str:
    """Return the report with its plot as HTML, for a notebook."""
    return render_html(format_load(report, bound_s=None)) + draw_load(report)


def draw_load(report: LoadReport) -> str:
    """Return latency over time as SVG: of each slice of the load the median and the 99th percentile."""
    from scanflow.reports import drawing
    from scanflow.reports.series import Point, draw_chart

    result = report.result
    begin = min(result.due, default=0.0)
    width = max(max(result.due, default=0.0) - begin, 1e-3) / SLICES
    wall = time.time() - time.monotonic()
    lines: dict[str, list[Point]] = {"p50": [], "p99": []}
    for place, metrics in enumerate(result.slice_metrics(SLICES)):
        for name, value in (("p50", metrics.p50_s), ("p99", metrics.p99_s)):
            if not math.isnan(value):  # else none of the slice succeeded
                words = f"{name} {format_latency(value)}, {metrics.rate:.4g} completed/s"
                lines[name].append(Point(wall + begin + (place + 0.5) * width, 1000 * value, words))
    span = (wall + begin, wall + begin + SLICES * width)
    name = f"Latency of {report.service}"
    if not any(lines.values()):
        return drawing.draw_figure(
            40.0, name, drawing.draw_text(f"{name}: no request succeeded", 12.0, 24.0, "ink", anchor="start")
        )
    drawn = {key: points for key, points in lines.items() if points}
    return draw_chart(
        name, drawn, [], span=span, form="{:.3g} ms", limits=(0.0, None), legend=True, width=drawing.WIDTH
    )


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
