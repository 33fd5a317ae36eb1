"""What the plan of a service says of GPUs on a cluster."""

from __future__ import annotations

from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.gpu_claims import explain_cluster_lack, is_claimed
from scanflow.backends.kubernetes.gpu_findings import count_usage
from scanflow.backends.kubernetes.gpus import GpuRequest, count_gpus, has_labels, list_tolerated
from scanflow.backends.kubernetes.nodes import is_schedulable, list_nodes
from scanflow.errors import AccessDeniedError


def add_gpu_notes(plan: Plan, workflow: Workflow, cluster: Cluster, request: GpuRequest | None) -> Plan:
    """Return a plan with a note at each node of a workflow whose GPUs no node of the cluster has, and one on those of a
    second version.

    Args:
        request: What an instance asks for; None: no GPU.
    """
    if request is None:
        return plan
    lack = explain_cluster_lack(cluster, request, list_nodes(cluster))
    asking = {node.name for node in workflow.services if lack and node.resources.gpu}
    steps = [
        step.model_copy(update={"notes": (*step.notes, f"fits on no node: {lack}")}) if step.name in asking else step
        for step in plan.steps
    ]
    return plan.model_copy(update={"steps": tuple(steps), "notes": (describe_second_version(cluster, request),)})


def describe_second_version(cluster: Cluster, request: GpuRequest) -> str:
    """Return whether there are GPUs for a second version of a service: it has pods, and so GPUs, of its own."""
    asks = f"{request.number} of {request.resource}"
    text = f"GPUs: a second version (deployment, swap, canary, shadow) has pods of its own, and asks for {asks} more."
    if request.claim or is_claimed(cluster, request.resource):
        return f"{text} Nodes do not count them. With none, its pods wait, and the first serves on."
    try:
        nodes, usage = cluster.find("Node")[0], count_usage(cluster.find("Pod")[0])
    except AccessDeniedError:
        return f"{text} How many are free may not be read. With none, its pods wait, and the first serves on."
    suiting = [node for node in nodes if is_schedulable(node, list_tolerated(request))]
    free = [
        count_gpus(node, request.resource) - usage[node["metadata"]["name"], request.resource]
        for node in suiting
        if has_labels(node, request.labels)
    ]
    if max(free, default=0) >= request.number:
        return f"{text} {sum(free)} are free."
    return f"{text} No node has so many free: its pods wait, and the first serves on."
