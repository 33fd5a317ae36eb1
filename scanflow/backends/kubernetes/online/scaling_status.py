"""Why a service has as many instances as it has: what its autoscaler says, in our words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scanflow.app.scaling import Scaling
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.service_records import Explanation

_UNITS: Final = {
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}  # fmt: skip
_FIRST_TRIGGER: Final = "s0-"
"""What KEDA begins the name of a ScaledObject's first metric with; a second one is there to wake instances."""


def explain(
    service: str, scaling: Scaling, *, hpa: Manifest | None, scaled_object: Manifest | None = None, at: float
) -> Explanation:
    """Return the last decision on the number of instances.

    Args:
        service: Its name.
        scaling: What is wanted.
        hpa: The autoscaler as it was read; None: there is none yet.
        scaled_object: KEDA's object that it was made from, if it was.
        at: Seconds since the epoch.
    """
    status: dict[str, Any] = {} if hpa is None else hpa.get("status", {})
    instances = int(status.get("currentReplicas") or 0)
    wanted = int(status.get("desiredReplicas", instances) or 0)
    sample = None if hpa is None else sample_of(hpa, scaling)
    problem = _problem(scaled_object) or (None if hpa is not None else "there is no autoscaler yet")
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
        formula=_formula(scaling, instances, wanted, sample, status),
        decision=f"stay: {problem}" if problem else _decision(scaling, instances, wanted, status),
    )


def sample_of(hpa: Manifest, scaling: Scaling) -> float | None:
    """Return the value of the metric that an autoscaler saw last, for each instance; None: it saw none."""
    for one in hpa.get("status", {}).get("currentMetrics") or ():
        if scaling.metric == "cpu" and one["type"] == "Resource":
            used = one["resource"]["current"].get("averageUtilization")
            return None if used is None else used / 100
        if one["type"] == "External" and one["external"]["metric"]["name"].startswith(_FIRST_TRIGGER):
            current = one["external"]["current"]
            value = quantity(current.get("averageValue") or current.get("value") or "0")
            return value / 1000 if scaling.metric == "p95" else value
    return None


def quantity(text: str) -> float:
    """Return the number that a quantity of Kubernetes is: ``1500m``, ``2k``, ``1Mi``."""
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)


def _formula(scaling: Scaling, instances: int, wanted: int, sample: float | None, status: Mapping[str, Any]) -> str:
    if instances == 0:
        return "0: the first request wakes an instance" if scaling.min == 0 else "0"
    if sample is None:
        return f"{instances}: nothing was measured yet"
    if scaling.down_threshold <= sample <= scaling.up_threshold and wanted == instances:
        return f"{sample:g} is between {scaling.down_threshold:g} and {scaling.up_threshold:g}: {instances}"
    limited = _condition(status, "ScalingLimited")
    bounds = {"TooManyReplicas": f", at most max={scaling.max}", "TooFewReplicas": f", at least min={scaling.min}"}
    bound = bounds.get(limited.get("reason", ""), "") if limited.get("status") == "True" else ""
    return f"ceil({instances} x {sample:g} / {scaling.target:g}) = {wanted}{bound}"


def _decision(scaling: Scaling, instances: int, wanted: int, status: Mapping[str, Any]) -> str:
    if wanted > instances:
        return f"add {wanted - instances}"
    if wanted < instances:
        return f"take away {instances - wanted}"
    active, able = _condition(status, "ScalingActive"), _condition(status, "AbleToScale")
    if active.get("reason") == "ScalingDisabled":
        return f"sleep: no request for {scaling.cool_down:g} s"
    for one in (active, able):
        if one.get("status") == "False":
            return f"stay: {one.get('message') or one.get('reason')}"
    if able.get("reason") == "ScaleDownStabilized":
        return f"stay: more were needed in the last {scaling.stabilization_window_s:g} s"
    return "stay"


def _problem(scaled_object: Manifest | None) -> str | None:
    """Return what KEDA says is wrong; None: nothing."""
    ready = _condition({} if scaled_object is None else scaled_object.get("status", {}), "Ready")
    return f"KEDA says: {ready.get('message') or ready.get('reason')}" if ready.get("status") == "False" else None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions") or () if one["type"] == kind), {})
