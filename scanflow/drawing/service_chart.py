"""A service over time: its load with the threshold of its autoscaler, its instances, its latency and its failures.

Thesis Fig. 5.12 and 5.13: the threshold over the load. Fig. 5.15: a backup answers, and returns what it took over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo

from markupsafe import Markup

from scanflow.drawing import svg
from scanflow.drawing.line_chart import STEPS, EventLine, LinePanel, LineStyle, Period, Point, Threshold, draw_panels

Lines = Mapping[str, Sequence[Point]]

RATE, INSTANCES, LATENCY, FAILURES = "requests/s", "instances", "latency, ms", "failed requests/s"
DESIRED = LineStyle("soft", "1 3", "ring", stepped=True)
FAILED = LineStyle("red", shape="cross")
LOW_PX = 80.0


def draw_service(
    name: str,
    rates: Lines,
    *,
    threshold: Sequence[Point] = (),
    instances: Lines | None = None,
    latencies: Lines | None = None,
    failures: Lines | None = None,
    scaling: LinePanel | None = None,
    bound_ms: float | None = None,
    marks: Sequence[EventLine] = (),
    periods: Sequence[Period] = (),
    span: tuple[float, float] | None = None,
    width: float = svg.WIDTH,
    zone: tzinfo = UTC,
) -> Markup:
    """Draw a panel for each of what is known, over one axis of time.

    Args:
        name: Of the service.
        rates: Requests per second by who answered them: the service and its backup, or versions.
        threshold: The rate above which the autoscaler adds instances, as it was changed: it holds until the next.
        instances: Their number, by name: ``ready``, ``desired``. Each holds until the next.
        latencies: Milliseconds by percentile. Without any value there is no panel of them.
        failures: Failed requests per second, by who failed.
        scaling: What the autoscaler goes by, where that is not the rate of all, with its thresholds.
        bound_ms: The latency that was promised.
        marks: Actions: scaled, moved, another threshold.
        periods: Fail-overs, drains, rollouts.
        span: The ends of the axis. None: those of all points.
    """
    lines = {**rates, **({"threshold": threshold} if threshold else {})}
    panels = [LinePanel(name=RATE, lines=lines, styles={"threshold": STEPS})]
    if scaling is not None:
        panels.append(scaling)
    if instances:
        styles = dict(zip(instances, (STEPS, DESIRED), strict=False))
        panels.append(LinePanel(name=INSTANCES, lines=instances, styles=styles, form="{:.0f}", height=LOW_PX))
    if latencies and any(not math.isnan(point.value) for points in latencies.values() for point in points):
        bound = [] if bound_ms is None else [Threshold(bound_ms, f"bound {bound_ms:g} ms")]
        panels.append(LinePanel(name=LATENCY, lines=latencies, thresholds=bound))
    if failures:
        styles = {next(iter(failures)): FAILED}
        panels.append(LinePanel(name=FAILURES, lines=failures, styles=styles, height=LOW_PX))
    return draw_panels(f"Load and latency of {name}", panels, marks, periods, span=span, width=width, zone=zone)
