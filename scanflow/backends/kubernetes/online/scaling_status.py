"""Explain the number of a service's instances from the status of its autoscaler. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scanflow.app.scaling import Scaling
from scanflow.backends.kubernetes.kinds import Manifest, get_condition
from scanflow.backends.service_records import Explanation

_UNITS: Final = {
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}  # fmt: skip
_FIRST_TRIGGER: Final = "s0-"
"""KEDA's prefix for the name of a ScaledObject's first metric; the second one wakes instances."""


def explain(
    service: str, scaling: Scaling, *, hpa: Manifest | None, scaled_object: Manifest | None = None, at: float
) -> Explanation:
    """Return the last decision on the number of instances.

    Args:
        service: The service's name.
        scaling: The scaling policy.
        hpa: The HorizontalPodAutoscaler; None: there is none yet.
        scaled_object: The ScaledObject that it was created from, if any.
        at: Seconds since the epoch.
    """
    status: dict[str, Any] = {} if hpa is None else hpa.get("status", {})
    instances = int(status.get("currentReplicas") or 0)
    wanted = int(status.get("desiredReplicas", instances) or 0)
    sample = None if hpa is None else read_sample(hpa, scaling)
    problem = _format_problem(scaled_object) or (None if hpa is not None else "there is no autoscaler yet")
    return Explanation(
        service=service,
        at=at,
        metric=scaling.metric,
        sample=sample,
        target=scaling.target,
        up=scaling.up_threshold,
        down=scaling.down_threshold,
        instances=instances,
        wanted=wanted,
        formula=_format_formula(scaling, instances, wanted, sample, status),
        decision=f"stay: {problem}" if problem else _format_decision(scaling, instances, wanted, status),
    )


def read_sample(hpa: Manifest, scaling: Scaling) -> float | None:
    """Return the last value of the metric that an autoscaler read, per instance; None: it has read none."""
    for metric in hpa.get("status", {}).get("currentMetrics") or ():
        if scaling.metric == "cpu" and metric["type"] == "Resource":
            utilization = metric["resource"]["current"].get("averageUtilization")
            return None if utilization is None else utilization / 100
        if metric["type"] == "External" and metric["external"]["metric"]["name"].startswith(_FIRST_TRIGGER):
            current = metric["external"]["current"]
            value = parse_quantity(current.get("averageValue") or current.get("value") or "0")
            return value / 1000 if scaling.metric == "p95" else value
    return None


def parse_quantity(text: str) -> float:
    """Parse a Kubernetes quantity: ``1500m``, ``2k``, ``1Mi``."""
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)


def _format_formula(
    scaling: Scaling, instances: int, wanted: int, sample: float | None, status: Mapping[str, Any]
) -> str:
    if instances == 0:
        return "0: the first request starts an instance" if scaling.min == 0 else "0"
    if sample is None:
        return f"{instances}: no measurement yet"
    if scaling.down_threshold <= sample <= scaling.up_threshold and wanted == instances:
        return f"{sample:g} is between {scaling.down_threshold:g} and {scaling.up_threshold:g}: {instances}"
    limited = get_condition(status, "ScalingLimited")
    bounds = {"TooManyReplicas": f", at most max={scaling.max}", "TooFewReplicas": f", at least min={scaling.min}"}
    bound = bounds.get(limited.get("reason", ""), "") if limited.get("status") == "True" else ""
    return f"ceil({instances} x {sample:g} / {scaling.target:g}) = {wanted}{bound}"


def _format_decision(scaling: Scaling, instances: int, wanted: int, status: Mapping[str, Any]) -> str:
    if wanted > instances:
        return f"add {wanted - instances}"
    if wanted < instances:
        return f"remove {instances - wanted}"
    active, able = get_condition(status, "ScalingActive"), get_condition(status, "AbleToScale")
    if active.get("reason") == "ScalingDisabled":
        return f"scale to zero: no request for {scaling.cool_down:g} s"
    for condition in (active, able):
        if condition.get("status") == "False":
            return f"stay: {condition.get('message') or condition.get('reason')}"
    if able.get("reason") == "ScaleDownStabilized":
        return f"stay: more were needed in the last {scaling.stabilization_window_s:g} s"
    return "stay"


def _format_problem(scaled_object: Manifest | None) -> str | None:
    """Format the problem that KEDA reports; None: none."""
    ready = get_condition(scaled_object and scaled_object.get("status"), "Ready")
    return f"KEDA says: {ready.get('message') or ready.get('reason')}" if ready.get("status") == "False" else None
