"""What kubelets say of themselves."""

from __future__ import annotations

import json

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.batch.run_checks import plan_steps
from scanflow.backends.kubernetes.gpus import DevicePlugin
from scanflow.backends.kubernetes.nodes import explain_misfit, list_nodes, read_kubelet_policies, sum_allocatable
from scanflow.errors import UnavailableError
from scanflow.testing.memory_cluster import MemoryCluster


def add_node(cluster: MemoryCluster, name: str, **spec: object) -> None:
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "1500m", "memory": "2Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def test_each_node_says_its_policies() -> None:
    cluster = MemoryCluster()
    add_node(cluster, "b", unschedulable=True)
    add_node(cluster, "a")
    add_node(cluster, "control", taints=[{"key": "control", "effect": "NoSchedule"}])
    settings = {"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static", "topologyManagerPolicy": "restricted"}
    cluster.documents["/api/v1/nodes/a/proxy/configz"] = json.dumps({"kubeletconfig": settings})
    cluster.documents["/api/v1/nodes/b/proxy/configz"] = json.dumps({"kubeletconfig": {}})
    a, b, control = read_kubelet_policies(cluster)
    assert tuple(a) == ("a", True, 1.5, 2 * 2**30, "static", "Static", "restricted", "")
    assert a.pins
    assert (b.node, b.schedulable, b.cpu_manager, b.pins) == ("b", False, "none", False)
    assert (control.schedulable, control.cpu_manager) == (False, None)
    assert "could not find" in control.why


def test_a_plan_counts_on_the_nodes_that_take_pods() -> None:
    cluster = MemoryCluster()
    add_node(cluster, "a")
    add_node(cluster, "b")
    add_node(cluster, "cordoned", unschedulable=True)
    add_node(cluster, "control", taints=[{"key": "control", "effect": "NoSchedule"}])
    assert sum_allocatable(list_nodes(cluster)) == (3.0, 4 * 2**30)


def test_the_plan_of_a_workflow_lists_nodes_once() -> None:
    cluster = MemoryCluster()
    add_node(cluster, "a")
    cluster.calls.clear()
    train = sf.Workflow(name="train", type="batch", nodes=[sf.Executor(name="fit", mainfile="fit.py")])
    plan_steps(cluster, train, DevicePlugin())
    assert [(call.verb, call.kind) for call in cluster.calls] == [("find", "Node")]


@pytest.mark.parametrize(
    ("cores", "memory", "why"),
    [
        (1.5, 2**31, ""),
        (3.0, None, "fits on no node: it needs 3 cores, and the largest node has 1.5 and 2Gi"),
        (1.0, 3 * 2**30, "fits on no node: it needs 1 cores and 3Gi, and the largest node has 1.5 and 2Gi"),
    ],
)
def test_what_fits_on_no_node_is_said(cores: float, memory: int | None, why: str) -> None:
    cluster = MemoryCluster()
    add_node(cluster, "a")
    add_node(cluster, "b")
    assert explain_misfit(list_nodes(cluster), cores, memory) == why
    assert not explain_misfit([], cores, memory), "nodes that may not be listed are not judged"


def test_a_node_that_is_not_ready_takes_no_pods() -> None:
    cluster = MemoryCluster()
    add_node(cluster, "a")
    cluster.edit("Node", "a", None, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    (policy,) = read_kubelet_policies(cluster)
    assert not policy.schedulable


def test_a_kubelet_that_does_not_answer_is_said() -> None:
    class Silent(MemoryCluster):
        def fetch_text(self, path: str, *, timeout_s: float | None = None) -> str:  # noqa: ARG002
            raise UnavailableError(f"the kubelet is away: {path}")

    cluster = Silent()
    add_node(cluster, "a")
    (policy,) = read_kubelet_policies(cluster)
    assert (policy.cpu_manager, policy.why) == (None, "the kubelet is away: /api/v1/nodes/a/proxy/configz")
