"""The deployer's promises about services, kept on a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.deployer import Deployer, EmbeddedDeployer
from scanflow.knowledge.model_cache import ModelCache
from scanflow.settings import Settings
from scanflow.testing.services import ServicesContract

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


class TestServicesOnKubernetes(ServicesContract):
    service = f"contract-{os.getpid()}"
    team = f"t{os.getpid()}"

    @pytest.fixture
    def deployer(
        self, tmp_path: Path, cluster: Cluster, base_image: str, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Deployer]:
        monkeypatch.setenv("SCANFLOW_KUBERNETES_IMAGE", base_image)
        monkeypatch.setenv("SCANFLOW_KUBERNETES_TIMEOUT_S", "120")
        settings = Settings(home=tmp_path / "home")
        backend = Kubernetes(settings, lambda _: ModelCache(tmp_path / "models", lambda: pytest.fail("No model.")))
        yield EmbeddedDeployer(settings, backend=backend)
        cluster.delete("Namespace", derive_namespace("contract", self.team))
        backend.cluster.close()
