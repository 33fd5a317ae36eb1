"""What tests on a real cluster share. They need KUBECONFIG; each makes a namespace of its own and removes it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from tests.cluster import images
from tests.cluster.online import KIND, Place


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster that KUBECONFIG names."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster")
    cluster = Cluster(KubernetesSettings.from_environment())
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def base_image() -> str:
    """The image of instances with this checkout's code: the one that is named, else one made in the registry."""
    if named := os.environ.get("SCANFLOW_KUBERNETES_IMAGE"):
        return named
    registry = os.environ.get("SCANFLOW_KUBERNETES_REGISTRY")
    if not registry:
        pytest.skip("SCANFLOW_KUBERNETES_REGISTRY names no registry")
    return images.refresh(images.CHECKOUT, registry)


@pytest.fixture
def place(
    tmp_path: Path, cluster: Cluster, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Place]]:
    """Makes an application's place, by an engine, and removes it."""
    places: list[Place] = []

    def make(engine: str = "deployment", *, tracker: bool = False, **variables: str) -> Place:
        if not cluster.has_kind(KIND[engine]):
            pytest.skip(f"the cluster has no {KIND[engine]}")
        monkeypatch.setenv("SCANFLOW_KUBERNETES_SERVING", engine)
        monkeypatch.setenv("SCANFLOW_KUBERNETES_IMAGE", base_image)
        monkeypatch.setenv("SCANFLOW_KUBERNETES_TIMEOUT_S", "90")
        # A server leaves alone what was deployed with other settings than its own: those of tests that run beside this
        # one would put right, and tell to nobody here, what this one breaks.
        monkeypatch.setenv("SCANFLOW_KUBERNETES_GATEWAY_DOMAIN", f"{uuid.uuid4().hex[:8]}.test")
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        places.append(Place(tmp_path, cluster, tracker=tracker))
        return places[-1]

    yield make
    for place in places:
        place.close()


@pytest.fixture
def loop_images(monkeypatch: pytest.MonkeyPatch) -> str:
    """The image of the closed loop's steps and instances, which has what they train with; agents get theirs."""
    registry = os.environ.get("SCANFLOW_KUBERNETES_REGISTRY")
    if not registry:
        pytest.skip("SCANFLOW_KUBERNETES_REGISTRY names no registry")
    image, agent = (images.refresh(images.CHECKOUT, registry, f"scanflow/{part}") for part in ("server", "agent"))
    variables = {"IMAGE": image, "AGENT_IMAGE": agent, "STORAGE_MODE": "ReadWriteOnce", "STORAGE_SIZE": "1Gi"}
    variables["IMAGE_COMPLETE"] = "1"
    for name, value in variables.items():
        monkeypatch.setenv(f"SCANFLOW_KUBERNETES_{name}", value)
    return image
