"""What a cluster offers, as the doctor says it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scanflow.backends.findings import Finding
from scanflow.backends.kubernetes.cluster_checks import examine
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import AccessDeniedError
from scanflow.testing.memory_cluster import MemoryCluster

ENGINES = {"Workflow", "ScaledObject", "SeldonDeployment", "InferenceService", "HTTPRoute"}


def make(cluster: MemoryCluster, kind: str, name: str, namespace: str | None = None, **fields: Any) -> Manifest:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    manifest = {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **fields}
    return cluster.create(manifest)


@pytest.fixture
def cluster() -> MemoryCluster:
    found = MemoryCluster(namespaces=("default", "argo", "infra"))
    versions = {*(KINDS[kind].api_version for kind in ENGINES), "metrics.k8s.io/v1beta1"}
    found.documents["/apis"] = json.dumps({"groups": [{"versions": [{"groupVersion": one}]} for one in versions]})
    for node in ("a", "b"):
        make(
            found,
            "Node",
            node,
            spec={},
            status={
                "allocatable": {"cpu": "4", "memory": "8Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "images": [{"names": ["docker.io/scanflow/base:latest"]}],
            },
        )
        configuration = {"cpuManagerPolicy": "static", "topologyManagerPolicy": "restricted"}
        found.documents[f"/api/v1/nodes/{node}/proxy/configz"] = json.dumps({"kubeletconfig": configuration})
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    found.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "nfs", "annotations": default},
            "provisioner": "nfs.csi.k8s.io",
        }
    )
    controller(found, "argo", "workflow-controller", "quay.io/argoproj/workflow-controller:v3.6.2", available=1)
    return found


def controller(cluster: MemoryCluster, namespace: str, name: str, image: str, *, available: int) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": image}]}}
    status = {"availableReplicas": available}
    make(cluster, "Deployment", name, namespace, spec={"template": template}, status=status)


def found_about(what: str, cluster: MemoryCluster, **settings: Any) -> list[Finding]:
    return [one for one in examine(cluster, KubernetesSettings(**settings)) if one.what == what]


def test_a_cluster_that_has_all_is_well(cluster: MemoryCluster) -> None:
    findings = examine(cluster, KubernetesSettings())
    assert [one for one in findings if one.mark == "✗"] == []
    said = {one.what: one.found for one in findings}
    assert said["API server"] == "Kubernetes v1.34.4 at https://memory.invalid"
    assert said["Argo Workflows"] == "argoproj.io/v1alpha1, v3.6.2; runs batch workflows"
    assert said["rights"] == "all that scanflow uses"
    assert said["nodes"] == "2 of the 2 take pods, 8 cores in all"
    assert said["cores alone"] == "a, b: CPU manager static, topology restricted, memory manager None"
    assert said["storage"] == "nfs (nfs.csi.k8s.io), mounted ReadWriteOnce"
    assert said["image"] == "scanflow/base:latest is on a node"


def test_a_cluster_that_does_not_answer_is_one_finding(cluster: MemoryCluster) -> None:
    cluster.down = True
    (found,) = examine(cluster, KubernetesSettings())
    assert (found.mark, found.what) == ("✗", "API server")
    assert "does not answer" in found.found


def test_an_old_cluster_is_to_be_upgraded(cluster: MemoryCluster) -> None:
    cluster.documents["/version"] = '{"major": "1", "minor": "24+", "gitVersion": "v1.24.1-eks"}'
    (found,) = found_about("API server", cluster)
    assert (found.mark, found.advice) == ("✗", "upgrade it to 1.27 or newer")


def test_an_engine_is_a_problem_only_where_it_is_used() -> None:
    cluster = MemoryCluster(unknown=tuple(ENGINES))
    cluster.documents["/apis"] = '{"groups": []}'
    assert [one.mark for one in found_about("Argo Workflows", cluster)] == ["✗"]
    assert [one.mark for one in found_about("Seldon Core", cluster)] == ["–"]
    assert [one.mark for one in found_about("Seldon Core", cluster, serving="seldon")] == ["✗"]
    assert [one.mark for one in found_about("Gateway API", cluster, gateway="infra/public")] == ["✗"]
    assert [one.mark for one in found_about("rights", cluster)] == ["✓"]
    (storage,) = found_about("storage", cluster)
    assert (storage.mark, storage.found) == ("✗", "no StorageClass is the default")


def test_an_engine_whose_controller_does_not_run_is_said(cluster: MemoryCluster) -> None:
    cluster.edit("Deployment", "workflow-controller", "argo", {"status": {"availableReplicas": None}})
    (found,) = found_about("Argo Workflows", cluster)
    assert (found.mark, found.advice) == ("✗", "kubectl -n argo describe pods")
    assert "its workflow-controller is not running" in found.found


def test_what_is_not_allowed_is_named_with_the_role_that_allows_it(cluster: MemoryCluster) -> None:
    cluster.denied = {("create", "workflows"), ("patch", "workflows"), ("get", "nodes")}
    bind = "kubectl create clusterrolebinding {0} --clusterrole={0} --user=system:serviceaccount:team:ada"
    workflows, nodes = found_about("rights", cluster)
    assert (workflows.mark, workflows.found) == ("✗", "may not create, patch workflows.argoproj.io in all namespaces")
    assert workflows.advice == (
        "kubectl create clusterrole scanflow-workflows-argoproj-io --verb=create,patch "
        "--resource=workflows.argoproj.io && " + bind.format("scanflow-workflows-argoproj-io")
    )
    assert (nodes.mark, nodes.found) == ("–", "may not get nodes/proxy in all namespaces")


def test_each_role_that_is_missing_has_a_name_of_its_own(cluster: MemoryCluster) -> None:
    cluster.denied = {("get", "pods"), ("list", "pods")}
    names = [one.advice.split()[3] for one in found_about("rights", cluster)]
    assert names == ["scanflow-pods", "scanflow-pods-log", "scanflow-pods-exec", "scanflow-pods-proxy"]


def test_in_one_namespace_the_stock_role_admin_is_enough(cluster: MemoryCluster) -> None:
    for kind in ("limitranges", "resourcequotas"):
        cluster.denied |= {(verb, kind) for verb in ("create", "patch", "delete")}
    for kind in ("namespaces", "nodes", "storageclasses"):
        cluster.denied |= {(verb, kind) for verb in ("create", "patch", "delete", "list", "get")}
    assert [one.mark for one in found_about("rights", cluster, namespace="scanflow-shop-data")] == ["✓"]
    cluster.denied.add(("create", "workflows"))
    (missing,) = found_about("rights", cluster, namespace="scanflow-shop-data")
    assert missing.found == "may not create workflows.argoproj.io in the namespace scanflow-shop-data"
    assert missing.advice.startswith("kubectl create role scanflow-workflows-argoproj-io -n scanflow-shop-data ")


def test_who_may_not_list_deployments_is_told_which_engines_are_installed(cluster: MemoryCluster) -> None:
    cluster.refuse(lambda verb, kind, _: AccessDeniedError("no") if (verb, kind) == ("find", "Deployment") else None)
    assert [one.mark for one in found_about("Argo Workflows", cluster)] == ["✓"]


def test_nodes_whose_cores_cannot_be_had_alone_are_named(cluster: MemoryCluster) -> None:
    cluster.documents["/api/v1/nodes/b/proxy/configz"] = '{"kubeletconfig": {"cpuManagerPolicy": "none"}}'
    other, good = found_about("cores alone", cluster)
    assert (good.mark, other.mark) == ("✓", "–")
    assert other.found == "b: CPU manager none, so no pod can have them"
    assert "SCANFLOW_KUBERNETES_ALLOW_DEGRADED=1" in other.advice


@pytest.mark.parametrize(
    ("settings", "mark", "found"),
    [
        ({"storage_class": "fast"}, "✗", "there is no StorageClass 'fast'"),
        (
            {"storage_class": "disk", "storage_mode": "ReadWriteMany"},
            "✗",
            "disk (ebs.csi.aws.com), mounted ReadWriteMany: classes of this kind do not support",
        ),
        ({"storage_class": "disk"}, "✓", "disk (ebs.csi.aws.com), mounted ReadWriteO"),
    ],
)
def test_the_storage_class_that_is_named_is_looked_at(
    cluster: MemoryCluster, settings: dict[str, Any], mark: str, found: str
) -> None:
    make(cluster, "StorageClass", "disk", provisioner="ebs.csi.aws.com")
    (storage,) = found_about("storage", cluster, **settings)
    assert storage.mark == mark
    assert storage.found.startswith(found)


def test_prometheus_is_asked_through_the_api_server(cluster: MemoryCluster) -> None:
    address = "http://prometheus.monitoring:9090"
    assert [one.mark for one in found_about("Prometheus", cluster)] == ["–"]
    assert [one.mark for one in found_about("Prometheus", cluster, prometheus=address)] == ["✗"]
    cluster.documents["/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/-/ready"] = "ready"
    for address in ("http://prometheus.monitoring:9090", "http://prometheus.monitoring.svc.cluster.local:9090/"):
        assert [one.mark for one in found_about("Prometheus", cluster, prometheus=address)] == ["✓"]
    assert [one.mark for one in found_about("Prometheus", cluster, prometheus="https://elsewhere")] == ["–"]


def test_a_gateway_is_to_be_taken_up_by_its_controller(cluster: MemoryCluster) -> None:
    (found,) = found_about("gateway", cluster, gateway="infra/public")
    assert found.found == "there is no Gateway 'infra/public'"
    make(cluster, "Gateway", "public", "infra", spec={})
    (found,) = found_about("gateway", cluster, gateway="infra/public")
    assert found.found == "infra/public is not accepted: no controller has accepted it"
    conditions = [{"type": one, "status": "True"} for one in ("Accepted", "Programmed")]
    status = {"conditions": conditions, "addresses": [{"value": "10.0.0.1"}]}
    cluster.edit("Gateway", "public", "infra", {"status": status})
    assert found_about("gateway", cluster, gateway="infra/public") == [
        Finding("✓", "gateway", "infra/public at 10.0.0.1")
    ]


def test_what_may_not_be_looked_at_is_a_finding_and_the_rest_goes_on(cluster: MemoryCluster) -> None:
    cluster.refuse(lambda verb, kind, _: AccessDeniedError("no") if kind == "Node" else None)
    findings = examine(cluster, KubernetesSettings())
    assert Finding("✗", "nodes", "could not be checked: no") in findings
    assert any(one.what == "storage" for one in findings)


class TestThorough:
    def tried(self, cluster: MemoryCluster, status: Manifest, log: bytes = b"") -> Finding:
        def run(one: MemoryCluster, pod: Manifest) -> None:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            one.edit("Pod", name, namespace, {"status": status}, manager="kubelet")
            one.logs[namespace, name] = log

        cluster.play("Pod", run)
        found = [one for one in examine(cluster, KubernetesSettings(), thorough=True) if one.what == "image"]
        assert not [one for one in cluster.find("Namespace")[0] if "doctor" in one["metadata"]["name"]]
        return found[0]

    def test_an_image_that_runs_is_good(self, cluster: MemoryCluster) -> None:
        found = self.tried(cluster, {"phase": "Succeeded"}, b"0.1.0\n")
        assert found.mark == "✓"
        assert found.found.endswith("it has scanflow 0.1.0")

    def test_an_image_that_cannot_be_pulled_is_named(self, cluster: MemoryCluster) -> None:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
        status = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waiting}]}
        found = self.tried(cluster, status)
        assert (found.mark, found.advice) == ("✗", "export SCANFLOW_KUBERNETES_IMAGE=registry/name:tag")
        assert "ImagePullBackOff: not found" in found.found

    def test_an_image_without_scanflow_says_what_it_printed(self, cluster: MemoryCluster) -> None:
        log = b"Traceback\nModuleNotFoundError: No module named 'scanflow'\n"
        found = self.tried(cluster, {"phase": "Failed"}, log).found
        assert found == "scanflow/base:latest was pulled, and fails: ModuleNotFoundError: No module named 'scanflow'"
