"""Build the autoscaler of a service: a HorizontalPodAutoscaler, or KEDA's ScaledObject, which creates one. Pure.

``cpu`` needs only a HorizontalPodAutoscaler. ``rps``, ``p95`` and ``queue`` are Prometheus queries, which need KEDA, as
does ``min=0``; so are ``gpu`` and ``gpu_memory``, of what NVIDIA's DCGM exporter says of the pods' GPUs. The formula is
the autoscaler's own, ``ceil(instances x value / target)``. Limits other than its tolerance are part of the query:
between them it returns a value that changes nothing.
"""

from __future__ import annotations

import math
from typing import Final, Literal, cast

from scanflow.app.scaling import Scaling
from scanflow.backends.gpu_scaling import check_gpu_scaling
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.kubernetes.online.engines import ScalingTarget
from scanflow.backends.service_records import Shape
from scanflow.backends.shapes import build_gpu_resources
from scanflow.errors import UnsupportedError, UsageError

TOLERANCE: Final = 0.1
"""The default tolerance of HorizontalPodAutoscalers."""

_MS: Final = 1000  # targets have three decimals, so latencies are in milliseconds
_NEVER: Final = "1000000000"  # a target beyond any number of requests: it wakes an instance, and never adds one
_BUSY: Final = "DCGM_FI_DEV_GPU_UTIL"  # in percent
_HELD, _FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"  # in MiB
_POD_LABELS: Final = (("exported_namespace", "exported_pod"), ("namespace", "pod"))
"""What the exporter's labels are called by a Prometheus that puts the exporter's own namespace and pod in their place,
and by one that honours them."""

_MAX_WINDOW_S: Final = 3600
_HPA_POLLING_S: Final = 15.0
_WAKING: Final = (
    "Set SCANFLOW_KUBERNETES_GATEWAY_REQUESTS to the Prometheus query of the Gateway's requests, or write min=1."
)


def build_autoscaler(
    scaling: Scaling,
    target: ScalingTarget,
    *,
    app: str,
    team: str,
    namespace: str,
    service: str,
    shape: Shape,
    settings: KubernetesSettings,
) -> Manifest:
    """Return the autoscaler of one revision of a service, which has the name of the revision.

    Args:
        scaling: The scaling policy.
        target: The scale target.
        app: The application of the service.
        team: The team of the application.
        namespace: The namespace of the service.
        service: The service's name.
        shape: What an instance requests.
        settings: The cluster's.

    Raises:
        UnsupportedError: a field cannot be honoured; it is named.
        InvalidError: it goes by GPUs, and there are none.
    """
    check_scaling(scaling, service=service, shape=shape, settings=settings)
    metadata = {"name": target.scaler, "namespace": namespace, "labels": build_labels(app, team, service=service)}
    if select_autoscaler_kind(scaling) == "HorizontalPodAutoscaler":
        return _build_hpa(scaling, target, metadata)
    if scaling.metric == "cpu":
        triggers = [_build_cpu_trigger(scaling)]
    elif scaling.reads_gpus:
        triggers = [_build_gpu_trigger(scaling, namespace, target.name, settings)]
    else:
        pods = f'namespace="{namespace}",service="{service}",pod=~"{target.name}-.+"'
        triggers = [_build_trigger(scaling, pods, settings)]
    if scaling.min == 0 and settings.gateway_requests is not None:
        query = settings.gateway_requests.replace("{namespace}", namespace).replace("{service}", service)
        triggers.append(_build_prometheus_trigger(f"({query}) or vector(0)", _NEVER, "AverageValue", settings))
    return build_manifest(
        "ScaledObject",
        metadata,
        spec={
            "scaleTargetRef": target.ref,
            "minReplicaCount": scaling.min,
            "maxReplicaCount": scaling.max,
            "pollingInterval": math.ceil(cast("float", scaling.polling)),
            "cooldownPeriod": math.ceil(cast("float", scaling.cool_down)),
            "initialCooldownPeriod": math.ceil(cast("float", scaling.cool_down)),
            "advanced": {
                "horizontalPodAutoscalerConfig": {"name": target.scaler, "behavior": _build_behavior(scaling)}
            },
            "triggers": triggers,
        },
    )


def select_autoscaler_kind(scaling: Scaling) -> Literal["HorizontalPodAutoscaler", "ScaledObject"]:
    """Return the kind of a service's autoscaler."""
    return "HorizontalPodAutoscaler" if scaling.metric == "cpu" and scaling.min > 0 else "ScaledObject"


