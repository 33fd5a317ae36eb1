"""What whoever drains a node does, for tests on a cluster, and how others are not drained by it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import build_object_path

_LOCK = Path(tempfile.gettempdir(), f"scanflow-tests-cordon-{os.getuid()}.lock")


@contextmanager
def cordon_node(cluster: Cluster, node: str) -> Iterator[None]:
    """Have a node that takes no more pods, when no test beside this one needs all of them."""
    with _lock_nodes(fcntl.LOCK_EX):
        cluster.patch("Node", node, None, {"spec": {"unschedulable": True}})
        try:
            yield
        finally:
            cluster.patch("Node", node, None, {"spec": {"unschedulable": None}})


@contextmanager
def all_nodes_schedulable() -> Iterator[None]:
    """Keep the tests that run beside this one from cordoning nodes: its pods are to be on more than one."""
    with _lock_nodes(fcntl.LOCK_SH):
        yield


@contextmanager
def _lock_nodes(how: int) -> Iterator[None]:
    with _LOCK.open("ab") as file:
        fcntl.flock(file, how)  # for as long as the test's own limit; closing the file lets go
        yield


def evict(cluster: Cluster, pod: str, namespace: str) -> None:
    """Ask for a pod's end as a drain does."""
    metadata = {"name": pod, "namespace": namespace}
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    cluster.fetch_json("POST", f"{build_object_path('Pod', pod, namespace=namespace)}/eviction", json=document)
