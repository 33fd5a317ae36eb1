"""What the kubelets of a cluster's nodes do with cores and memory, as they say themselves."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from scanflow.app.quantities import parse_cpu, parse_memory
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import AccessDeniedError, NotFoundError, UnavailableError

_AT_ONCE: Final = 16


class KubeletPolicy(NamedTuple):
    """One node's."""

    node: str
    schedulable: bool
    """Whether ordinary pods may be put there: it is Ready, not cordoned, and has no taint that keeps them away."""

    cores: float
    """That pods may ask for, all together."""

    memory_bytes: int
    """That pods may ask for, all together."""

    cpu_manager: str | None = None
    """``static``: a Guaranteed pod of whole cores has them alone. ``none``: no pod does. None: see ``why``."""

    memory_manager: str | None = None
    """``Static``: memory of one NUMA node is kept for a Guaranteed pod. ``None``, a text: it is not."""

    topology_manager: str | None = None
    """``none``, ``best-effort``, ``restricted`` or ``single-numa-node``."""

    why: str = ""
    """Why the kubelet's policies are not known."""

    @property
    def pins(self) -> bool:
        """Whether a pod of whole cores has them alone there."""
        return self.cpu_manager == "static"


def kubelet_policies(cluster: Cluster, *, limit: int | None = None, asked: int | None = None) -> list[KubeletPolicy]:
    """Return the policies of all nodes, by name. Each kubelet says its own, through the API server.

    Where that is not allowed (it takes ``get`` on ``nodes/proxy``), and of nodes that do not answer, they are None.

    Args:
        cluster: Whose nodes.
        limit: The most that are returned; those that take pods first. None: all.
        asked: How many of them are asked, one request each. None: all.
    """
    nodes, _ = cluster.find("Node")
    first = sorted(nodes, key=lambda node: (not is_schedulable(node), node["metadata"]["name"]))[:limit]
    to_ask = len(first) if asked is None else min(asked, len(first))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        known = list(pool.map(lambda node: _policy(cluster, node), first[:to_ask]))
    rest = [_node(node)._replace(why="it was not asked") for node in first[to_ask:]]
    return sorted([*known, *rest], key=lambda one: one.node)


def is_schedulable(node: Manifest) -> bool:
    """Return whether ordinary pods may be put on a node."""
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", []))
    taints = [taint for taint in node["spec"].get("taints", []) if taint.get("effect") in {"NoSchedule", "NoExecute"}]
    return ready and not taints and not node["spec"].get("unschedulable", False)


def given_to_pods(node: Manifest) -> tuple[float, int]:
    """Return the cores and the bytes of memory that a node gives to all pods together."""
    allocatable = node.get("status", {}).get("allocatable", {})
    cores = parse_cpu(allocatable["cpu"]) if allocatable.get("cpu", "0") != "0" else 0.0
    return cores, parse_memory(allocatable["memory"]) if allocatable.get("memory", "0") != "0" else 0


def _node(node: Manifest) -> KubeletPolicy:
    cores, memory = given_to_pods(node)
    return KubeletPolicy(node["metadata"]["name"], is_schedulable(node), cores=cores, memory_bytes=memory)


def _policy(cluster: Cluster, node: Manifest) -> KubeletPolicy:
    found = _node(node)
    try:
        configuration = json.loads(cluster.text(f"/api/v1/nodes/{found.node}/proxy/configz"))["kubeletconfig"]
    except AccessDeniedError:
        return found._replace(why="it takes the right to get nodes/proxy")
    except (NotFoundError, UnavailableError) as error:
        return found._replace(why=str(error))
    return found._replace(
        cpu_manager=configuration.get("cpuManagerPolicy", "none"),
        memory_manager=configuration.get("memoryManagerPolicy", "None"),
        topology_manager=configuration.get("topologyManagerPolicy", "none"),
    )