def check_scaling(scaling: Scaling, *, service: str, shape: Shape, settings: KubernetesSettings) -> None:
    """Check that the cluster's autoscalers support a scaling policy.

    Raises:
        UnsupportedError: the field is named.
        InvalidError: it goes by GPUs, and there are none.
    """
    try:
        check_gpu_scaling(scaling, shape)
    except UsageError as error:
        raise type(error)(f"Service {service!r}: {error}") from error
    target, up, down = scaling.target, scaling.up_threshold, scaling.down_threshold
    asks_prometheus = scaling.metric != "cpu" or scaling.min == 0
    window_s = cast("float", scaling.stabilization_window_s)
    polling_s = cast("float", scaling.polling)
    limits = f"for cpu an autoscaler has the cluster's tolerance, {TOLERANCE:g}. Leave it out."
    highest, lowest = target * (1 + TOLERANCE), target * (1 - TOLERANCE)
    problems: list[tuple[str, bool, str]] = [
        (
            f"metric={scaling.metric!r}",
            asks_prometheus and settings.prometheus is None,
            "KEDA reads it from Prometheus: set SCANFLOW_KUBERNETES_PROMETHEUS to its address.",
        ),
        (
            "metric='cpu'",
            scaling.metric == "cpu" and shape.cores is None,
            "it is a share of the cores that instances request. Give the service resources=sf.Resources(cpu=...).",
        ),
        (
            f"metric={scaling.metric!r}",
            scaling.reads_gpus and settings.gpu_vendor != "nvidia",
            "NVIDIA's DCGM exporter tells it of NVIDIA's GPUs alone. Scale by rps, p95 or queue.",
        ),
        (
            f"metric={scaling.metric!r}",
            scaling.reads_gpus and isinstance(build_gpu_resources(shape).gpu, float),
            f"nobody tells what a pod holds of gpu={shape.gpu}, a share. Write gpu=1, or scale by rps, p95 or queue.",
        ),
        (
            "min=0",
            scaling.min == 0 and settings.gateway_requests is None,
            f"no instance would count the request that wakes one. {_WAKING}",
        ),
        (
            f"stabilization_window_s={window_s:g}",
            window_s > _MAX_WINDOW_S,
            f"an autoscaler's window is at most {_MAX_WINDOW_S} s.",
        ),
        (
            f"polling={polling_s:g}",
            not asks_prometheus and polling_s != _HPA_POLLING_S,
            f"without KEDA the cluster decides how often to poll, every {_HPA_POLLING_S:g} s by default. Leave it out.",
        ),
        (
            f"target={target:g}",
            target * (_MS if scaling.metric == "p95" else 1) < 0.001,
            "an autoscaler's targets have three decimals.",
        ),
        (_format_limit(scaling, "up"), scaling.metric == "cpu" and not _is_close(up, highest), limits),
        (_format_limit(scaling, "down"), scaling.metric == "cpu" and not _is_close(down, lowest), limits),
        (
            _format_limit(scaling, "up"),
            up < highest and not _is_close(up, highest),
            f"an autoscaler changes nothing up to {highest:g}, {TOLERANCE:.0%} above the target.",
        ),
        (
            _format_limit(scaling, "down"),
            down > lowest and not _is_close(down, lowest),
            f"an autoscaler changes nothing down to {lowest:g}, {TOLERANCE:.0%} below the target.",
        ),
    ]
    for field, is_unsupported, problem in problems:
        if is_unsupported:
            raise UnsupportedError(
                f"Service {service!r}: the backend 'kubernetes' does not support Scaling.{field}: {problem}"
            )


def _format_limit(scaling: Scaling, limit: str) -> str:
    """Format the field that sets a limit."""
    value = getattr(scaling, limit)
    return f"tolerance={scaling.tolerance:g}" if value is None else f"{limit}={value:g}"


def _is_close(first: float, second: float) -> bool:
    """Return whether two numbers are equal within rounding."""
    return math.isclose(first, second, rel_tol=1e-9)


def _is_default(scaling: Scaling) -> bool:
    """Return whether the limits equal the autoscaler's tolerance."""
    target = scaling.target
    return _is_close(scaling.up_threshold, target * (1 + TOLERANCE)) and _is_close(
        scaling.down_threshold, target * (1 - TOLERANCE)
    )


def _build_hpa(scaling: Scaling, target: ScalingTarget, metadata: Manifest) -> Manifest:
    target_value = {"type": "Utilization", "averageUtilization": round(scaling.target * 100)}
    return build_manifest(
        "HorizontalPodAutoscaler",
        metadata,
        spec={
            "scaleTargetRef": target.ref,
            "minReplicas": scaling.min,
            "maxReplicas": scaling.max,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target_value}}],
            "behavior": _build_behavior(scaling),
        },
    )


