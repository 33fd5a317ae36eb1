"""Services whose pods a real cluster does not let in, or cannot start: what is said of it, and what goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Kind
from scanflow.errors import InvalidError, UnavailableError, UnsupportedError, UsageError
from tests.cluster.online import Place
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def join_messages(here: Place) -> str:
    return "\n".join(event.text for event in here.seen)


def test_a_quota_that_is_used_up_is_reported_at_once_and_what_served_is_served_on(place: Callable[..., Place]) -> None:
    here = place()
    here.deploy(2)
    metadata = {"name": "one", "namespace": here.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "1"}}}
    here.cluster.apply(quota)
    changes: list[Callable[[], object]] = [lambda: here.change(instances=3), lambda: here.deploy(3)]
    for change in changes:
        began = time.monotonic()
        with pytest.raises(UsageError, match="did not take effect") as failed:
            change()
        assert time.monotonic() - began < 30, "it is told, and not waited for"
        assert "exceeded quota: one" in str(failed.value)
        assert f"kubectl describe quota -n {here.namespace}" in str(failed.value)
    assert "exceeded quota" in join_messages(here)
    record = here.deployer.service(here.name)
    assert (record.state, record.shape.instances, here.answer()) == ("ready", 1, [2])
    assert "exceeded quota" in (record.error or "")
    here.cluster.patch("ResourceQuota", "one", here.namespace, {"spec": {"hard": {"pods": "9"}}})
    assert (here.deploy(3).state, here.answer()) == ("ready", [3])


def test_an_image_that_is_nowhere_and_a_node_that_is_nowhere_are_named(place: Callable[..., Place]) -> None:
    here = place(SCANFLOW_KUBERNETES_IMAGE="nowhere/none:1", SCANFLOW_KUBERNETES_TIMEOUT_S="10")
    with pytest.raises(UnavailableError, match=r"Unschedulable.*node_selector"):
        here.deploy(2, affinity=sf.Affinity(node_selector={"nobody": "has-this"}))
    assert "Unschedulable" in join_messages(here)
    record = here.deployer.service(here.name)
    assert (record.state, record.instances[0].state) == ("starting", "starting")
    assert "No node that could take it has the labels" in (record.error or "")

    patient = place(SCANFLOW_KUBERNETES_IMAGE="nowhere/none:1", SCANFLOW_KUBERNETES_TIMEOUT_S="120")
    with pytest.raises(UsageError, match=r"ImagePullBackOff: .*nowhere/none:1.*SCANFLOW_KUBERNETES_PULL_SECRET"):
        patient.deploy(2)


@contextmanager
def deny_pods(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Have an admission policy that lets no pod into a namespace."""
    kind = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)
    binding = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", namespaced=False)
    selected = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy: dict[str, Any] = {
        "matchConstraints": {"namespaceSelector": selected, "resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "only signed images"}],
    }
    bound = {"policyName": namespace, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selected}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "ValidatingAdmissionPolicy", kind)
        patch.setitem(KINDS, "ValidatingAdmissionPolicyBinding", binding)
        objects = {"ValidatingAdmissionPolicy": policy, "ValidatingAdmissionPolicyBinding": bound}
        try:
            for name, spec in objects.items():
                metadata = {"name": namespace}
                cluster.apply({"apiVersion": kind.api_version, "kind": name, "metadata": metadata, "spec": spec})
            yield
        finally:
            for name in objects:
                cluster.delete(name, namespace)


def test_admission_that_lets_no_pod_in_is_named(place: Callable[..., Place]) -> None:
    here = place()
    here.backend.environments().ensure(here.app())
    with deny_pods(here.cluster, here.namespace):
        wait_until(lambda: _refuses_pods(here), "the policy is in force")
        with pytest.raises(UsageError, match=r"could not be deployed.*only signed images"):
            here.deploy(2)
    record = here.deployer.service(here.name)
    assert record.state == "failed"
    assert "Change what it rejects" in (record.error or "")


def _refuses_pods(here: Place) -> bool:
    container = {"name": "none", "image": "none"}
    metadata = {"name": "none", "namespace": here.namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    try:
        here.cluster.create(pod, dry_run=True)
    except InvalidError as error:
        return "rejects pods 'none' of the namespace" in str(error)
    return False


def test_an_engine_that_the_cluster_does_not_have_is_named_before_anything_is_made(
    place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = place(SCANFLOW_KUBERNETES_SERVING="seldon")
    unknown = Kind("machinelearning.seldon.io/v9", "seldondeployments", engine="Seldon Core")
    monkeypatch.setitem(KINDS, "SeldonDeployment", unknown)
    with pytest.raises(UnsupportedError, match=r"no SeldonDeployment .*needs Seldon Core.*SERVING=deployment"):
        here.deploy(2)
    assert here.cluster.get("Namespace", here.namespace) is None
