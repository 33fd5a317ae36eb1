"""Nodes with GPUs whose kubelets KWOK plays: the real scheduler places pods there, which only seem to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.nodes import is_schedulable
from tests.waiting import wait_until

TAINT: Final = "nvidia.com/gpu"
AT_ONCE: Final = 8


def make_node(name: str, resources: Mapping[str, int], labels: Mapping[str, str]) -> Manifest:
    """Return a node with resources beside its cores, which only pods that ask for GPUs tolerate."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **{key: str(value) for key, value in resources.items()}}
    metadata = {
        "name": name,
        "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
        "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
    }
    spec = {"taints": [{"key": TAINT, "value": "present", "effect": "NoSchedule"}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {"allocatable": amounts, "capacity": amounts},
    }


@contextmanager
def fake_nodes(cluster: Cluster, nodes: Sequence[Manifest]) -> Iterator[None]:
    """Have nodes, until the end."""
    names = {node["metadata"]["name"] for node in nodes}

    def are_ready() -> bool:
        return names <= {
            node["metadata"]["name"] for node in cluster.find("Node")[0] if is_schedulable(node, tolerated=[TAINT])
        }

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(cluster.create, nodes))
        wait_until(are_ready, "all of KWOK's nodes are ready")
        yield
    finally:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: cluster.delete("Node", name), names))
