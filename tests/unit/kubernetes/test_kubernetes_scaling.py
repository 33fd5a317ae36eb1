"""What scales a service, and what it says of its last decision."""

from __future__ import annotations

import re
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings, ServingEngine
from scanflow.backends.kubernetes.online.autoscaler_objects import build_autoscaler
from scanflow.backends.kubernetes.online.engines import ScalingTarget, compute_scaling_target
from scanflow.backends.kubernetes.online.scaling_status import explain, parse_quantity
from scanflow.backends.service_records import Shape
from scanflow.errors import UnsupportedError, UsageError
from tests.manifests import assert_manifests

REQUESTS = 'sum(rate(gateway_requests_total{service=~"{namespace}-{service}-.+"}[30s]))'
SETTINGS = KubernetesSettings(prometheus="http://prometheus.monitoring:9090", gateway_requests=REQUESTS)


def make_manifest(
    scaling: sf.Scaling,
    settings: KubernetesSettings = SETTINGS,
    *,
    cores: float | None = 1.0,
    gpu: Any = 1,
    engine: ServingEngine = "deployment",
    name: str = "serving-3",
) -> Manifest:
    target = compute_scaling_target(engine, name)
    return build_autoscaler(
        scaling,
        target,
        app="shop",
        team="data",
        namespace="scanflow-shop-data",
        service="serving",
        shape=Shape(cores=cores, gpu=gpu),
        settings=settings,
    )


@pytest.mark.parametrize(
    ("name", "scaling", "engine"),
    [
        ("scaling-rps", sf.Scaling(metric="rps", target=20, max=8), "deployment"),
        ("scaling-p95", sf.Scaling(metric="p95", target=0.2, max=8, up=0.25, down=0.1), "kserve"),
        (
            "scaling-queue-to-zero",
            sf.Scaling(metric="queue", target=2, min=0, max=4, tolerance=0.2, cool_down="2m", polling=5),
            "seldon",
        ),
        ("scaling-cpu", sf.Scaling(metric="cpu", target=0.7, min=2, max=8, stabilization_window_s=60), "deployment"),
        ("scaling-cpu-to-zero", sf.Scaling(metric="cpu", target=0.7, min=0, max=8), "deployment"),
        ("scaling-gpu", sf.Scaling(metric="gpu", target=0.7, max=8), "kserve"),
        (
            "scaling-gpu-memory-to-zero",
            sf.Scaling(metric="gpu_memory", target=0.7, min=0, max=4, up=0.85, down=0.4),
            "deployment",
        ),
    ],
)
def test_a_service_is_scaled(name: str, scaling: sf.Scaling, engine: ServingEngine) -> None:
    assert_manifests(name, make_manifest(scaling, engine=engine))


NAMES = st.lists(st.text("abr09", min_size=1, max_size=6), min_size=1, max_size=4).map("-".join)
HASHES = st.text("bcdfghjklmnpqrstvwxz2456789", min_size=8, max_size=10)
SUFFIXES = st.text("bcdfghjklmnpqrstvwxz2456789", min_size=5, max_size=5)


