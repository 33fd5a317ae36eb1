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
    cluster = MemoryCluster(namespaces=("default", "argo", "infra"))
    versions = {*(KINDS[kind].api_version for kind in ENGINES), "metrics.k8s.io/v1beta1"}
    cluster.documents["/apis"] = json.dumps(
        {"groups": [{"versions": [{"groupVersion": version}]} for version in versions]}
    )
    for node in ("a", "b"):
        make(
            cluster,
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
        cluster.documents[f"/api/v1/nodes/{node}/proxy/configz"] = json.dumps({"kubeletconfig": configuration})
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    cluster.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "nfs", "annotations": default},
            "provisioner": "nfs.csi.k8s.io",
        }
    )
    controller(cluster, "argo", "workflow-controller", "quay.io/argoproj/workflow-controller:v3.6.2", available=1)
    return cluster


def controller(cluster: MemoryCluster, namespace: str, name: str, image: str, *, available: int) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": image}]}}
    status = {"availableReplicas": available}
    make(cluster, "Deployment", name, namespace, spec={"template": template}, status=status)


def list_findings(what: str, cluster: MemoryCluster, **settings: Any) -> list[Finding]:
    return [finding for finding in examine(cluster, KubernetesSettings(**settings)) if finding.what == what]


def test_a_cluster_that_has_all_is_well(cluster: MemoryCluster) -> None:
    findings = examine(cluster, KubernetesSettings())
    assert [finding for finding in findings if finding.mark == "✗"] == []
    texts = {finding.what: finding.found for finding in findings}
    assert texts["API server"] == "Kubernetes v1.34.4 at https://memory.invalid"
    assert texts["Argo Workflows"] == "argoproj.io/v1alpha1, v3.6.2; runs batch workflows"
    assert texts["rights"] == "all that scanflow uses"
    assert texts["nodes"] == "2 of the 2 take pods, 8 cores in all"
    assert texts["cores alone"] == "a, b: CPU manager static, topology restricted, memory manager None"
    assert texts["storage"] == "nfs (nfs.csi.k8s.io), mounted ReadWriteOnce"
    assert texts["image"] == "scanflow/base:latest is on a node"


def test_a_cluster_that_does_not_answer_is_one_finding(cluster: MemoryCluster) -> None:
    cluster.down = True
    (finding,) = examine(cluster, KubernetesSettings())
    assert (finding.mark, finding.what) == ("✗", "API server")
    assert "does not answer" in finding.found


def test_an_old_cluster_is_to_be_upgraded(cluster: MemoryCluster) -> None:
    cluster.documents["/version"] = '{"major": "1", "minor": "24+", "gitVersion": "v1.24.1-eks"}'
    (finding,) = list_findings("API server", cluster)
    assert (finding.mark, finding.advice) == ("✗", "upgrade it to 1.27 or newer")


def test_an_engine_is_a_problem_only_where_it_is_used() -> None:
    cluster = MemoryCluster(unknown=tuple(ENGINES))
    cluster.documents["/apis"] = '{"groups": []}'
    assert [finding.mark for finding in list_findings("Argo Workflows", cluster)] == ["✗"]
    assert [finding.mark for finding in list_findings("Seldon Core", cluster)] == ["–"]
    assert [finding.mark for finding in list_findings("Seldon Core", cluster, serving="seldon")] == ["✗"]
    assert [finding.mark for finding in list_findings("Gateway API", cluster, gateway="infra/public")] == ["✗"]
    assert [finding.mark for finding in list_findings("rights", cluster)] == ["✓"]
    (storage,) = list_findings("storage", cluster)
    assert (storage.mark, storage.found) == ("✗", "no StorageClass is the default")


def test_an_engine_where_the_controller_does_not_run_is_said(cluster: MemoryCluster) -> None:
    cluster.edit("Deployment", "workflow-controller", "argo", {"status": {"availableReplicas": None}})
    (finding,) = list_findings("Argo Workflows", cluster)
    assert (finding.mark, finding.advice) == ("✗", "kubectl -n argo describe pods")
    assert "its workflow-controller is not running" in finding.found


def test_what_is_not_allowed_is_named_with_the_role_that_allows_it(cluster: MemoryCluster) -> None:
    cluster.denied = {("create", "workflows"), ("patch", "workflows"), ("get", "nodes")}
    bind = "kubectl create clusterrolebinding {0} --clusterrole={0} --user=system:serviceaccount:team:ada"
    workflows, nodes = list_findings("rights", cluster)
    assert (workflows.mark, workflows.found) == ("✗", "may not create, patch workflows.argoproj.io in all namespaces")
    assert workflows.advice == (
        "kubectl create clusterrole scanflow-workflows-argoproj-io --verb=create,patch "
        "--resource=workflows.argoproj.io && " + bind.format("scanflow-workflows-argoproj-io")
    )
    assert (nodes.mark, nodes.found) == ("–", "may not get nodes/proxy in all namespaces")


def test_each_role_that_is_missing_has_a_name_of_its_own(cluster: MemoryCluster) -> None:
    cluster.denied = {("get", "pods"), ("list", "pods")}
    names = [finding.advice.split()[3] for finding in list_findings("rights", cluster)]
    assert names == ["scanflow-pods", "scanflow-pods-log", "scanflow-pods-exec", "scanflow-pods-proxy"]


