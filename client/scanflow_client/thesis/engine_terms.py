"""Conversion of Kubernetes' and KEDA's terms, in notebooks of the thesis' project, to the terms of this version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scanflow.app.resources import Resources
from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.errors import UnsupportedError

REPLACEMENTS: Final[Mapping[str, str]] = {
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
"""Methods of that project's client that this version does not have, and their replacements."""


_PARAMETERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "STRING": str,
    "INT": int,
    "FLOAT": float,
    "DOUBLE": float,
    "BOOL": lambda text: {"true": True, "false": False}[text.lower()],
}
"""The parsers of Seldon's parameter types."""


@dataclass(frozen=True, slots=True)
class ScalerTrigger:
    """A KEDA trigger: a metric of Prometheus and its threshold."""

    metric_name: str
    threshold: str
    type: str = "prometheus"


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """The target of an HPA: the share of its cores that a pod is to use, in percent."""

    average_utilization: int


def convert_keda_spec(
    triggers: Sequence[ScalerTrigger] | None,
    polling_s: float = 30,
    cool_down_s: float = 30,
    least: int = 0,
    most: int = 10,
) -> Scaling:
    """Convert a ``KedaSpec``. In place of its Prometheus query, scanflow measures the corresponding metric itself.

    Raises:
        UnsupportedError: there is not exactly one trigger, or its metric has no counterpart.
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
        raise UnsupportedError(f"threshold={trigger.threshold!r} is not a number. Write threshold='20'.") from None
    return Scaling(
        metric=_convert_metric(trigger), target=target, min=least, max=most, polling=polling_s, cool_down=cool_down_s
    )


def convert_hpa_spec(metrics: CpuTarget | Sequence[CpuTarget], least: int = 0, most: int = 10) -> Scaling:
    """Convert an ``HpaSpec``."""
    targets = [metrics] if isinstance(metrics, CpuTarget) else list(metrics)
    if len(targets) != 1 or not isinstance(targets[0], CpuTarget):
        raise UnsupportedError("HpaSpec: a service scales by one metric. Write sf.Scaling(metric='cpu', target=0.5).")
    return Scaling(metric="cpu", target=targets[0].average_utilization / 100, min=least, max=most)


def convert_resources(requests: Mapping[str, Any] | None, limits: Mapping[str, Any] | None) -> Resources:
    """Convert a ``V1ResourceRequirements``: its limits, else its requests."""
    granted = {**(requests or {}), **(limits or {})}
    names = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpu"}
    if unknown := [name for name in granted if name not in names]:
        raise UnsupportedError(f"The resource {unknown[0]!r} cannot be requested. Known: {', '.join(names)}.")
    resources = {names[name]: int(value) if name == "nvidia.com/gpu" else value for name, value in granted.items()}
    return Resources(**resources)


def convert_parameters(service: str, parameters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Convert the parameters of a component, which Seldon represents as typed strings.

    Raises:
        UnsupportedError: a type is unknown to Seldon, or a value does not match its type.
    """
    values = {}
    for parameter in parameters:
        kind, value = str(parameter.get("type", "STRING")), parameter["value"]
        try:
            values[parameter["name"]] = _PARAMETERS[kind](str(value))
        except (KeyError, ValueError):
            raise UnsupportedError(
                f"Service {service!r}: the parameter {parameter['name']!r} is {value!r} of type {kind!r}. Known types: "
                f"{', '.join(_PARAMETERS)}. Or write parameters={{{parameter['name']!r}: ...}}."
            ) from None
    return values


def _convert_metric(trigger: ScalerTrigger) -> ScalingMetric:
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
        f"metricName={trigger.metric_name!r}: Scanflow scales by rps, p95, cpu and queue. Write "
        "sf.Scaling(metric='rps', target=20)."
    )
