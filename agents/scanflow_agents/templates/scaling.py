"""The planner's strategy that tunes a service's scaling threshold by the latency of its requests (thesis 5.5.3)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.model import Number, Whole
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow_agents.templates.control_plane import control_plane_of
from scanflow_agents.templates.options import Watching

RELAXED = 0.5
"""Below this share of the wanted latency, instances are asked to take a little more, if they take about what they are
asked to."""

BUSY = 0.8
"""From this share of the threshold on, an instance takes about what it is asked to: only then its latency says that it
could take more."""

MOST_SEEN = 2.0
"""So many times what an instance was seen to take is the most that it is asked to take."""


class ScalingOptions(Watching):
    """Parameters of the strategy below, as the planner has them."""

    target_p95_s: Number | None = Field(default=None, gt=0)
    """The latency that is wanted: when the 95th percentile is above it, scaling is tuned. None: off."""

    min_threshold: Number = Field(default=1.0, gt=0)
    """The lowest number of requests a second that an instance is asked to take."""

    max_instances: Whole = Field(default=4, ge=1)
    """The most instances that scaling may start."""


def declare_scaling(service: str, target_p95_s: float, options: ScalingOptions) -> None:
    """Declare ``tune_scaling``: fit the requests a second that an instance is asked to take to the latency wanted."""

    @sensor(sf.every(seconds=options.watch_interval_s))
    def service_latency(context: Context) -> dict[str, Any]:
        """Measure the service, and work out the threshold that fits."""
        record = control_plane_of(context).service(service)
        p95_s = None if record.current is None else record.current.p95_s
        rps = _taken(record)
        scaled = _threshold(context, record)
        threshold = rps if scaled is None else scaled
        seen = None if scaled is None else rps  # what nothing scales by has nothing to rise for
        return {
            "p95_s": p95_s,
            "instances": record.shape.instances,
            "rps": rps,
            "threshold": threshold,
            "next": next_threshold(
                threshold, p95_s, target_p95_s=target_p95_s, lowest=options.min_threshold, seen=seen
            ),
        }

    Strategy(
        name="tune_scaling",
        when=service_latency,
        if_=lambda found: found["next"] is not None,
        then=lambda found: do.update_workflow_replica(
            service, metric="rps", target=found["next"], max=options.max_instances
        ),
        cool_down=options.watch_cool_down_s,
        autonomy=options.autonomy,
    )


def next_threshold(
    threshold: float | None, p95_s: float | None, *, target_p95_s: float, lowest: float, seen: float | None
) -> float | None:
    """Return the requests a second that an instance should be asked to take; None: leave it as it is. Pure.

    Too slow: less, in proportion, and at most half as much at once. Much faster than wanted while it takes about what
    it is asked to: a tenth more, and at most twice what it was seen to take. Little traffic says nothing of more.

    ``threshold`` is what it is asked to take now, ``lowest`` the least that it is, and ``seen`` what it takes now
    (None: nobody knows).
    """
    if threshold is None or p95_s is None or threshold <= 0:
        return None
    if p95_s > target_p95_s:
        wanted = max(lowest, threshold * max(0.5, target_p95_s / p95_s))
        return round(wanted, 3) if wanted < threshold * 0.99 else None
    if seen is None or p95_s >= RELAXED * target_p95_s or seen < BUSY * threshold:
        return None
    return round(max(lowest, min(threshold * 1.1, MOST_SEEN * seen)), 3)


def _threshold(context: Context, record: ServiceRecord) -> float | None:
    """Return the threshold that scaling goes by, in requests a second for each instance; None: it does not."""
    try:
        said = control_plane_of(context).explain(record.name)
    except (NotFoundError, UsageError, InvalidError):  # nothing scales it yet
        return None
    return said.target if said.metric == "rps" else None


def _taken(record: ServiceRecord) -> float | None:
    """Return the requests a second that each instance takes; None: nobody knows."""
    current = record.current
    if current is None or current.rps is None or record.shape.instances == 0:
        return None
    return current.rps / record.shape.instances
