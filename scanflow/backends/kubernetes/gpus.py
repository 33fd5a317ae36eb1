"""The GPUs that a pod asks for: what its device plugin calls them, and the nodes where they are that; or what its claim
of them says (dynamic resource allocation). Pure.

A plugin that offers a GPU in shares (time slicing, MPS), or its parts under the strategy ``single``, calls each of them
a GPU as well: a pod that asks for a whole one must not be placed there. NVIDIA's GPU feature discovery labels nodes
with how their GPUs are offered; a node without its labels counts as one with whole GPUs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from scanflow.accelerators.visible import HOLDER_VARIABLE, SHARE_VARIABLE
from scanflow.app.quantities import round_memory
from scanflow.app.resources import Resources
from scanflow.backends.kubernetes.kinds import Manifest, drop_empty
from scanflow.errors import UnsupportedError

Vendor = Literal["nvidia", "amd"]
Mechanism = Literal["device-plugin", "resource-claims"]
"""Whether a pod asks a device plugin for its GPUs, or claims them of a device class."""

SharesName = Literal["nvidia.com/gpu", "nvidia.com/gpu.shared"]
"""What NVIDIA's device plugin calls a share of a GPU; the second with its ``renameByDefault``."""

SHARES: Final[tuple[SharesName, ...]] = get_args(SharesName)

_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
_REPLICAS: Final = "nvidia.com/gpu.replicas"
_MEMORY: Final = "nvidia.com/gpu.memory"
"""In MiB, of each GPU of the node."""

PARTS_AS_GPUS: Final = "nvidia.com/gpu.slices.gi"
"""Nodes have it whose plugin calls the parts of a GPU GPUs (the MIG strategy ``single``)."""

CLAIM: Final = "gpu"
"""The name of a pod's claim, within the pod."""

_DRIVER: Final = "gpu.nvidia.com"
"""Whose attributes and capacities NVIDIA's devices have, as conditions on them name it."""

_STRATEGIES: Final = ("mps", "time-slicing")
_ROUNDING: Final = 1e-6
_SHARED_VARIABLES: Final = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""For who shares a GPU: TensorFlow and JAX take most of its memory at once, unless told."""

_HIDDEN: Final = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""For who asks for no GPU: NVIDIA's runtime shows all GPUs to images that set it to ``all``, as those with CUDA do."""


FindNodes: TypeAlias = Callable[[], list[Manifest] | None]
"""Lists all nodes; None: there is no right to."""


@dataclass(frozen=True, slots=True)
class DevicePlugin:
    """What grants GPUs to pods, and what it calls them."""

    vendor: Vendor = "nvidia"
    shares: SharesName = "nvidia.com/gpu"
    """The extended resource of a share of a GPU."""

    mechanism: Mechanism = "device-plugin"
    device_class: str = _DRIVER
    """The device class of whole GPUs that are claimed."""

    part_class: str = "mig.nvidia.com"
    """That of parts."""


class ResourceClaim(NamedTuple):
    """The devices that are claimed for one pod."""

    device_class: str
    number: int
    conditions: tuple[str, ...] = ()
    """What each of them must be, in CEL."""

    @property
    def spec(self) -> Manifest:
        """As of a ResourceClaim."""
        exactly: Manifest = {"deviceClassName": self.device_class, "allocationMode": "ExactCount", "count": self.number}
        if self.conditions:
            exactly["selectors"] = [{"cel": {"expression": condition}} for condition in self.conditions]
        return {"devices": {"requests": [{"name": CLAIM, "exactly": exactly}]}}

    @property
    def template(self) -> str:
        """The name of the ResourceClaimTemplate: equal claims of a namespace share it."""
        return f"scanflow-gpu-{hashlib.sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()[:10]}"


class GpuRequest(NamedTuple):
    """What the container of a pod asks for, and the nodes that have it."""

    resource: str
    """The extended resource: ``nvidia.com/gpu``."""

    number: int
    labels: tuple[Manifest, ...] = ()
    """The requirements on the labels of its node, as ``matchExpressions``."""

    share: float = 1.0
    claim: ResourceClaim | None = None
    """What it claims. None: it asks for the extended resource."""

    @property
    def limits(self) -> dict[str, str]:
        return {} if self.claim else {self.resource: str(self.number)}

    @property
    def claims(self) -> list[Manifest]:
        """The claims of the pod that its container uses."""
        return [{"name": CLAIM}] if self.claim else []

    @property
    def pod_claims(self) -> list[Manifest]:
        """The claims of the pod."""
        return [{"name": CLAIM, "resourceClaimTemplateName": self.claim.template}] if self.claim else []

    @property
    def tolerations(self) -> list[Manifest]:
        """Of what nodes with GPUs are tainted with: by convention their resource, whatever it is named there."""
        keys = dict.fromkeys((f"{self.resource.partition('/')[0]}/gpu", self.resource))
        return [{"key": key, "operator": "Exists"} for key in keys]


