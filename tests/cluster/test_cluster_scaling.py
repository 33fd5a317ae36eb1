"""Services scaled by a real cluster: by cpu with metrics-server, by requests and latency with KEDA and Prometheus, from
zero, and through the Deployment that KServe makes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import time
from typing import Any, Literal
from urllib.parse import urlencode

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.online.autoscaler_objects import build_autoscaler
from scanflow.backends.kubernetes.online.engines import ScalingTarget
from scanflow.backends.kubernetes.online.scaling_status import explain
from scanflow.backends.kubernetes.online.traffic import Routing, build_http_route, format_path_prefix
from scanflow.backends.service_records import Shape
from scanflow.deployer.direct_predictions import get_explanation
from scanflow.errors import ScanflowError
from tests.cluster.echoes import TEAM, Echoes, call, echoes, gateway_address, seconds_until
from tests.cluster.online import Place
from tests.cluster.repeated import repeat_step
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

DOORBELL = 'sum(rate(scanflow_requests_total{namespace="{namespace}",pod=~"doorbell-.+"}[15s]))'
"""Stands for the requests that a Gateway counts: that of the lab counts none for a service without pods."""

SLOW = """
import time

class Multiply:
    def __init__(self, by=2):
        self.by = by

    def predict(self, X):
        time.sleep(0.2)
        return X * self.by
