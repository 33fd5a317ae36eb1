"""The load of a service over time, from samples of it, as a drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import NamedTuple

from markupsafe import Markup

from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.drawing import svg
from scanflow.drawing.downsampling import downsample
from scanflow.drawing.line_chart import EventLine, LinePanel, Period, Point, Threshold, build_points
from scanflow.drawing.service_chart import draw_service

_UNITS: dict[ScalingMetric, str] = {
    "rps": "requests/s of an instance",
    "p95": "p95 of an instance, s",
    "cpu": "share of its cores",
    "queue": "waiting requests of an instance",
    "gpu": "share of its GPUs' time",
    "gpu_memory": "share of its GPUs' memory",
}

_COLUMN_PX = 6.0
"""How wide a part of the time is of which the least and the greatest value are drawn, if there are many."""


class LoadSample(NamedTuple):
    """What a service did until a time, since the sample before."""

    at: float
    """Seconds since the epoch."""

    rate: float
    """Requests per second."""

    error_rate: float
    """Failed requests per second."""

    p50_s: float | None
    p99_s: float | None
    ready: int
    """Instances."""

    wanted: int
    state: str
    restarts: int = 0
    """Of its instances by then: a restart is a sample, even if all instances were ready before and after."""

    load: float | None = None
    """The value per instance of the metric that the autoscaler goes by."""


def draw_service_load(
    name: str,
    samples: Sequence[LoadSample],
    scaling: Scaling | None = None,
    marks: Sequence[EventLine] = (),
    periods: Sequence[Period] = (),
    *,
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw samples, the oldest first, at least one. What of ``marks`` and ``periods`` was before them is left out."""
    begin, end = samples[0].at, samples[-1].at
    has_failures = any(sample.error_rate for sample in samples)

    def list_points(get_value: Callable[[LoadSample], float | None], form: str) -> list[Point]:
        points = build_points(((sample.at, get_value(sample)) for sample in samples), form, zone=zone)
        return downsample(points, begin, end, int(width / _COLUMN_PX))

    loads = [] if scaling is None else list_points(lambda sample: sample.load, "{:.4g}")
    return draw_service(
        name,
        {"requests": list_points(lambda sample: sample.rate, "{:.4g} requests/s")},
        instances={
            "wanted": list_points(lambda sample: sample.wanted, "{:.0f} wanted"),
            "ready": list_points(lambda sample: sample.ready, "{:.0f} ready"),
        },
        latencies={
            "p50": list_points(lambda sample: _to_ms(sample.p50_s), "{:.3g} ms"),
            "p99": list_points(lambda sample: _to_ms(sample.p99_s), "{:.3g} ms"),
        },
        failures={"failed": list_points(lambda sample: sample.error_rate, "{:.4g} failed/s")} if has_failures else {},
        scaling=None if scaling is None else _build_scaling_panel(scaling, loads),
        marks=[mark for mark in marks if begin <= mark.at <= end],
        periods=[
            period._replace(begin=max(period.begin, begin))
            for period in periods
            if period.end is None or period.end > begin
        ],
        span=(begin, end),
        width=width,
        zone=zone,
    )


def _build_scaling_panel(scaling: Scaling, loads: Sequence[Point]) -> LinePanel:
    up, down = scaling.up_threshold, scaling.down_threshold
    return LinePanel(
        name=_UNITS[scaling.metric],
        lines={"measured": loads},
        thresholds=(Threshold(up, f"adds above {up:.4g}"), Threshold(down, f"removes below {down:.4g}", "violet")),
    )


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
