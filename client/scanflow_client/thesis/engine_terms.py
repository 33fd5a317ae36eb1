"""What notebooks of the thesis' project write in Kubernetes' and KEDA's terms, as the terms of this version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scanflow.app.resources import Resources
from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.errors import UnsupportedError

ELSEWHERE: Final[Mapping[str, str]] = {
    "ScanflowAgentSensor": "sf.Sensor(name=..., trigger=..., function='file.py:name', parameters={...})",
    "ScanflowAgentSensor_CronTrigger": "sf.cron('0 * * * *')",
    "ScanflowAgentSensor_DateTrigger": "sf.at(datetime(..., tzinfo=UTC))",
    "ScanflowAgentSensor_IntervalTrigger": "sf.every(minutes=5)",
    "V1Affinity": "sf.Affinity(node_selector={...}, apart_from=[...], avoid_services=[...])",
    "V1LabelSelector": "sf.Affinity(near=[...], apart_from=[...])",
    "V1LabelSelectorRequirement": "sf.Affinity(near=[...], apart_from=[...])",
    "V1NodeAffinity": "sf.Affinity(node_selector={...})",
    "V1NodeSelector": "sf.Affinity(node_selector={...})",
    "V1NodeSelectorRequirement": "sf.Affinity(node_selector={...})",
    "V1NodeSelectorTerm": "sf.Affinity(node_selector={...})",
    "V1PodAffinity": "sf.Affinity(near=[...])",
    "V1PodAffinityTerm": "sf.Affinity(near=[...])",
    "V1PodAntiAffinity": "sf.Affinity(apart_from=[...], avoid_services=[...])",
    "V1PreferredSchedulingTerm": "sf.Affinity(node_selector={...})",
    "V1WeightedPodAffinityTerm": "sf.Affinity(near=[...])",
}
"""Methods of that project's client that describe what this version says otherwise, and what to write."""


_PARAMETERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "STRING": str,
    "INT": int,
    "FLOAT": float,
    "DOUBLE": float,
    "BOOL": lambda text: {"true": True, "false": False}[text.lower()],
}
"""The types that Seldon knows, each by what reads its text."""


@dataclass(frozen=True, slots=True)
class ScalerTrigger:
    """When KEDA scales: by a metric that Prometheus has."""

    metric_name: str
    threshold: str
    type: str = "prometheus"


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """When an HPA scales: the share of its cores that a pod is to use, in percent."""

    average_utilization: int


def keda_spec(
    triggers: Sequence[ScalerTrigger] | None,
    polling_s: float = 30,
    cool_down_s: float = 30,
    least: int = 0,
    most: int = 10,
) -> Scaling:
    """Return what a ``KedaSpec`` says. What its query asks of Prometheus is measured by scanflow itself, by its metric.

    Raises:
        UnsupportedError: it has not one trigger, or one whose metric scanflow has no like of.
    """
    if triggers is None or len(triggers) != 1:
        raise UnsupportedError(
            f"KedaSpec has {len(triggers or ())} triggers; a service scales by one metric. Write "
            "sf.Scaling(metric='rps', target=20, min=1, max=10)."
        )
    (trigger,) = triggers
    try:
        target = float(trigger.threshold.strip("'\" "))
    except ValueError:
        raise UnsupportedError(f"threshold={trigger.threshold!r} is no number. Write threshold='20'.") from None
    return Scaling(
        metric=_metric(trigger), target=target, min=least, max=most, polling=polling_s, cool_down=cool_down_s
    )


def hpa_spec(metrics: CpuTarget | Sequence[CpuTarget], least: int = 0, most: int = 10) -> Scaling:
    """Return what an ``HpaSpec`` says."""
    found = [metrics] if isinstance(metrics, CpuTarget) else list(metrics)
    if len(found) != 1 or not isinstance(found[0], CpuTarget):
        raise UnsupportedError("HpaSpec: a service scales by one metric. Write sf.Scaling(metric='cpu', target=0.5).")
    return Scaling(metric="cpu", target=found[0].average_utilization / 100, min=least, max=most)


def resources_of(requests: Mapping[str, Any] | None, limits: Mapping[str, Any] | None) -> Resources:
    """Return what a ``V1ResourceRequirements`` grants: its limits, else its requests."""
    granted = {**(requests or {}), **(limits or {})}
    known = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpu"}
    if unknown := [name for name in granted if name not in known]:
        raise UnsupportedError(f"The resource {unknown[0]!r} cannot be asked for. Known: {', '.join(known)}.")
    given = {known[name]: int(value) if name == "nvidia.com/gpu" else value for name, value in granted.items()}
    return Resources(**given)


def parameters_of(service: str, given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters of a component, which Seldon has as texts with a type.

    Raises:
        UnsupportedError: one has a type that Seldon has not, or is not of its type.
    """
    found = {}
    for one in given:
        kind, value = str(one.get("type", "STRING")), one["value"]
        try:
            found[one["name"]] = _PARAMETERS[kind](str(value))
        except (KeyError, ValueError):
            raise UnsupportedError(
                f"Service {service!r}: the parameter {one['name']!r} is {value!r} of type {kind!r}. Known types: "
                f"{', '.join(_PARAMETERS)}. Or write parameters={{{one['name']!r}: ...}}."
            ) from None
    return found


def _metric(trigger: ScalerTrigger) -> ScalingMetric:
    name = trigger.metric_name.lower()
    if trigger.type == "cpu":
        return "cpu"
    if "duration" in name or "latency" in name:
        return "p95"
    if "request" in name:
        return "rps"
    if "queue" in name:
        return "queue"
    raise UnsupportedError(
        f"metricName={trigger.metric_name!r}: scanflow scales by rps, p95, cpu and queue. Write "
        "sf.Scaling(metric='rps', target=20)."
    )