"""


@pytest.fixture(scope="module")
def gateway(cluster: Cluster) -> Iterator[Echoes]:
    with echoes(cluster, "scaling") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def settings(cluster: Cluster) -> KubernetesSettings:
    """Where Prometheus is, and that it looks each 5 s."""
    address = os.environ.get("SCANFLOW_KUBERNETES_PROMETHEUS", "http://prometheus.monitoring:9090")
    name, _, namespace = address.split("/")[2].split(":")[0].partition(".")
    try:
        cluster.find("ScaledObject", "default")
        service = cluster.get("Service", name, namespace.split(".")[0])
    except ScanflowError as error:
        pytest.skip(str(error))
    if service is None:
        pytest.skip(f"there is no Prometheus at {address}")
    return KubernetesSettings(prometheus=address, scrape_interval_s=5, gateway_requests=DOORBELL)


def scale_deployment(here: Echoes, name: str, scaling: sf.Scaling, settings: KubernetesSettings) -> Manifest:
    """Have a Deployment of the namespace scaled, and return the object that does it."""
    autoscaler = build_autoscaler(
        scaling,
        ScalingTarget("Deployment", name, name),
        app=here.app,
        team=TEAM,
        namespace=here.namespace,
        service=name,
        shape=Shape(cores=0.05),
        settings=settings,
    )
    here.cluster.apply(autoscaler, dry_run=True)
    here.cluster.apply(autoscaler)
    return autoscaler


def route_to(here: Echoes, name: str) -> Routing:
    return Routing(
        app=here.app, team=TEAM, namespace=here.namespace, name=name, gateway=here.gateway, shares={name: 1.0}
    )


def replicas(here: Echoes, name: str) -> int:
    deployment = here.cluster.get("Deployment", name, here.namespace)
    assert deployment is not None
    count: int = deployment["spec"]["replicas"]
    return count


def explain_decision(here: Echoes, name: str, scaling: sf.Scaling) -> str:
    """Return the last decision in words."""
    hpa = here.cluster.get("HorizontalPodAutoscaler", name, here.namespace)
    keda = None if scaling.metric == "cpu" else here.cluster.get("ScaledObject", name, here.namespace)
    explanation = explain(name, scaling, hpa=hpa, scaled_object=keda, at=time())
    return f"{explanation.formula}; {explanation.decision}"


def is_scraped(here: Echoes, settings: KubernetesSettings, name: str) -> bool:
    """Say whether Prometheus knows the pods of a Deployment for long enough to tell a rate."""
    address = str(settings.prometheus).split("/")[2]
    (service, _, namespace), port = address.partition(":")[0].partition("."), address.partition(":")[2] or "80"
    query = f'min(count_over_time(scanflow_in_flight{{namespace="{here.namespace}",pod=~"{name}-.+"}}[1m]))'
    path = f"/api/v1/namespaces/{namespace.split('.')[0]}/services/{service}:{port}/proxy/api/v1/query"
    document = json.loads(here.cluster.fetch_text(f"{path}?{urlencode({'query': query})}"))["data"]["result"]
    return bool(document) and float(document[0]["value"][1]) >= 2


@contextmanager
def load(url: str, every_s: float = 0.05) -> Iterator[None]:
    """Ask again and again until the end of the block."""

    def ask() -> None:
        with suppress(OSError):
            call(url)

    with repeat_step(ask, every_s):
        yield


def test_cpu_adds_instances(gateway: Echoes) -> None:
    if not _has_metrics(gateway.cluster):
        pytest.skip("the cluster has no metrics.k8s.io: install metrics-server")
    resources: dict[str, Any] = {"requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"cpu": "150m"}}
    container = {"name": "burn", "image": "python:3.11-slim", "command": ["python", "-c", "while True: pass"]}
    own = {"scanflow.dev/service": "burn"}
    template = {
        "metadata": {"labels": own},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{**container, "resources": resources}]},
    }
    gateway.apply("Deployment", "burn", "apps/v1", selector={"matchLabels": own}, template=template)
    scaling = sf.Scaling(metric="cpu", target=0.5, max=2)
    scale_deployment(gateway, "burn", scaling, KubernetesSettings())
    took = seconds_until(lambda: replicas(gateway, "burn") == 2, "there are two", patience_s=80)
    print(f"\n1 -> 2 on cpu after {took:.0f} s: {explain_decision(gateway, 'burn', scaling)}")
    gateway.cluster.delete("Deployment", "burn", gateway.namespace)


def test_requests_add_instances_and_take_them_away(gateway: Echoes, settings: KubernetesSettings) -> None:
    gateway.server("busy", service="busy")
    gateway.ready("busy")
    routing = route_to(gateway, "busy")
    gateway.route(build_http_route(routing))
    url = f"http://{gateway_address(gateway.cluster)}{format_path_prefix(gateway.namespace, 'busy')}/predict"
    scaling = sf.Scaling(metric="rps", target=5, max=3, tolerance=0.2, polling=5, stabilization_window_s=10)
    scale_deployment(gateway, "busy", scaling, settings)
    seconds_until(lambda: is_scraped(gateway, settings, "busy"), "Prometheus has looked", patience_s=40)
    seconds_until(
        lambda: explain_decision(gateway, "busy", scaling).startswith("ceil(1 x 0"), "it was looked at", patience_s=40
    )
    with load(url):
        up = seconds_until(lambda: replicas(gateway, "busy") > 1, "there are more", patience_s=60)
        explanation = explain_decision(gateway, "busy", scaling)
        three = seconds_until(lambda: replicas(gateway, "busy") == 3, "there are three", patience_s=60)
    print(f"\nmore after {up:.1f} s ({explanation}), 3 after {up + three:.1f} s")
    down = seconds_until(lambda: replicas(gateway, "busy") == 1, "there is one", patience_s=90)
    print(f"1 after {down:.1f} s: {explain_decision(gateway, 'busy', scaling)}")


def test_a_service_sleeps_and_requests_at_the_gateway_wake_it(gateway: Echoes, settings: KubernetesSettings) -> None:
    for name in ("rare", "doorbell"):
        gateway.server(name, service=name)
    gateway.ready("rare", "doorbell")
    routing = route_to(gateway, "doorbell")
    gateway.route(build_http_route(routing))
    url = f"http://{gateway_address(gateway.cluster)}{format_path_prefix(gateway.namespace, 'doorbell')}/predict"
    scaling = sf.Scaling(metric="queue", target=5, min=0, max=2, polling=5, cool_down=5)
    scale_deployment(gateway, "rare", scaling, settings)
    slept = seconds_until(lambda: replicas(gateway, "rare") == 0, "it sleeps", patience_s=60)
    with load(url, 0.5):
        woken = seconds_until(lambda: replicas(gateway, "rare") == 1, "it wakes", patience_s=60)
    print(f"\nasleep after {slept:.1f} s, woken after {woken:.1f} s: {explain_decision(gateway, 'rare', scaling)}")


@pytest.mark.parametrize(("engine", "metric", "target"), [("deployment", "p95", 0.1), ("kserve", "rps", 1.0)])
def test_a_deployed_service_grows_under_load_and_shrinks_after_it(
    place: Callable[..., Place], settings: KubernetesSettings, engine: str, metric: Literal["p95", "rps"], target: float
) -> None:
    named = {"PROMETHEUS": str(settings.prometheus), "SCRAPE_INTERVAL_S": "5"}
    served = place(engine, **{f"SCANFLOW_KUBERNETES_{name}": text for name, text in named.items()})
    (served.folder / "multiply.py").write_text(SLOW, encoding="utf-8")
    scaling = sf.Scaling(metric=metric, target=target, max=2, tolerance=0.2, polling=5, stabilization_window_s=10)
    resources = sf.Resources(cpu="150m", memory="256Mi")
    served.deploy(resources=resources, scaling=scaling)

    def explain_now() -> str:
        explanation = get_explanation(served.deployer.service(served.name))
        return f"{explanation.formula}; {explanation.decision}"

    wait_until(lambda: explain_now().startswith("ceil(1 x 0"), f"its autoscaler looked: {explain_now()}")
    with served.load() as failed:
        up = seconds_until(lambda: len(served.pods()) == 2, "there are two", patience_s=90)
        decision = explain_now()
        wait_until(
            lambda: [instance.state for instance in served.deployer.service(served.name).instances] == ["ready"] * 2,
            "ready",
        )
    down = seconds_until(lambda: len(served.pods()) == 1, "there is one", patience_s=120)
    print(f"\n{engine}, {metric}: 1 -> 2 after {up:.1f} s ({decision}), 2 -> 1 after {down:.1f} s: {explain_now()}")
    assert (failed, served.asked > 0, served.answer()) == ([], True, [2])


def _has_metrics(cluster: Cluster) -> bool:
    try:
        cluster.fetch_text("/apis/metrics.k8s.io/v1beta1/nodes")
    except ScanflowError:
        return False
    return True