def build_gpu_request(resources: Resources, plugin: DevicePlugin) -> GpuRequest | None:
    """Return what a container asks for; None: no GPU.

    Raises:
        UnsupportedError: no device plugin grants that; the message says what to write.
    """
    gpu, memory = resources.gpu, resources.gpu_memory_bytes
    if not gpu:
        return None
    if plugin.mechanism == "resource-claims":
        return _build_claim_request(resources, plugin)
    if plugin.vendor == "amd":
        if isinstance(gpu, int) and memory is None:
            return GpuRequest("amd.com/gpu", gpu)
        raise UnsupportedError(
            f"resources.{resources.part_of_gpu}: AMD's device plugin grants whole GPUs, of any size. Write gpu=1, and "
            "choose nodes by their labels (affinity.node_selector)."
        )
    if isinstance(gpu, str):
        name = f"nvidia.com/mig-{gpu.replace('+', '.')}"  # as the plugin writes it
        alone = _require(f"{name}.sharing-strategy", "NotIn", *_STRATEGIES)
        return GpuRequest(name, 1, (alone, *_require_memory(f"{name}.memory", memory)))
    if isinstance(gpu, float):
        return _build_share(gpu, memory, plugin.shares)
    whole = (_require(_SHARING, "NotIn", *_STRATEGIES), _require(PARTS_AS_GPUS, "DoesNotExist"))
    return GpuRequest("nvidia.com/gpu", gpu, (*whole, *_require_memory(_MEMORY, memory)))


def _build_claim_request(resources: Resources, plugin: DevicePlugin) -> GpuRequest:
    gpu, memory = resources.gpu, resources.gpu_memory_bytes
    if isinstance(gpu, float):
        raise UnsupportedError(
            f"resources.{resources.part_of_gpu}: a claim grants whole GPUs, and parts. Write gpu=1, or ask a device "
            "plugin: SCANFLOW_KUBERNETES_GPU_REQUESTS=device-plugin."
        )
    if plugin.vendor == "amd" and (isinstance(gpu, str) or memory is not None):
        raise UnsupportedError(
            f"resources.{resources.part_of_gpu}: of AMD's GPUs whole ones are claimed, of any size. Write gpu=1."
        )
    conditions = [] if isinstance(gpu, int) else [f"device.attributes['{_DRIVER}'].profile == '{gpu}'"]
    if memory is not None:
        conditions.append(f"device.capacity['{_DRIVER}'].memory.compareTo(quantity('{memory}')) >= 0")
    number, device_class = (gpu, plugin.device_class) if isinstance(gpu, int) else (1, plugin.part_class)
    claim = ResourceClaim(device_class, number, tuple(conditions))
    return GpuRequest(f"{plugin.vendor}.com/gpu", number, claim=claim)


def check_gpus(plugin: DevicePlugin, find_nodes: FindNodes, resources: Resources, who: str) -> None:
    """Check that pods can have the GPUs that they ask for: shares only of nodes that offer them now, as whole GPUs may
    come with a node that is not there yet.

    Raises:
        UnsupportedError: they cannot.
    """
    try:
        request = build_gpu_request(resources, plugin)
    except UnsupportedError as error:
        raise UnsupportedError(f"{who}: the backend 'kubernetes' does not support {error}") from error
    nodes = find_nodes() if request is not None and request.share < 1 else None
    if request is not None and nodes is not None and (lack := explain_lack(nodes, request)):
        other = next(name for name in SHARES if name != plugin.shares)
        advice = (
            f"Name shares as the device plugin does: SCANFLOW_KUBERNETES_GPU_SHARES={other}"
            if not explain_lack(nodes, request._replace(resource=other))
            else "Have shares offered (time slicing or MPS of NVIDIA's device plugin), or write gpu=1."
        )
        raise UnsupportedError(f"{who}: no node offers the requested share of a GPU: {lack}. {advice}")


