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
    findings = {finding.what: finding for finding in examine(cluster, SETTINGS)}
    assert findings["API server"].mark == "✓"
    assert findings["rights"].mark == "✓"
    assert findings["nodes"].mark == "✓"
    assert not [finding for finding in findings.values() if "could not be checked" in finding.found]


def test_an_image_that_no_registry_has_is_named_with_what_to_do(cluster: Cluster) -> None:
    settings = SETTINGS.model_copy(update={"image": "scanflow/no-such-image:none"})
    (finding,) = [entry for entry in examine(cluster, settings, thorough=True) if entry.what == "image"]
    assert finding.mark == "✗"
    assert "scanflow/no-such-image:none" in finding.found
    assert "SCANFLOW_KUBERNETES_IMAGE" in finding.advice


def test_kubelets_say_their_policies(cluster: Cluster) -> None:
    policies = read_kubelet_policies(cluster)
    assert {policy.cpu_manager for policy in policies} <= {"static", "none", None}
    assert any(policy.schedulable and policy.cores >= 1 and policy.memory_bytes > 2**28 for policy in policies)


def test_a_pod_checks_the_object_store_of_outputs(cluster: Cluster) -> None:
    namespace = f"store-{uuid.uuid4().hex[:8]}"
    settings = KubernetesSettings.from_environment(
        {**os.environ, **make_store(cluster, namespace), "SCANFLOW_KUBERNETES_NAMESPACE": namespace}
    )
    try:
        (finding,) = check_outputs_storage(cluster, settings, thorough=True)
    finally:
        cluster.delete("Namespace", namespace)
    assert (finding.mark, finding.found.endswith(f"a pod in {namespace} wrote, read and deleted there")) == (
        "✓",
        True,
    ), finding
