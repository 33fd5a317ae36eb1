"""What the doctor says of GPUs: which nodes offer them, how, how many are free, and their driver."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from scanflow.app.quantities import round_memory
from scanflow.backends.findings import Finding
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.gpu_claims import list_device_classes
from scanflow.backends.kubernetes.gpus import PARTS_AS_GPUS, count_gpus
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import AccessDeniedError

_WHAT: Final = "GPUs"
_PREFIXES: Final = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu")
_MAX_NAMED: Final = 5
_CLAIMS: Final = "GPU claims"


class _Offer(NamedTuple):
    """What a node offers of a resource; equal for nodes that are alike."""

    resource: str
    product: str
    memory: str
    driver: str
    sharing: str


def check_node_gpus(cluster: Cluster) -> Iterator[Finding]:
    """Yield what nodes offer, one finding for those that are alike."""
    nodes, _ = cluster.find("Node")
    groups: dict[_Offer, list[Manifest]] = defaultdict(list)
    for node in nodes:
        for resource in node.get("status", {}).get("allocatable", {}):
            if resource.startswith(_PREFIXES) and count_gpus(node, resource):
                groups[_describe_offer(node, resource)].append(node)
    if not groups:
        advice = "needed for resources.gpu only: a device plugin, as NVIDIA's GPU Operator installs"
        yield Finding("–", _WHAT, "no node offers any", advice)
        return
    try:
        usage = count_usage(cluster.find("Pod")[0])
    except AccessDeniedError:
        usage = None
    for offer, offering in sorted(groups.items()):
        names = [str(node["metadata"]["name"]) for node in offering]
        total = sum(count_gpus(node, offer.resource) for node in offering)
        where = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" * (len(names) > _MAX_NAMED))
        free = "" if usage is None else f", {total - sum(usage[name, offer.resource] for name in names)} free"
        about = ", ".join(filter(None, offer[1:]))
        yield Finding("✓", _WHAT, f"{total} of {offer.resource}{free}, on {where}{f': {about}' if about else ''}")


def check_device_classes(cluster: Cluster, settings: KubernetesSettings) -> Iterator[Finding]:
    """Yield whether GPUs can be claimed, where they are, and which device classes grant extended resources."""
    is_used = settings.gpu_requests == "resource-claims"
    if not cluster.has_kind("DeviceClass"):
        if is_used:
            advice = "upgrade it to Kubernetes 1.34, or export SCANFLOW_KUBERNETES_GPU_REQUESTS=device-plugin"
            yield Finding("✗", _CLAIMS, "the cluster has no resource.k8s.io/v1", advice)
        return
    classes = list_device_classes(cluster)
    if is_used:
        there = f"the device classes are {', '.join(classes)}" if classes else "there is no device class"
        is_there = settings.device_plugin.device_class in classes
        advice = "" if is_there else "install a driver, or export SCANFLOW_KUBERNETES_GPU_CLASS=NAME"
        yield Finding("✓" if is_there else "✗", _CLAIMS, there, advice)
    for name, resource in classes.items():
        if resource.startswith(_PREFIXES):
            yield Finding("✓", _CLAIMS, f"the device class {name} grants {resource}, which no node counts")


def count_usage(pods: Iterable[Manifest]) -> Mapping[tuple[str, str], int]:
    """Return how many of each extended resource the pods of each node hold, which have not ended."""
    usage = Counter[tuple[str, str]]()
    for pod in pods:
        spec, phase = pod["spec"], pod.get("status", {}).get("phase")
        if phase in {"Succeeded", "Failed"} or not spec.get("nodeName"):
            continue
        for container in spec.get("containers", []):
            for resource, amount in (container.get("resources", {}).get("limits") or {}).items():
                if resource.startswith(_PREFIXES):
                    usage[spec["nodeName"], resource] += int(amount)
    return usage


def _describe_offer(node: Manifest, resource: str) -> _Offer:
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    if resource.startswith("amd.com/"):
        return _Offer(resource, "", "", "", "")
    name = "nvidia.com/gpu" if resource.startswith("nvidia.com/gpu") else resource
    memory, strategy = labels.get(f"{name}.memory", ""), labels.get(f"{name}.sharing-strategy", "none")
    version = [labels.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev")]
    driver = labels.get("nvidia.com/cuda.driver-version.full") or ".".join(filter(None, version))
    is_part = name == "nvidia.com/gpu" and PARTS_AS_GPUS in labels
    sharing = "each a part of a GPU (MIG), which resources.gpu does not ask for" if is_part else ""
    if strategy != "none":
        bound = "memory is bounded" if strategy == "mps" else "memory is not bounded"
        how = strategy.replace("-", " ") if strategy != "mps" else "MPS"
        sharing = f"each a share of 1/{labels.get(f'{name}.replicas', '?')}, by {how}: {bound}"
    return _Offer(
        resource=resource,
        product=labels.get(f"{name}.product", ""),
        memory=round_memory(int(memory) * 2**20) if memory.isdecimal() else "",
        driver=f"driver {driver}" if driver else "",
        sharing=sharing,
    )
