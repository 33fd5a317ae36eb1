"""Claims of GPUs (dynamic resource allocation): their templates, and whether a cluster and its engines pass them on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from scanflow.app.resources import Resources
from scanflow.backends.kubernetes.api_errors import build_missing_kind_error
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.gpus import DevicePlugin, GpuRequest, build_gpu_request, explain_lack
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.errors import AccessDeniedError, UnsupportedError

LEAST_ARGO: Final = (3, 7)
"""Argo Workflows before it were built for a Kubernetes whose pods name their claims in another way: it is lost."""

_INSTEAD: Final = "Or ask a device plugin: SCANFLOW_KUBERNETES_GPU_REQUESTS=device-plugin."


def build_claim_templates(
    asking: Iterable[Resources], plugin: DevicePlugin, *, app: str, team: str, namespace: str
) -> list[Manifest]:
    """Return the ResourceClaimTemplates that pods name, one for those whose claims are equal."""
    requests = (build_gpu_request(resources, plugin) for resources in asking)
    claims = {request.claim.template: request.claim for request in requests if request and request.claim}
    return [
        build_manifest(
            "ResourceClaimTemplate",
            {"name": name, "namespace": namespace, "labels": build_labels(app, team)},
            spec={"spec": claim.spec},
        )
        for name, claim in claims.items()
    ]


def check_device_class(cluster: Cluster, plugin: DevicePlugin, resources: Resources, who: str) -> None:
    """Check that a cluster has what GPUs are claimed of.

    Raises:
        UnsupportedError: it lacks the API, or the device class.
    """
    request = build_gpu_request(resources, plugin)
    if request is None or request.claim is None:
        return
    if not cluster.has_kind("DeviceClass"):
        raise UnsupportedError(f"{who}: {build_missing_kind_error('DeviceClass')} {_INSTEAD}")
    name = request.claim.device_class
    try:
        classes = list_device_classes(cluster)
    except AccessDeniedError:  # as with rights in one namespace
        return
    if name not in classes:
        is_part = isinstance(resources.gpu, str)
        setting = "SCANFLOW_KUBERNETES_GPU_PART_CLASS" if is_part else "SCANFLOW_KUBERNETES_GPU_CLASS"
        raise UnsupportedError(
            f"{who}: the cluster has no device class {name!r} to claim GPUs of, but {', '.join(classes) or 'none'}. "
            f"Install a driver that has it, or name another: {setting}=NAME. {_INSTEAD}"
        )


def list_device_classes(cluster: Cluster) -> dict[str, str]:
    """Return the extended resource of each device class by its name; empty: it has none."""
    classes, _ = cluster.find("DeviceClass")
    return {entry["metadata"]["name"]: entry["spec"].get("extendedResourceName") or "" for entry in classes}


def check_engine(engine: str, resources: Resources, plugin: DevicePlugin, who: str, advice: str) -> None:
    """Refuse claims of pods whose engine loses them.

    Raises:
        UnsupportedError: GPUs would be claimed.
    """
    request = build_gpu_request(resources, plugin)
    if request is not None and request.claim is not None:
        raise UnsupportedError(
            f"{who}: {engine} makes its pods without their claims of GPUs, so they would run without a GPU or not at "
            f"all. {advice} {_INSTEAD}"
        )


def check_argo(cluster: Cluster, resources: Resources, plugin: DevicePlugin, who: str) -> None:
    """Refuse claims of steps where Argo is known to lose them.

    Raises:
        UnsupportedError: it is too old.
    """
    if not resources.gpu or plugin.mechanism != "resource-claims":
        return
    try:
        controllers, _ = cluster.find("Deployment", fields="metadata.name=workflow-controller")
    except AccessDeniedError:
        return
    for version in filter(None, map(read_controller_version, controllers)):
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST_ARGO:
            check_engine(f"Argo Workflows {version}", resources, plugin, who, "Upgrade it to 3.7 or newer.")


def read_controller_version(controller: Manifest) -> str:
    """Return the version of an engine from its Deployment's labels or image tag; empty: they do not say."""
    labels = controller["metadata"].get("labels") or {}
    image = str(controller["spec"]["template"]["spec"]["containers"][0].get("image", ""))
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    version = labels.get("app.kubernetes.io/version") or tag
    return str(version) if re.match(r"v?\d", version) else ""


def explain_cluster_lack(cluster: Cluster, request: GpuRequest, nodes: list[Manifest] | None) -> str:
    """Return why no node of a cluster can ever take a pod with a request; empty: one can, or it is not known, as where
    a device class grants an extended resource, which no node then counts."""
    lack = explain_lack(nodes or (), request)
    return "" if lack and is_claimed(cluster, request.resource) else lack


def is_claimed(cluster: Cluster, resource: str) -> bool:
    """Return whether a device class grants an extended resource."""
    try:
        return cluster.has_kind("DeviceClass") and resource in list_device_classes(cluster).values()
    except AccessDeniedError:
        return False
