"""How much a cluster is asked where there are many services: counted, and small enough to be made in a test."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from scanflow.backends.backend_port import Models
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.list_cache import OFTEN
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import UnsupportedError
from scanflow.settings import Settings
from tests.benchmarks.cluster_many import OWN, Sizes, objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SIZES = Sizes(services=12, pods=48, nodes=6)


class Counted(Cluster):
    """A cluster that counts what it is asked."""

    def __init__(self, settings: KubernetesSettings) -> None:
        super().__init__(settings)
        self.asked: list[str] = []
        self._counting = threading.Lock()

    def fetch_json(self, method: str, path: str, **request: Any) -> Manifest:
        self._count(f"{method} {path}")
        return super().fetch_json(method, path, **request)

    def fetch_text(self, path: str, *, timeout_s: float | None = None) -> str:
        self._count(f"GET {path}")
        return super().fetch_text(path, timeout_s=timeout_s)

    def _count(self, request: str) -> None:
        with self._counting:
            self.asked.append(request)

    def take_requests(self) -> list[str]:
        with self._counting:
            requests, self.asked = self.asked, []
        return requests


def test_many_services_cost_as_few_requests_as_one_and_none_once_watches_tell_of_them(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        cluster.has_any("ScaledObject", labels="")
    except UnsupportedError:
        pytest.skip("A cluster without KEDA is asked for its objects each time")
    for name, text in OWN.items():
        monkeypatch.setenv(name, text)
    with objects(cluster, SIZES) as app:
        counted = Counted(KubernetesSettings.from_environment())
        backend = Kubernetes(Settings(home=tmp_path), lambda _: cast("Models", None))
        backend.__dict__["cluster"] = counted
        deployer = EmbeddedDeployer(Settings(home=tmp_path), backend=backend)
        try:
            services = [service for service in deployer.services() if service.app == app.name]
            assert (len(services), sum(len(service.instances) for service in services)) == (SIZES.services, SIZES.pods)
            assert len(counted.take_requests()) == 3, (
                "a list of the services, one of their pods, one of where they are called"
            )

            messages: list[str] = []

            def look() -> None:
                for service in deployer.services():
                    if service.app == app.name:
                        deployer.reconcile(service, observe=lambda progress: messages.append(progress.text))
                objects_seen = backend.__dict__["_objects"]
                objects_seen.at = None  # as after ten seconds

            for _ in range(OFTEN + 1):
                look()
            assert len(counted.take_requests()) < 10 * OFTEN, "a list of each kind, each time"
            look()
            assert (messages, counted.take_requests()) == ([], [])
        finally:
            counted.close()