def read_pods(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the labels of pods that the first query selects by, and their patterns."""
    query: str = manifest["spec"]["triggers"][0]["metadata"]["query"]
    return list(dict.fromkeys(re.findall(r'(\w*pod)=~"([^"]+)"', query)))


@given(st.sampled_from(("gpu", "gpu_memory")), NAMES, st.integers(1, 40), HASHES, SUFFIXES, NAMES)
def test_gpus_are_those_of_the_pods_that_the_deployment_makes(
    metric: Any, service: str, padding: int, digest: str, suffix: str, other: str
) -> None:
    """As Kubernetes makes their names: the first 58 letters of its ReplicaSet's, a hyphen among them, and five more."""
    deployment = f"{service}{'x' * padding}-r3"[-56:].lstrip("-")
    pod = f"{deployment}-{digest}-"[:58] + suffix
    manifest = make_manifest(sf.Scaling(metric=metric, target=0.5), name=deployment)
    patterns = read_pods(manifest)
    assert [label for label, _ in patterns] == ["exported_pod", "pod"]
    for _, pattern in patterns:
        assert re.fullmatch(pattern, pod)
        assert not re.fullmatch(pattern, f"{deployment}-{other}-r1-{digest}-{suffix}"), "of another service"


@pytest.mark.parametrize(
    ("scaling", "gpu", "settings", "words"),
    [
        ({"metric": "gpu"}, 0, SETTINGS, "Service 'serving': Scaling.metric='gpu' goes by"),
        ({"metric": "gpu"}, "1g.10gb", SETTINGS, "of gpu='1g.10gb', a MIG profile: "),
        ({"metric": "gpu"}, 0.5, SETTINGS, "of gpu=0.5, a share: "),
        ({"metric": "gpu_memory"}, 0.5, SETTINGS, "nobody tells what a pod holds of gpu=0.5, a share"),
        ({"metric": "gpu"}, 1, KubernetesSettings(), "Scaling.metric='gpu': KEDA reads it from Prometheus: set SCANF"),
        (
            {"metric": "gpu"},
            1,
            SETTINGS.model_copy(update={"gpu_vendor": "amd"}),
            "NVIDIA's DCGM exporter tells it of NVIDIA's GPUs alone",
        ),
        ({"metric": "gpu", "tolerance": 0.05}, 1, SETTINGS, "does not support Scaling.tolerance=0.05"),
    ],
)
def test_what_nobody_tells_of_gpus_is_refused(
    scaling: dict[str, Any], gpu: Any, settings: KubernetesSettings, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        make_manifest(sf.Scaling(target=0.7, **scaling), settings, gpu=gpu)


def test_a_service_of_parts_is_scaled_by_their_memory() -> None:
    assert make_manifest(sf.Scaling(metric="gpu_memory", target=0.7), gpu="1g.10gb")["kind"] == "ScaledObject"


def test_each_engine_has_its_number_of_instances_elsewhere() -> None:
    assert compute_scaling_target("deployment", "shop-1") == ScalingTarget("Deployment", "shop-1", "shop-1")
    assert compute_scaling_target("seldon", "shop-1") == ScalingTarget(
        "Deployment", "shop-1-default-0-instance", "shop-1"
    )
    assert (
        compute_scaling_target("seldon", "s" * 60).name
        == "seldon-" + md5(b"s" * 60 + b"-default-0-instance").hexdigest()
    )
    assert compute_scaling_target("kserve", "shop-1") == ScalingTarget("Deployment", "shop-1-predictor", "shop-1")


def test_limits_that_every_autoscaler_has_need_no_query_of_their_own() -> None:
    plain = make_manifest(sf.Scaling(metric="rps", target=20, max=8))
    manifest = make_manifest(sf.Scaling(metric="rps", target=20, max=8, up=22, down=18, tolerance=0.3))
    assert manifest == plain


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        (sf.Scaling(metric="rps", target=20, tolerance=0.05), "tolerance=0.05"),
        (sf.Scaling(metric="rps", target=20, up=21), "up=21"),
        (sf.Scaling(metric="rps", target=20, down=19), "down=19"),
        (sf.Scaling(metric="cpu", target=0.5, tolerance=0.2), "tolerance=0.2"),
        (sf.Scaling(metric="cpu", target=0.5, up=0.8), "up=0.8"),
        (sf.Scaling(metric="cpu", target=0.5, down=0.2), "down=0.2"),
        (sf.Scaling(metric="cpu", target=0.5, polling=5), "polling=5"),
        (sf.Scaling(metric="rps", target=20, stabilization_window_s=7200), "stabilization_window_s=7200"),
        (sf.Scaling(metric="rps", target=0.0001), "target=0.0001"),
    ],
)
def test_what_no_autoscaler_can_do_is_refused_by_name(scaling: sf.Scaling, field: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        make_manifest(scaling)
    assert f"Service 'serving': the backend 'kubernetes' does not support Scaling.{field}: " in str(refused.value)


@pytest.mark.parametrize(
    ("scaling", "settings", "cores", "words"),
    [
        (sf.Scaling(metric="rps", target=20), KubernetesSettings(), 1.0, "SCANFLOW_KUBERNETES_PROMETHEUS"),
        (
            sf.Scaling(metric="rps", target=20, min=0),
            KubernetesSettings(prometheus="http://prometheus:9090"),
            1.0,
            "SCANFLOW_KUBERNETES_GATEWAY_REQUESTS",
        ),
        (sf.Scaling(metric="cpu", target=0.5), SETTINGS, None, r"resources=sf.Resources\(cpu="),
    ],
)
def test_what_the_cluster_or_the_service_lacks_is_named(
    scaling: sf.Scaling, settings: KubernetesSettings, cores: float | None, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        make_manifest(scaling, settings, cores=cores)


def test_cpu_needs_nothing_but_the_cluster() -> None:
    assert (
        make_manifest(sf.Scaling(metric="cpu", target=0.5), KubernetesSettings())["kind"] == "HorizontalPodAutoscaler"
    )


# What it says

RPS = sf.Scaling(metric="rps", target=20, max=4)


def hpa(current: int, desired: int, value: str | None, **conditions: tuple[str, str]) -> Manifest:
    """An autoscaler of KEDA's as it is read, with a status and a reason for each condition."""
    external: dict[str, Any] = {"metric": {"name": "s0-prometheus"}, "current": {"averageValue": value}}
    return {
        "status": {
            "currentReplicas": current,
            "desiredReplicas": desired,
            "currentMetrics": [] if value is None else [{"type": "External", "external": external}],
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": f"it is {reason}"}
                for kind, (status, reason) in conditions.items()
            ],
        }
    }


def test_a_decision_is_reported_with_its_numbers() -> None:
    explanation = explain("serving", RPS, hpa=hpa(2, 4, "31", ScalingLimited=("True", "TooManyReplicas")), at=7.0)
    assert (explanation.sample, explanation.instances, explanation.wanted) == (31.0, 2, 4)
    assert explanation.formula == "ceil(2 x 31 / 20) = 4, at most max=4"
    assert explanation.decision == "add 2"


@pytest.mark.parametrize(
    ("status", "decision"),
    [
        (hpa(2, 2, "20"), "stay"),
        (hpa(4, 2, "9500m"), "remove 2"),
        (hpa(2, 2, "5", AbleToScale=("True", "ScaleDownStabilized")), "stay: more were needed in the last 300 s"),
        (hpa(2, 2, None, ScalingActive=("False", "FailedGetExternalMetric")), "stay: it is FailedGetExternalMetric"),
        (hpa(0, 0, None, ScalingActive=("False", "ScalingDisabled")), "scale to zero: no request for 60 s"),
        (None, "stay: there is no autoscaler yet"),
    ],
)
def test_why_it_stays_or_goes_is_said(status: Manifest | None, decision: str) -> None:
    assert explain("serving", RPS, hpa=status, at=7.0).decision == decision


def test_what_keda_finds_wrong_comes_first() -> None:
    condition = {"type": "Ready", "status": "False", "message": "no such server"}
    explanation = explain("serving", RPS, hpa=None, scaled_object={"status": {"conditions": [condition]}}, at=7.0)
    assert explanation.decision == "stay: KEDA says: no such server"


def test_cpu_is_a_share_and_latency_in_seconds() -> None:
    used = {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 84}}}
    cpu = {"status": {"currentReplicas": 1, "desiredReplicas": 2, "currentMetrics": [used]}}
    assert explain("serving", sf.Scaling(metric="cpu", target=0.7, max=2), hpa=cpu, at=0.0).sample == 0.84
    gpu = sf.Scaling(metric="gpu", target=0.7, max=2)
    busy = hpa(1, 2, None)
    busy["status"]["currentMetrics"] = [
        {"type": "External", "external": {"metric": {"name": "s0-prometheus"}, "current": {"value": "930m"}}}
    ]
    assert explain("serving", gpu, hpa=busy, at=0.0).formula == "ceil(1 x 0.93 / 0.7) = 2"
    value = hpa(1, 2, None)
    value["status"]["currentMetrics"] = [
        {"type": "External", "external": {"metric": {"name": "s0-prometheus"}, "current": {"value": "350"}}}
    ]
    assert explain("serving", sf.Scaling(metric="p95", target=0.2, max=2), hpa=value, at=0.0).sample == 0.35


@pytest.mark.parametrize(("text", "number"), [("7", 7.0), ("1500m", 1.5), ("2k", 2000.0), ("1Mi", 2.0**20)])
def test_quantities_are_numbers(text: str, number: float) -> None:
    assert parse_quantity(text) == number