def _build_behavior(scaling: Scaling) -> Manifest:
    """Return the scaling behavior: scale up at once, scale down after the stabilization window."""
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": scaling.max, "periodSeconds": 15}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": math.ceil(cast("float", scaling.stabilization_window_s)),
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
        },
    }


def _build_cpu_trigger(scaling: Scaling) -> Manifest:
    return {"type": "cpu", "metricType": "Utilization", "metadata": {"value": str(round(scaling.target * 100))}}


def _build_trigger(scaling: Scaling, pods: str, settings: KubernetesSettings) -> Manifest:
    """Return the Prometheus trigger of a metric."""
    polling_s, scrape_s = cast("float", scaling.polling), settings.scrape_interval_s
    # Over the last ``polling`` seconds; if that has a single scrape, between the last two scrapes.
    rate = "rate" if polling_s >= 2 * scrape_s else "irate"
    window_s = math.ceil(max(polling_s, 3 * scrape_s))
    if scaling.metric == "p95":
        buckets = f"sum by (le) ({rate}(scanflow_request_seconds_bucket{{{pods}}}[{window_s}s]))"
        # without requests it is NaN, which the comparison drops
        value = f"({_MS} * histogram_quantile(0.95, {buckets}) >= 0) or vector(0)"
        return _build_prometheus_trigger(
            _apply_dead_band(scaling, value, "", _MS), f"{scaling.target * _MS:g}", "Value", settings
        )
    if scaling.metric == "rps":
        value = f"sum({rate}(scanflow_requests_total{{{pods}}}[{window_s}s])) or vector(0)"
    else:
        value = f"sum(scanflow_waiting{{{pods}}}) or vector(0)"
    ready = f"count(scanflow_in_flight{{{pods}}})"
    return _build_prometheus_trigger(
        _apply_dead_band(scaling, value, ready, 1), f"{scaling.target:g}", "AverageValue", settings
    )


def _build_gpu_trigger(scaling: Scaling, namespace: str, deployment: str, settings: KubernetesSettings) -> Manifest:
    """Return the Prometheus trigger of what the GPUs of a Deployment's pods do, each of which has as many.

    What the exporter does not tell is an error, not zero: an autoscaler that has no value changes nothing.
    """

    pod = f"{deployment}-[a-z0-9]+(-[a-z0-9]+)?"  # the names of its ReplicaSets' pods: long ones lose a hyphen
    selectors = [f'{{{space}="{namespace}",{name}=~"{pod}"}}' for space, name in _POD_LABELS]
    if scaling.metric == "gpu":
        window_s = math.ceil(max(cast("float", scaling.polling), 3 * settings.scrape_interval_s))
        shares = [f"avg_over_time({_BUSY}{pods}[{window_s}s]) / 100" for pods in selectors]
        activation = "0"
    else:  # who computes nothing keeps what it holds: it keeps no instance either
        shares = [f"{_HELD}{pods} / ({_HELD}{pods} + {_FREE}{pods})" for pods in selectors]
        activation = "1"
    value = f"avg({' or '.join(shares)})"
    trigger = _build_prometheus_trigger(
        _apply_dead_band(scaling, value, "", 1, rest=f"0 * ({value}) + {scaling.target:g}"),
        f"{scaling.target:g}",
        "Value",
        settings,
    )
    trigger["metadata"] |= {"activationThreshold": activation, "ignoreNullValues": "false"}
    return trigger


def _apply_dead_band(scaling: Scaling, value: str, instances: str, unit: int, rest: str | None = None) -> str:
    """Return the query of a value; between the limits, it returns the target instead, which changes nothing.

    Args:
        scaling: The scaling policy.
        value: The query of the value over all instances.
        instances: The query of their number; empty: the limits apply to all together.
        unit: The factor from the limits' unit to the query's.
        rest: The query of what is returned between the limits, where there may be no value; None: there always is one.
    """
    if _is_default(scaling):
        return value
    per_instance = f" * {instances}" if instances else ""
    target, up, down = (f"{limit * unit:g}" for limit in (scaling.target, scaling.up_threshold, scaling.down_threshold))
    if rest is None:
        rest = f"({target}{per_instance}) or vector(0)" if instances else f"vector({target})"
    return f"(({value}) > {up}{per_instance}) or (({value}) < {down}{per_instance}) or {rest}"


def _build_prometheus_trigger(query: str, threshold: str, kind: str, settings: KubernetesSettings) -> Manifest:
    return {
        "type": "prometheus",
        "metricType": kind,
        "metadata": {
            "serverAddress": cast("str", settings.prometheus),
            "query": query,
            "threshold": threshold,
            "activationThreshold": "0",
        },
    }