def build_gpu_variables(request: GpuRequest | None) -> list[Manifest]:
    """Return the environment variables of a container, by what it asks for."""
    variables = _HIDDEN if request is None else {HOLDER_VARIABLE: "pod"}
    if request is not None and request.share < 1:
        variables = {**variables, SHARE_VARIABLE: f"{request.share:g}", **_SHARED_VARIABLES}
    return [{"name": name, "value": value} for name, value in variables.items()]


def _build_share(share: float, memory: int | None, name: str) -> GpuRequest:
    parts = max(2, round(1 / share))
    if abs(parts * share - 1) > _ROUNDING * parts:
        raise UnsupportedError(
            f"resources.gpu={share:g}, a share: a device plugin cuts a GPU into equal parts. Write "
            f"gpu={1 / parts:.4g}, where nodes offer GPUs in {parts} shares."
        )
    if memory is not None:
        raise UnsupportedError(
            f"resources.gpu_memory={round_memory(memory)!r} of a share: the device plugin divides a GPU's memory "
            f"evenly with MPS, and not at all with time slicing. Remove gpu_memory."
        )
    labels = _require(_SHARING, "In", *_STRATEGIES), _require(_REPLICAS, "In", str(parts))
    return GpuRequest(name, 1, labels, share)


def _require_memory(label: str, memory: int | None) -> tuple[Manifest, ...]:
    return () if memory is None else (_require(label, "Gt", str(math.ceil(memory / 2**20) - 1)),)


def _require(label: str, operator: str, *values: str) -> Manifest:
    return {"key": label, "operator": operator, **({"values": list(values)} if values else {})}


def add_gpu_placement(placement: Mapping[str, object], request: GpuRequest | None) -> Manifest:
    """Return the fields of a pod's spec that place it, such as its affinity, with what its GPU requires."""
    if request is None:
        return dict(placement)
    spec = {**placement, "tolerations": request.tolerations, **drop_empty(resourceClaims=request.pod_claims)}
    if request.labels:
        terms = {"nodeSelectorTerms": [{"matchExpressions": list(request.labels)}]}
        affinity = placement.get("affinity") or {}
        assert isinstance(affinity, Mapping)
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}, **affinity}
    return spec


def list_tolerated(request: GpuRequest | None) -> list[str]:
    """Return the keys of the taints that a pod tolerates."""
    return [] if request is None else [toleration["key"] for toleration in request.tolerations]


def has_labels(node: Manifest, requirements: Iterable[Manifest]) -> bool:
    """Return whether a node meets requirements on its labels, as a scheduler does."""
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    return all(_meets(labels.get(rule["key"]), rule["operator"], rule.get("values", [])) for rule in requirements)


def _meets(value: str | None, operator: str, values: Sequence[str]) -> bool:
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "DoesNotExist":
        return value is None
    return value is not None and value.isdecimal() and int(value) > int(values[0])  # Gt


def count_gpus(node: Manifest, resource: str) -> int:
    """Return how many of an extended resource a node can grant to all pods together."""
    return int(node.get("status", {}).get("allocatable", {}).get(resource, 0))


def explain_lack(nodes: Collection[Manifest], request: GpuRequest) -> str:
    """Return why no node can ever take a pod with a request, as they are now; empty: one can, or it is not known, as of
    what is claimed."""
    if not nodes or request.claim:
        return ""
    offering = [node for node in nodes if count_gpus(node, request.resource)]
    suiting = [node for node in offering if has_labels(node, request.labels)]
    most = max((count_gpus(node, request.resource) for node in suiting), default=0)
    if most >= request.number:
        return ""
    demand = f"{request.number} of {request.resource}"
    if request.labels:
        demand += f" where {' and '.join(map(_format_requirement, request.labels))}"
    if most:
        return f"it asks for {demand}, and the node with the most has {most}"
    others = f"; {len(offering)} with {request.resource} are labelled otherwise" if offering else ""
    return f"it asks for {demand}, which no node has{others}"


def _format_requirement(rule: Manifest) -> str:
    values = ", ".join(rule.get("values", []))
    words = {
        "In": f"{rule['key']} is {values.replace(', ', ' or ')}",
        "NotIn": f"{rule['key']} is not {values.replace(', ', ' or ')}",
        "DoesNotExist": f"there is no {rule['key']}",
        "Gt": f"{rule['key']} is above {values}",
    }
    return words[rule["operator"]]