def test_in_one_namespace_the_stock_role_admin_is_enough(cluster: MemoryCluster) -> None:
    for kind in ("limitranges", "resourcequotas"):
        cluster.denied |= {(verb, kind) for verb in ("create", "patch", "delete")}
    for kind in ("namespaces", "nodes", "storageclasses"):
        cluster.denied |= {(verb, kind) for verb in ("create", "patch", "delete", "list", "get")}
    assert [finding.mark for finding in list_findings("rights", cluster, namespace="scanflow-shop-data")] == ["✓"]
    cluster.denied.add(("create", "workflows"))
    (missing,) = list_findings("rights", cluster, namespace="scanflow-shop-data")
    assert missing.found == "may not create workflows.argoproj.io in the namespace scanflow-shop-data"
    assert missing.advice.startswith("kubectl create role scanflow-workflows-argoproj-io -n scanflow-shop-data ")


def test_who_may_not_list_deployments_learns_which_engines_are_installed(cluster: MemoryCluster) -> None:
    cluster.refuse(lambda verb, kind, _: AccessDeniedError("no") if (verb, kind) == ("find", "Deployment") else None)
    assert [finding.mark for finding in list_findings("Argo Workflows", cluster)] == ["✓"]


def test_nodes_where_the_cores_cannot_be_had_alone_are_named(cluster: MemoryCluster) -> None:
    cluster.documents["/api/v1/nodes/b/proxy/configz"] = '{"kubeletconfig": {"cpuManagerPolicy": "none"}}'
    other, good = list_findings("cores alone", cluster)
    assert (good.mark, other.mark) == ("✓", "–")
    assert other.found == "b: CPU manager none, so no pod can have them"
    assert "SCANFLOW_KUBERNETES_ALLOW_DEGRADED=1" in other.advice


@pytest.mark.parametrize(
    ("settings", "mark", "value"),
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
    cluster: MemoryCluster, settings: dict[str, Any], mark: str, value: str
) -> None:
    make(cluster, "StorageClass", "disk", provisioner="ebs.csi.aws.com")
    (storage,) = list_findings("storage", cluster, **settings)
    assert storage.mark == mark
    assert storage.found.startswith(value)


def test_prometheus_is_queried_through_the_api_server(cluster: MemoryCluster) -> None:
    address = "http://prometheus.monitoring:9090"
    assert [finding.mark for finding in list_findings("Prometheus", cluster)] == ["–"]
    assert [finding.mark for finding in list_findings("Prometheus", cluster, prometheus=address)] == ["✗"]
    cluster.documents["/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/-/ready"] = "ready"
    for address in ("http://prometheus.monitoring:9090", "http://prometheus.monitoring.svc.cluster.local:9090/"):
        assert [finding.mark for finding in list_findings("Prometheus", cluster, prometheus=address)] == ["✓"]
    assert [finding.mark for finding in list_findings("Prometheus", cluster, prometheus="https://elsewhere")] == ["–"]


def test_a_gateway_is_to_be_taken_up_by_its_controller(cluster: MemoryCluster) -> None:
    (finding,) = list_findings("gateway", cluster, gateway="infra/public")
    assert finding.found == "there is no Gateway 'infra/public'"
    make(cluster, "Gateway", "public", "infra", spec={})
    (finding,) = list_findings("gateway", cluster, gateway="infra/public")
    assert finding.found == "infra/public is not accepted: no controller has accepted it"
    conditions = [{"type": condition, "status": "True"} for condition in ("Accepted", "Programmed")]
    status = {"conditions": conditions, "addresses": [{"value": "10.0.0.1"}]}
    cluster.edit("Gateway", "public", "infra", {"status": status})
    assert list_findings("gateway", cluster, gateway="infra/public") == [
        Finding("✓", "gateway", "infra/public at 10.0.0.1")
    ]


def test_what_may_not_be_looked_at_is_a_finding_and_the_rest_goes_on(cluster: MemoryCluster) -> None:
    cluster.refuse(lambda verb, kind, _: AccessDeniedError("no") if kind == "Node" else None)
    findings = examine(cluster, KubernetesSettings())
    assert Finding("✗", "nodes", "could not be checked: no") in findings
    assert any(finding.what == "storage" for finding in findings)


class TestThorough:
    def run_pod(self, cluster: MemoryCluster, status: Manifest, log: bytes = b"") -> Finding:
        def run(cluster: MemoryCluster, pod: Manifest) -> None:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            cluster.edit("Pod", name, namespace, {"status": status}, manager="kubelet")
            cluster.logs[namespace, name] = log

        cluster.play("Pod", run)
        finding = [entry for entry in examine(cluster, KubernetesSettings(), thorough=True) if entry.what == "image"]
        assert not [manifest for manifest in cluster.find("Namespace")[0] if "doctor" in manifest["metadata"]["name"]]
        return finding[0]

    def test_an_image_that_runs_is_good(self, cluster: MemoryCluster) -> None:
        finding = self.run_pod(cluster, {"phase": "Succeeded"}, b"0.1.0\n")
        assert finding.mark == "✓"
        assert finding.found.endswith("it has scanflow 0.1.0")

    def test_an_image_that_cannot_be_pulled_is_named(self, cluster: MemoryCluster) -> None:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
        status = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waiting}]}
        finding = self.run_pod(cluster, status)
        assert (finding.mark, finding.advice) == ("✗", "export SCANFLOW_KUBERNETES_IMAGE=registry/name:tag")
        assert "ImagePullBackOff: not found" in finding.found

    def test_an_image_without_scanflow_says_what_it_printed(self, cluster: MemoryCluster) -> None:
        log = b"Traceback\nModuleNotFoundError: No module named 'scanflow'\n"
        text = self.run_pod(cluster, {"phase": "Failed"}, log).found
        assert text == "scanflow/base:latest was pulled, and fails: ModuleNotFoundError: No module named 'scanflow'"
