"""CPU, memory and topology manager policies of a cluster's nodes, read from their kubelets."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from scanflow.app.plan import UNBOUNDED
from scanflow.app.quantities import parse_cpu, parse_memory, round_memory
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, get_condition
from scanflow.errors import AccessDeniedError, NotFoundError, UnavailableError

_MAX_CONCURRENT: Final = 16


class KubeletPolicy(NamedTuple):
    """The policies of one node."""

    node: str
    schedulable: bool
    """Whether ordinary pods may run there: it is Ready, not cordoned, and has no taint that keeps them away."""

    cores: float
    """The cores that all pods together may request."""

    memory_bytes: int
    """The memory that all pods together may request."""

    cpu_manager: str | None = None
    """``static``: a Guaranteed pod of whole cores has them exclusively. ``none``: no pod does. None: see ``why``."""

    memory_manager: str | None = None
    """``Static``: memory of one NUMA node is kept for a Guaranteed pod. ``None``, a text: it is not."""

    topology_manager: str | None = None
    """``none``, ``best-effort``, ``restricted`` or ``single-numa-node``."""

    why: str = ""
    """Why the kubelet's policies are not known."""

    @property
    def pins(self) -> bool:
        """Whether a pod of whole cores has them exclusively there."""
        return self.cpu_manager == "static"


def read_kubelet_policies(
    cluster: Cluster, *, limit: int | None = None, asked: int | None = None, tolerated: Collection[str] = ()
) -> list[KubeletPolicy]:
    """Return the policies of all nodes, by name, read from each kubelet through the API server.

    They are None where that is not allowed (it takes ``get`` on ``nodes/proxy``), and of nodes that do not answer.

    Args:
        cluster: Whose nodes.
        limit: Most nodes to return; schedulable ones first. None: all.
        asked: How many kubelets to query, one request each. None: all.
        tolerated: The keys of taints that pods tolerate.
    """
    nodes, _ = cluster.find("Node")
    selected = sorted(nodes, key=lambda node: (not is_schedulable(node, tolerated), node["metadata"]["name"]))[:limit]
    query_count = len(selected) if asked is None else min(asked, len(selected))
    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        policies = list(pool.map(lambda node: _fetch_policy(cluster, node, tolerated), selected[:query_count]))
    unqueried = [_read_capacity(node, tolerated)._replace(why="it was not queried") for node in selected[query_count:]]
    return sorted([*policies, *unqueried], key=lambda policy: policy.node)


def is_schedulable(node: Manifest, tolerated: Collection[str] = ()) -> bool:
    """Return whether pods may be scheduled on a node that tolerate taints of these keys."""
    ready = get_condition(node["status"], "Ready").get("status") == "True"
    taints = [
        taint
        for taint in node["spec"].get("taints", [])
        if taint.get("effect") in {"NoSchedule", "NoExecute"} and taint["key"] not in tolerated
    ]
    return ready and not taints and not node["spec"].get("unschedulable", False)


def read_allocatable(node: Manifest) -> tuple[float, int]:
    """Return the allocatable cores and bytes of memory of a node."""
    allocatable = node.get("status", {}).get("allocatable", {})
    cores = parse_cpu(allocatable["cpu"]) if allocatable.get("cpu", "0") != "0" else 0.0
    return cores, parse_memory(allocatable["memory"]) if allocatable.get("memory", "0") != "0" else 0


def sum_allocatable(nodes: Sequence[Manifest] | None) -> tuple[float, int]:
    """Return the allocatable cores and bytes of memory of the nodes that take pods; unbounded if not listed."""
    if nodes is None:
        return UNBOUNDED, UNBOUNDED
    allocatable = [read_allocatable(node) for node in nodes if is_schedulable(node)]
    return max(sum(cores for cores, _ in allocatable), 0.001), sum(memory for _, memory in allocatable)


def explain_misfit(
    nodes: Iterable[Manifest] | None, cores: float, memory_bytes: int | None, tolerated: Collection[str] = ()
) -> str:
    """Return why no node can ever take a pod of this size, as they are now; empty: one can."""
    allocatable = [read_allocatable(node) for node in nodes or () if is_schedulable(node, tolerated)]
    if not allocatable or any(
        node_cores >= cores and node_memory >= (memory_bytes or 0) for node_cores, node_memory in allocatable
    ):
        return ""
    most_cores, most_memory = (max(amounts) for amounts in zip(*allocatable, strict=True))
    return (
        f"fits on no node: it needs {cores:g} cores"
        f"{f' and {round_memory(memory_bytes)}' if memory_bytes else ''}, and the largest node has {most_cores:g} and "
        f"{round_memory(most_memory)}"
    )


def list_nodes(cluster: Cluster) -> list[Manifest] | None:
    """Return all nodes; None: there is no right to list them."""
    try:
        return cluster.find("Node")[0]
    except AccessDeniedError:
        return None


def _read_capacity(node: Manifest, tolerated: Collection[str]) -> KubeletPolicy:
    cores, memory = read_allocatable(node)
    return KubeletPolicy(node["metadata"]["name"], is_schedulable(node, tolerated), cores=cores, memory_bytes=memory)


def _fetch_policy(cluster: Cluster, node: Manifest, tolerated: Collection[str]) -> KubeletPolicy:
    policy = _read_capacity(node, tolerated)
    try:
        configuration = json.loads(cluster.fetch_text(f"/api/v1/nodes/{policy.node}/proxy/configz"))["kubeletconfig"]
    except AccessDeniedError:
        return policy._replace(why="this needs the right to get nodes/proxy")
    except (NotFoundError, UnavailableError) as error:
        return policy._replace(why=str(error))
    return policy._replace(
        cpu_manager=configuration.get("cpuManagerPolicy", "none"),
        memory_manager=configuration.get("memoryManagerPolicy", "None"),
        topology_manager=configuration.get("topologyManagerPolicy", "none"),
    )
