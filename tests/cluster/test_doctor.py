"""What the doctor says of a real cluster."""

from __future__ import annotations

import os
import uuid

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.cluster_checks import examine
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.nodes import read_kubelet_policies
from scanflow.backends.kubernetes.storage_findings import check_outputs_storage
from tests.cluster.batch import make_store

pytestmark = pytest.mark.cluster
SETTINGS = KubernetesSettings(storage_mode="ReadWriteOnce")


def test_a_cluster_is_looked_at_without_an_error(cluster: Cluster) -> None:
    said = {one.what: one for one in examine(cluster, SETTINGS)}
    assert said["API server"].mark == "✓"
    assert said["rights"].mark == "✓"
    assert said["nodes"].mark == "✓"
    assert not [one for one in said.values() if "could not be checked" in one.found]


def test_an_image_that_no_registry_has_is_named_with_what_to_do(cluster: Cluster) -> None:
    settings = SETTINGS.model_copy(update={"image": "scanflow/no-such-image:none"})
    (found,) = [one for one in examine(cluster, settings, thorough=True) if one.what == "image"]
    assert found.mark == "✗"
    assert "scanflow/no-such-image:none" in found.found
    assert "SCANFLOW_KUBERNETES_IMAGE" in found.advice


def test_kubelets_say_their_policies(cluster: Cluster) -> None:
    policies = read_kubelet_policies(cluster)
    assert {one.cpu_manager for one in policies} <= {"static", "none", None}
    assert any(one.schedulable and one.cores >= 1 and one.memory_bytes > 2**28 for one in policies)


def test_a_pod_tries_the_object_store_of_outputs(cluster: Cluster) -> None:
    namespace = f"store-{uuid.uuid4().hex[:8]}"
    settings = KubernetesSettings.from_environment(
        {**os.environ, **make_store(cluster, namespace), "SCANFLOW_KUBERNETES_NAMESPACE": namespace}
    )
    try:
        (found,) = check_outputs_storage(cluster, settings, thorough=True)
    finally:
        cluster.delete("Namespace", namespace)
    assert (found.mark, found.found.endswith(f"a pod in {namespace} wrote, read and deleted there")) == ("✓", True), (
        found
    )
