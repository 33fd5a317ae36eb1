"""The planner's strategy that tunes a service's scaling threshold to the latency of its requests (thesis 5.5.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.model import Model, Number, Whole
from scanflow.app.scaling import Scaling
from scanflow.backends.service_records import ServiceRecord
from scanflow.placement.queueing import Load, Recommendation, recommend, stabilise
from scanflow_agents.templates.template_client import get_control_plane
from scanflow_agents.templates.template_options import WatchOptions

MAX_UTILIZATION = 0.9
"""The highest threshold of CPU utilization, and the highest of GPUs with its tolerance."""


class ScalingOptions(WatchOptions):
    """Parameters of the strategy below, as the planner has them."""

    target_p95_s: Number | None = Field(default=None, gt=0)
    """The target of the 95th percentile of the latency, in seconds: only the threshold of scaling by ``rps``, ``cpu``
    or ``gpu`` is tuned to it. None: off."""

    min_threshold: Number = Field(default=1.0, gt=0)
    """The lowest threshold of requests a second and instance."""

    max_instances: Whole = Field(default=4, ge=1)
    """The most instances of a service without scaling."""

    stabilization_window_s: float = Field(default=180.0, ge=0)
    """How long fewer instances must have been enough before the threshold is raised, in seconds. It is lowered
    immediately."""


class ServiceLatency(Model):
    """A service's latency and scaling threshold."""

    p95_s: float | None
    rps: float | None
    """Requests a second. None: not measured."""

    instances: int
    metric: str | None
    """What it is scaled by. None: it has no scaling."""

    threshold: float | None
    next: float | None
    """The threshold for the target latency. None: the current one."""


def declare_scaling(service: str, target_p95_s: float, options: ScalingOptions) -> None:
    """Declare ``tune_scaling``: tune the scaling threshold to the target latency."""
    past: list[Recommendation] = []

    @sensor(sf.every(seconds=options.watch_interval_s))
    def service_latency(context: Context) -> ServiceLatency:
        """Measure the service, and compute the threshold for the target latency."""
        nonlocal past
        record, now = get_control_plane(context).service(service), context.clock()
        load, scaling, threshold = record.load, record.scaling, None
        per_instance = None if load is None else compute_metric(record, load)
        if load is not None and per_instance:
            current = scaling or _build_scaling(load, record.shape.instances, options.max_instances)
            past = [
                recommendation for recommendation in past if recommendation.at > now - options.stabilization_window_s
            ]
            threshold, recommendation = compute_threshold(
                current, load, per_instance, past, now=now, target_p95_s=target_p95_s, lowest=options.min_threshold
            )
            past.append(recommendation)
            if scaling is None and threshold is not None and threshold > current.target:
                threshold = None  # a service without scaling stays unchanged while it is fast enough
        return ServiceLatency(
            p95_s=None if load is None else load.p95_s,
            rps=None if load is None else load.rate,
            instances=record.shape.instances,
            metric=None if scaling is None else scaling.metric,
            threshold=None if scaling is None else scaling.target,
            next=threshold,
        )

    def needs_another_threshold(latency: ServiceLatency) -> bool:
        return latency.next is not None

    def tune(latency: ServiceLatency) -> Act:
        if latency.metric:
            return do.update_workflow_replica(service, target=latency.next)
        return do.update_workflow_replica(service, metric="rps", target=latency.next, max=options.max_instances)

    Strategy(
        name="tune_scaling", when=service_latency, if_=needs_another_threshold, then=tune, autonomy=options.autonomy
    )


def compute_metric(record: ServiceRecord, load: Load) -> float | None:
    """Return the scaling metric's value per instance; None: unknown, or the metric does not depend on the load."""
    if record.scaling is None or record.scaling.metric == "rps":
        return load.rate / load.ready
    return record.compute_share(record.scaling.metric) if record.scaling.metric in {"cpu", "gpu"} else None


def compute_threshold(
    scaling: Scaling,
    load: Load,
    per_instance: float,
    past: Sequence[Recommendation],
    *,
    now: float,
    target_p95_s: float,
    lowest: float,
) -> tuple[float | None, Recommendation]:
    """Return the threshold that gives the number of instances which the target latency needs, and that number. Pure.

    None: the current threshold gives it too. ``per_instance`` is the metric's value of an instance, ``lowest`` the
    lowest threshold of requests a second, ``past`` the recommendations in the stabilization window. The bounds
    ``min``, ``max``, ``up`` and ``down`` of the scaling hold.
    """
    total = per_instance * load.ready
    instances = _compute_instances(scaling.target, scaling, total)
    recommendation = recommend(
        load, instances, past, now=now, target_p95_s=target_p95_s, most=scaling.max, tolerance=scaling.tolerance
    )
    needed = max(stabilise(instances, [*past, recommendation]), scaling.min)
    least = max(lowest if scaling.metric == "rps" else 0.0, scaling.down or 0.0)
    highest = {"cpu": MAX_UTILIZATION, "gpu": MAX_UTILIZATION / (1 + scaling.tolerance)}
    most = min(highest.get(scaling.metric, math.inf), scaling.up or math.inf)
    threshold = round(max(min(total / (needed - 0.5), most), least), 3)  # half an instance of noise changes nothing
    unchanged = needed == instances or _compute_instances(threshold, scaling, total) == instances
    return (None if unchanged else threshold), recommendation


def _compute_instances(threshold: float, scaling: Scaling, total: float) -> int:
    return min(max(math.ceil(total / threshold), scaling.min, 1), scaling.max)


def _build_scaling(load: Load, instances: int, most: int) -> Scaling:
    """Return a scaling that gives a service its current number of instances."""
    return Scaling(metric="rps", target=load.rate / max(instances - 0.5, 0.5), max=max(instances, most))
