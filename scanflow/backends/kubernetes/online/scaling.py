"""What scales a service: a HorizontalPodAutoscaler, or KEDA's ScaledObject, which makes one. Pure.

``cpu`` is a plain HorizontalPodAutoscaler's. ``rps``, ``p95`` and ``queue`` are asked of Prometheus, for which KEDA is
needed, and so it is for ``min=0``. The formula is the autoscaler's own, ``ceil(instances x value / target)``. Limits
other than its tolerance are made by the query: between them it returns what changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final, Literal, NamedTuple, cast

from scanflow.app.scaling import Scaling
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import labels_of, namespace_of
from scanflow.backends.kubernetes.settings import KubernetesSettings, ServingEngine
from scanflow.errors import UnsupportedError
from scanflow.names import MAX_NAME

TOLERANCE: Final = 0.1
"""Of each autoscaler, unless the cluster was started with another."""

SELDON_PREDICTOR: Final = "default"
SELDON_CONTAINER: Final = "instance"
"""What a SeldonDeployment calls them, of which its Deployment is named."""

_MS: Final = 1000  # targets have three decimals, so latencies are in milliseconds
_NEVER: Final = "1000000000"  # a target that no number of requests reaches: it wakes, and adds nothing
_MOST_WINDOW_S: Final = 3600
_HPA_POLLING_S: Final = 15.0
_WAKING: Final = (
    "Set SCANFLOW_KUBERNETES_GATEWAY_REQUESTS to what Prometheus is asked for the Gateway's requests, or write min=1."
)


class ScalingTarget(NamedTuple):
    """What has the number of instances, as its ``scale``."""

    kind: str
    name: str
    scaler: str
    """The name of the autoscaler, the revision's own: Seldon removes one that has the name of its Deployment."""

    @property
    def ref(self) -> Manifest:
        return {"apiVersion": KINDS[self.kind].api_version, "kind": self.kind, "name": self.name}


def target_of(engine: ServingEngine, name: str) -> ScalingTarget:
    """Return what is scaled of a revision that an engine serves under that name: the Deployment that its controller
    makes.

    Seldon's own ``scale`` has no selector, which autoscalers want. Seldon leaves the number of pods alone where
    ``spec.replicas`` says none, KServe where the annotation ``autoscalerClass`` is ``external``; else each puts back
    its own.
    """
    if engine == "kserve":
        return ScalingTarget("Deployment", f"{name}-predictor", name)
    if engine == "seldon":
        made = f"{name}-{SELDON_PREDICTOR}-0-{SELDON_CONTAINER}"
        digest = hashlib.md5(made.encode(), usedforsecurity=False).hexdigest()
        return ScalingTarget("Deployment", made if len(made) <= MAX_NAME else f"seldon-{digest}", name)
    return ScalingTarget("Deployment", name, name)


def autoscaler(
    scaling: Scaling,
    target: ScalingTarget,
    *,
    app: str,
    team: str,
    service: str,
    cores: float | None,
    settings: KubernetesSettings,
) -> Manifest:
    """Return the object that scales one revision of a service; it has the name of that revision.

    Args:
        scaling: What is wanted.
        target: What is scaled.
        app: Whose service it is.
        team: Whose service it is.
        service: The service's name.
        cores: What its instances ask for; None: nothing.
        settings: What the cluster has.

    Raises:
        UnsupportedError: a field cannot be honoured; it is named.
    """
    check_scaling(scaling, service=service, cores=cores, settings=settings)
    namespace = namespace_of(app, team)
    metadata = {"name": target.scaler, "namespace": namespace, "labels": labels_of(app, team, service=service)}
    if autoscaler_kind(scaling) == "HorizontalPodAutoscaler":
        return _hpa(scaling, target, metadata)
    pods = f'namespace="{namespace}",service="{service}",pod=~"{target.name}-.+"'
    triggers = [_cpu_trigger(scaling) if scaling.metric == "cpu" else _trigger(scaling, pods, settings)]
    if scaling.min == 0 and settings.gateway_requests is not None:
        query = settings.gateway_requests.replace("{namespace}", namespace).replace("{service}", service)
        triggers.append(_prometheus(f"({query}) or vector(0)", _NEVER, "AverageValue", settings))
    kind = "ScaledObject"
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": target.ref,
            "minReplicaCount": scaling.min,
            "maxReplicaCount": scaling.max,
            "pollingInterval": math.ceil(cast("float", scaling.polling)),
            "cooldownPeriod": math.ceil(cast("float", scaling.cool_down)),
            "initialCooldownPeriod": math.ceil(cast("float", scaling.cool_down)),
            "advanced": {"horizontalPodAutoscalerConfig": {"name": target.scaler, "behavior": _behavior(scaling)}},
            "triggers": triggers,
        },
    }


def autoscaler_kind(scaling: Scaling) -> Literal["HorizontalPodAutoscaler", "ScaledObject"]:
    """Return the kind of object that scales a service."""
    return "HorizontalPodAutoscaler" if scaling.metric == "cpu" and scaling.min > 0 else "ScaledObject"


