"""The load of a service over time: rates, latencies, the autoscaler's threshold, instances, and fail-overs (thesis
Fig. 5.12, 5.13 and 5.15)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import NamedTuple

from markupsafe import Markup

from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.drawing import svg
from scanflow.drawing.line_chart import STEPS, EventLine, LinePanel, LineStyle, Period, Point, Threshold, draw_panels

ERRORS = LineStyle("red", "3 3", "square")
_UNITS: dict[ScalingMetric, str] = {
    "rps": "requests/s of an instance",
    "p95": "p95 of an instance, s",
    "cpu": "share of its cores",
    "queue": "waiting requests of an instance",
}


class ServiceSample(NamedTuple):
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
    load: float | None = None
    """The value per instance of the metric that the autoscaler goes by."""


def draw_service_load(
    name: str,
    samples: Sequence[ServiceSample],
    scaling: Scaling | None = None,
    marks: Sequence[EventLine] = (),
    *,
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw samples, the oldest first: the times that a backup answered are marked, and ``marks`` are changes."""
    panels = [
        LinePanel(
            name="requests/s",
            lines={
                "all": _list_points(samples, lambda sample: sample.rate, "{:.4g} requests/s"),
                "failed": _list_points(samples, lambda sample: sample.error_rate, "{:.4g} failed/s"),
            },
            styles={"failed": ERRORS},
        ),
        LinePanel(
            name="latency, ms",
            lines={
                "p50": _list_points(samples, lambda sample: _to_ms(sample.p50_s), "p50 {:.3g} ms"),
                "p99": _list_points(samples, lambda sample: _to_ms(sample.p99_s), "p99 {:.3g} ms"),
            },
        ),
        *([] if scaling is None else [_build_scaling_panel(samples, scaling)]),
        LinePanel(
            name="instances",
            lines={
                "wanted": _list_points(samples, lambda sample: sample.wanted, "{:.0f} wanted"),
                "ready": _list_points(samples, lambda sample: sample.ready, "{:.0f} ready"),
            },
            form="{:.0f}",
            styles={"wanted": STEPS, "ready": LineStyle("green", stepped=True)},
            height=70.0,
        ),
    ]
    shown = [panel for panel in panels if _has_values(panel)]
    periods = list_failovers(samples)
    title = f"The load of {name} over time"
    return draw_panels(title, shown, _list_within(marks, samples), periods, width=width, zone=zone)


def list_failovers(samples: Sequence[ServiceSample]) -> list[Period]:
    """Return the times that the backup answered: from the fail-over to the return."""
    periods: list[Period] = []
    for sample in samples:
        open_one = bool(periods) and periods[-1].end is None
        if sample.state == "backup" and not open_one:
            periods.append(Period(sample.at, None, "backup answers", "amber"))
        elif sample.state != "backup" and open_one:
            periods[-1] = periods[-1]._replace(end=sample.at)
    return periods


def _build_scaling_panel(samples: Sequence[ServiceSample], scaling: Scaling) -> LinePanel:
    unit, up, down = _UNITS[scaling.metric], scaling.up_threshold, scaling.down_threshold
    return LinePanel(
        name=unit,
        lines={"measured": _list_points(samples, lambda sample: sample.load, "{:.4g} " + unit)},
        thresholds=(Threshold(down, "", "violet"), Threshold(up, f"adds above {up:.4g}, removes below {down:.4g}")),
    )


def _list_points(
    samples: Sequence[ServiceSample], get_value: Callable[[ServiceSample], float | None], form: str
) -> list[Point]:
    points = []
    for sample in samples:
        value = get_value(sample)
        points.append(
            Point(sample.at, math.nan if value is None else value, "" if value is None else form.format(value))
        )
    return points


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _has_values(panel: LinePanel) -> bool:
    return any(not math.isnan(point.value) for points in panel.lines.values() for point in points)


def _list_within(marks: Sequence[EventLine], samples: Sequence[ServiceSample]) -> list[EventLine]:
    return [mark for mark in marks if samples and samples[0].at <= mark.at <= samples[-1].at]
