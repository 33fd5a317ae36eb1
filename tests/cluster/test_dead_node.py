"""An instance on a node that is dead. The node is an object with nobody behind it, and the test is its kubelet for as
long as it lives: that an end of its pods is never confirmed is the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import build_object_path
from tests.cluster.online import Place
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(400)]

LABEL = "scanflow-tests.dev/lives"
SMALL = sf.Resources(cpu="150m", memory="256Mi")


def ready(**more: str) -> list[Mapping[str, str]]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [{"type": "Ready", "status": "True", "lastTransitionTime": now, **more}]


@contextmanager
def node_of_nobody(cluster: Cluster) -> Iterator[str]:
    """Have a node that takes only the pods that are put there."""
    name = f"nobody-{uuid.uuid4().hex[:6]}"
    room = {"cpu": "1", "memory": "4Gi", "pods": "10"}
    taints = [{"key": LABEL, "effect": "NoSchedule"}]
    status: dict[str, Any] = {"capacity": room, "allocatable": room, "conditions": ready(reason="KubeletReady")}
    metadata = {"name": name, "labels": {LABEL: name}}
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}})
    try:
        cluster.patch("Node", name, None, {"status": status}, subresource="status")
        yield name
    finally:
        cluster.delete("Node", name)


@contextmanager
def label_node(cluster: Cluster, value: str) -> Iterator[str]:
    """Give a node that lives the label too, so that what is to be on such a node may be on this one."""
    nodes, _ = cluster.find("Node", labels=f"!{LABEL},!node-role.kubernetes.io/control-plane")
    usable = [node for node in nodes if not node["spec"].get("taints") and not node["spec"].get("unschedulable")]
    name: str = usable[0]["metadata"]["name"]
    cluster.patch("Node", name, None, {"metadata": {"labels": {LABEL: value}}})
    try:
        yield name
    finally:
        cluster.patch("Node", name, None, {"metadata": {"labels": {LABEL: None}}})


def test_nobody_waits_for_an_instance_of_a_dead_node_and_it_is_replaced(place: Callable[..., Place]) -> None:
    here = place(SCANFLOW_KUBERNETES_TIMEOUT_S="200")
    with node_of_nobody(here.cluster) as dead, ThreadPoolExecutor(1) as pool:
        where = sf.Affinity(node_selector={LABEL: dead})
        deployed = pool.submit(here.deploy, 2, resources=SMALL, affinity=where)
        wait_until(lambda: here.pods() or deployed.done(), "its pod is there")
        (lost,) = here.pods()
        put(here, lost, dead)
        assert deployed.result(timeout=60).state == "ready"

        with label_node(here.cluster, dead) as lives:
            here.cluster.delete("Pod", lost, here.namespace)
            wait_until(
                lambda: here.deployer.service(here.name).state == "ready" and here.answer() == [2], "it is replaced"
            )
            (other,) = here.pods().values()
            assert other["spec"]["nodeName"] == lives
            here.change(instances=2)
            messages = "\n".join(event.text for event in here.seen)
            assert f"instance {lost} on {dead} did not terminate: its node does not answer" in messages
            assert f"kubectl delete node {dead}" in messages
            assert here.cluster.get("Pod", lost, here.namespace) is not None, "its end was confirmed by nobody"
            here.deployer.delete(here.name, observe=here.seen.append)
    wait_until(lambda: here.cluster.get("Pod", lost, here.namespace) is None, "the cluster forgets it", patience_s=90)


def put(here: Place, pod: str, node: str) -> None:
    """Do what the scheduler and a kubelet do: bind a pod to a node, and say that it runs."""
    metadata = {"name": pod, "namespace": here.namespace}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    here.cluster.fetch_json("POST", f"{build_object_path('Pod', pod, namespace=here.namespace)}/binding", json=binding)
    status = {"phase": "Running", "conditions": [*ready(), *ready(type="ContainersReady")]}
    here.cluster.patch("Pod", pod, here.namespace, {"status": status}, subresource="status")