def check_scaling(scaling: Scaling, *, service: str, cores: float | None, settings: KubernetesSettings) -> None:
    """Refuse what no autoscaler of a cluster can do.

    Raises:
        UnsupportedError: the field is named.
    """
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
            "KEDA asks a Prometheus for it, and none is named. Set SCANFLOW_KUBERNETES_PROMETHEUS to its address.",
        ),
        (
            "metric='cpu'",
            scaling.metric == "cpu" and cores is None,
            "it is a share of the cores that instances ask for. Give the service resources=sf.Resources(cpu=...).",
        ),
        (
            "min=0",
            scaling.min == 0 and settings.gateway_requests is None,
            f"no instance would count the request that wakes one. {_WAKING}",
        ),
        (
            f"stabilization_window_s={window_s:g}",
            window_s > _MOST_WINDOW_S,
            f"an autoscaler looks back {_MOST_WINDOW_S} s at most.",
        ),
        (
            f"polling={polling_s:g}",
            not asks_prometheus and polling_s != _HPA_POLLING_S,
            f"without KEDA the cluster decides how often it looks, each {_HPA_POLLING_S:g} s by default. Leave it out.",
        ),
        (
            f"target={target:g}",
            target * (_MS if scaling.metric == "p95" else 1) < 0.001,
            "an autoscaler's targets have three decimals.",
        ),
        (_named(scaling, "up"), scaling.metric == "cpu" and not _same(up, highest), limits),
        (_named(scaling, "down"), scaling.metric == "cpu" and not _same(down, lowest), limits),
        (
            _named(scaling, "up"),
            up < highest and not _same(up, highest),
            f"an autoscaler changes nothing up to {highest:g}, {TOLERANCE:.0%} above the target.",
        ),
        (
            _named(scaling, "down"),
            down > lowest and not _same(down, lowest),
            f"an autoscaler changes nothing down to {lowest:g}, {TOLERANCE:.0%} below the target.",
        ),
    ]
    for field, wrong, problem in problems:
        if wrong:
            raise UnsupportedError(
                f"Service {service!r}: the backend 'kubernetes' cannot honour Scaling.{field}: {problem}"
            )


def _named(scaling: Scaling, limit: str) -> str:
    """Return the field that sets a limit, as it was given."""
    value = getattr(scaling, limit)
    return f"tolerance={scaling.tolerance:g}" if value is None else f"{limit}={value:g}"


def _same(one: float, other: float) -> bool:
    """Whether two numbers are one, but for how they are rounded."""
    return math.isclose(one, other, rel_tol=1e-9)


def _is_default(scaling: Scaling) -> bool:
    """Whether the limits are those of every autoscaler."""
    target = scaling.target
    return _same(scaling.up_threshold, target * (1 + TOLERANCE)) and _same(
        scaling.down_threshold, target * (1 - TOLERANCE)
    )


def _hpa(scaling: Scaling, target: ScalingTarget, metadata: Manifest) -> Manifest:
    kind = "HorizontalPodAutoscaler"
    used = {"type": "Utilization", "averageUtilization": round(scaling.target * 100)}
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": target.ref,
            "minReplicas": scaling.min,
            "maxReplicas": scaling.max,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": used}}],
            "behavior": _behavior(scaling),
        },
    }


def _behavior(scaling: Scaling) -> Manifest:
    """Return how quickly: instances are added all at once, and taken away after the window."""
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


def _cpu_trigger(scaling: Scaling) -> Manifest:
    return {"type": "cpu", "metricType": "Utilization", "metadata": {"value": str(round(scaling.target * 100))}}


def _trigger(scaling: Scaling, pods: str, settings: KubernetesSettings) -> Manifest:
    """Return the trigger of a metric that Prometheus is asked for."""
    polling_s, scrape_s = cast("float", scaling.polling), settings.scrape_interval_s
    # Of the last ``polling`` seconds; where Prometheus looks but once in them, between its last two looks.
    rate = "rate" if polling_s >= 2 * scrape_s else "irate"
    window_s = math.ceil(max(polling_s, 3 * scrape_s))
    if scaling.metric == "p95":
        buckets = f"sum by (le) ({rate}(scanflow_request_seconds_bucket{{{pods}}}[{window_s}s]))"
        # without requests it is NaN, which no comparison keeps
        seen = f"({_MS} * histogram_quantile(0.95, {buckets}) >= 0) or vector(0)"
        return _prometheus(_outside(scaling, seen, "", _MS), f"{scaling.target * _MS:g}", "Value", settings)
    if scaling.metric == "rps":
        seen = f"sum({rate}(scanflow_requests_total{{{pods}}}[{window_s}s])) or vector(0)"
    else:
        seen = f"sum(scanflow_waiting{{{pods}}}) or vector(0)"
    ready = f"count(scanflow_in_flight{{{pods}}})"
    return _prometheus(_outside(scaling, seen, ready, 1), f"{scaling.target:g}", "AverageValue", settings)


def _outside(scaling: Scaling, seen: str, instances: str, unit: int) -> str:
    """Return the query of what is seen; between the limits that were given, of what changes nothing.

    Args:
        scaling: What is wanted.
        seen: What all instances are seen to do.
        instances: How many there are; empty: the limits are for all of them.
        unit: How many there are in a unit of the limits.
    """
    if _is_default(scaling):
        return seen
    each = f" * {instances}" if instances else ""
    target, up, down = (f"{one * unit:g}" for one in (scaling.target, scaling.up_threshold, scaling.down_threshold))
    rest = f"({target}{each}) or vector(0)" if instances else f"vector({target})"
    return f"(({seen}) > {up}{each}) or (({seen}) < {down}{each}) or {rest}"


def _prometheus(query: str, threshold: str, kind: str, settings: KubernetesSettings) -> Manifest:
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
