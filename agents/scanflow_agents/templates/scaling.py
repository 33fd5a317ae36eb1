"""The planner's strategy that tunes a service's scaling threshold by the latency of its requests (thesis 5.5.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.model import Number, Whole
from scanflow.app.scaling import Scaling
from scanflow.backends.service_records import ServiceRecord
from scanflow.placement.scaling import Load, Recommendation, recommend, stabilised
from scanflow_agents.templates.control_plane import control_plane_of
from scanflow_agents.templates.options import Watching

MOST_BUSY = 0.9
"""The largest share of its cores that an instance is asked to use, where scaling goes by that."""


class ScalingOptions(Watching):
    """Parameters of the strategy below, as the planner has them."""

    target_p95_s: Number | None = Field(default=None, gt=0)
    """The latency that is wanted of 95 of 100 requests: the threshold of scaling by ``rps`` or ``cpu`` is tuned to it,
    and nothing else of the scaling is changed. None: off."""

    min_threshold: Number = Field(default=1.0, gt=0)
    """The lowest number of requests a second that an instance is asked to take."""

    max_instances: Whole = Field(default=4, ge=1)
    """The most instances of a service that nothing scales yet."""

    stabilization_window_s: float = Field(default=180.0, ge=0)
    """For how long fewer instances must have been enough before the threshold is raised, in seconds. It is lowered at
    once."""


def declare_scaling(service: str, target_p95_s: float, options: ScalingOptions) -> None:
    """Declare ``tune_scaling``: fit the threshold that instances are added by to the latency wanted."""
    past: list[Recommendation] = []

    @sensor(sf.every(seconds=options.watch_interval_s))
    def service_latency(context: Context) -> dict[str, Any]:
        """Measure the service, and work out the threshold that fits."""
        nonlocal past
        record, now = control_plane_of(context).service(service), context.clock()
        load, scaling, threshold = record.load, record.scaling, None
        each = None if load is None else metric_of(record, load)
        if load is not None and each:
            given = scaling or _as_it_is(load, record.shape.instances, options.max_instances)
            past = [one for one in past if one.at > now - options.stabilization_window_s]
            threshold, made = next_threshold(
                given, load, each, past, now=now, target_p95_s=target_p95_s, lowest=options.min_threshold
            )
            past.append(made)
            if scaling is None and threshold is not None and threshold > given.target:
                threshold = None  # what nothing scales is left alone while it is fast enough
        return {
            "p95_s": None if load is None else load.p95_s,
            "rps": None if load is None else load.rate,
            "instances": record.shape.instances,
            "metric": None if scaling is None else scaling.metric,
            "threshold": None if scaling is None else scaling.target,
            "next": threshold,
        }

    Strategy(
        name="tune_scaling",
        when=service_latency,
        if_=lambda found: found["next"] is not None,
        then=lambda found: (
            do.update_workflow_replica(service, target=found["next"])
            if found["metric"]
            else do.update_workflow_replica(service, metric="rps", target=found["next"], max=options.max_instances)
        ),
        autonomy=options.autonomy,
    )


def metric_of(record: ServiceRecord, load: Load) -> float | None:
    """Return what an instance has of the metric that scaling goes by; None: nobody knows, or it tells of no load."""
    if record.scaling is None or record.scaling.metric == "rps":
        return load.rate / load.ready
    shares = [one.cpu_share for one in record.instances if one.cpu_share is not None]
    return sum(shares) / len(shares) if record.scaling.metric == "cpu" and shares else None


def next_threshold(
    scaling: Scaling,
    load: Load,
    each: float,
    past: Sequence[Recommendation],
    *,
    now: float,
    target_p95_s: float,
    lowest: float,
) -> tuple[float | None, Recommendation]:
    """Return the threshold by which as many instances are started as the latency wanted needs, and how many. Pure.

    None: by the one there is as many are. ``each`` is what an instance has of the metric now, ``lowest`` the fewest
    requests a second that one is asked to take, ``past`` what was found in the stabilization window. The bounds that
    the scaling has in ``min``, ``max``, ``up`` and ``down`` hold.
    """
    total = each * load.ready
    instances = _wanted_by(scaling.target, scaling, total)
    made = recommend(
        load, instances, past, now=now, target_p95_s=target_p95_s, most=scaling.max, tolerance=scaling.tolerance
    )
    needed = max(stabilised(instances, [*past, made]), scaling.min)
    least = max(lowest if scaling.metric == "rps" else 0.0, scaling.down or 0.0)
    most = min(MOST_BUSY if scaling.metric == "cpu" else math.inf, scaling.up or math.inf)
    found = round(max(min(total / (needed - 0.5), most), least), 3)  # half an instance of noise changes nothing
    return (None if needed == instances or _wanted_by(found, scaling, total) == instances else found), made


def _wanted_by(threshold: float, scaling: Scaling, total: float) -> int:
    return min(max(math.ceil(total / threshold), scaling.min, 1), scaling.max)


def _as_it_is(load: Load, instances: int, most: int) -> Scaling:
    """Return a scaling by which a service has the instances that it has."""
    return Scaling(metric="rps", target=load.rate / max(instances - 0.5, 0.5), max=max(instances, most))
