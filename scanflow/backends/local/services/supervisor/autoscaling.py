"""How many instances a service should have. Pure: from a rule, a sample and what happened before to a decision.

The formula is that of Kubernetes' HorizontalPodAutoscaler, ``ceil(instances x sample / target)``, so that the same rule
means the same there. It counts only outside the band between the two thresholds, and instances are taken away only once
the cool-down has passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from scanflow.app.scaling import Scaling
from scanflow.backends.service_records import Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What happened before. Seconds on one clock."""

    changed: float
    """When the number of instances last changed."""

    active: float
    """When a request was last seen."""


def decide(
    scaling: Scaling, *, service: str, instances: int, sample: float | None, now: float, history: History
) -> Explanation:
    """Return how many instances there should be, and why.

    ``sample`` is the metric's value per instance, None where nothing was measured: no requests, which counts as
    nothing to do. No instance at all is for a service that has seen no request for the cool-down; the first request
    ends that, and not this function.
    """
    cool_down = cast("float", scaling.cool_down)
    raw, formula = _wanted(scaling, instances, sample)
    least = scaling.min if instances == 0 else max(scaling.min, 1)
    bounded = min(max(raw, least), scaling.max)
    if bounded != raw:
        formula += f", at least {least}" if raw < least else f", at most max={scaling.max}"
    wanted, decision = bounded, _describe(bounded - instances)
    if scaling.min == 0 and instances > 0 and wanted <= 1:
        idle = now - history.active
        if idle >= cool_down and now - history.changed >= cool_down:
            wanted, decision = 0, f"sleep: no request for {idle:.0f} s"
    if wanted < instances <= scaling.max and (left := cool_down - (now - history.changed)) > 0:
        wanted, decision = instances, f"stay: {math.ceil(left)} s of the cool-down are left"
    return Explanation(
        service=service,
        at=now,
        metric=scaling.metric,
        sample=sample,
        target=scaling.target,
        up=scaling.up_threshold,
        down=scaling.down_threshold,
        instances=instances,
        wanted=wanted,
        formula=formula,
        decision=decision,
    )


def _wanted(scaling: Scaling, instances: int, sample: float | None) -> tuple[int, str]:
    """Return what the formula asks for, without bounds and waiting."""
    if instances == 0:
        return 0, "0: the first request wakes an instance"
    value = 0.0 if sample is None else max(0.0, sample)
    if scaling.down_threshold <= value <= scaling.up_threshold:
        return instances, (f"{value:g} is between {scaling.down_threshold:g} and {scaling.up_threshold:g}: {instances}")
    # A sample far beyond the bounds must not make a number that no integer holds.
    needed = math.ceil(min(instances * value / scaling.target, 1e9))
    formula = f"ceil({instances} x {value:g} / {scaling.target:g}) = {needed}"
    if value > scaling.up_threshold:
        return max(needed, instances + 1), formula
    return min(needed, instances), formula


def _describe(change: int) -> str:
    if change == 0:
        return "stay"
    return f"add {change}" if change > 0 else f"take away {-change}"
