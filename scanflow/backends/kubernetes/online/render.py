"""Render a service: all manifests of its revisions, their hashes, and the instances that each should have. Pure.

Who applies them, waits for them, or compares them with the cluster takes the record that :func:`render` returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scanflow.backends.kubernetes.environment.manifests import hash_manifests
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.kubernetes.online import instance_pods, observed_objects
from scanflow.backends.kubernetes.online.autoscaler_objects import build_autoscaler
from scanflow.backends.kubernetes.online.closed_routes import build_closed_routes
from scanflow.backends.kubernetes.online.engines import (
    ENGINES,
    ScalingTarget,
    build_revision_object,
    compute_scaling_target,
)
from scanflow.backends.kubernetes.online.traffic import GRPC_PORT, H2C, HTTP_PORT, Mirroring, Routing, build_routes
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import UnsupportedError
from scanflow.instance_messages import Revision

DEPLOYED_SETTINGS: Final = "made_with"
"""The key in a service's details of the settings that its objects depend on."""


@dataclass(frozen=True, slots=True)
class RenderedRevision:
    """A revision's manifests, and how many instances it should have."""

    id: str
    config_map: Manifest
    service: Manifest
    workload: Manifest
    """The engine's object, which creates the pods."""

    scaler: Manifest | None
    """The autoscaler; None: the number of instances is exact."""

    template: str
    """The hash of the pods' template."""

    instances: int
    target: ScalingTarget
    """The object whose ``scale`` sets the number of its pods."""

    @property
    def namespace(self) -> str:
        return str(self.workload["metadata"]["namespace"])

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """All but the autoscaler, in the order in which they are applied."""
        return self.config_map, self.service, self.workload

    @property
    def min_instances(self) -> int:
        """How many instances a rollout waits for: all, or one if an autoscaler decides."""
        return self.instances if self.scaler is None else min(1, self.instances)

    def is_own_pod(self, pod: Manifest) -> bool:
        """Return whether a pod is of this revision and matches its template."""
        return (
            observed_objects.get_revision(pod) == self.id
            and observed_objects.get_pod_template_hash(pod) == self.template
        )


@dataclass(frozen=True, slots=True)
class Rendering:
    """All manifests of a service, besides what its pods mount and the ConfigMap of its state."""

    revisions: tuple[RenderedRevision, ...]
    """The current one first."""

    routes: tuple[Manifest, ...]
    """The Service that callers connect to, and the Gateway's routes."""

    @property
    def workloads(self) -> list[Manifest]:
        """The objects of all revisions, and the autoscaler."""
        objects = [manifest for revision in self.revisions for manifest in revision.manifests]
        return [*objects, *(revision.scaler for revision in self.revisions if revision.scaler is not None)]

    @property
    def manifests(self) -> list[Manifest]:
        return [*self.workloads, *self.routes]

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of each manifest, by kind and name: versions of scanflow may write them differently."""
        return {get_kind_and_name(manifest): hash_manifests([manifest]) for manifest in self.manifests}


def render(definition: ServiceSpec, settings: KubernetesSettings, mirroring: Mirroring = "filter") -> Rendering:
    """Return the manifests of a service. ``mirroring``: how its Gateway mirrors requests to a shadow.

    Raises:
        UnsupportedError: a field cannot be honoured; it is named.
    """
    revisions = tuple(_render_revision(definition, revision, settings) for revision in definition.revisions)
    return Rendering(revisions, render_routes(definition, settings, mirroring))


def render_routes(
    definition: ServiceSpec,
    settings: KubernetesSettings,
    mirroring: Mirroring = "filter",
    *,
    backup: ServiceSpec | None = None,
) -> tuple[Manifest, ...]:
    """Return the Service and the routes of a service, by the weights of its revisions; with a ``backup``, to that."""
    canary = definition.canary
    spread = settings.gateway is None and canary is not None and not canary.shadow
    service = build_stable_service(definition, canary=spread)
    if backup is not None:
        service["spec"]["selector"] = instance_pods.build_pod_selector(backup, backup.current)
    if settings.gateway is None:
        return (service,)
    routing = _build_routing(definition, settings, settings.gateway, mirroring, backup)
    grpc = definition.serving.grpc_port != 0
    if definition.tls is not None:
        return (service, *build_closed_routes(routing, grpc=grpc))
    return (service, *(route for route in build_routes(routing) if route["kind"] != "GRPCRoute" or grpc))


def build_stable_service(definition: ServiceSpec, *, canary: bool) -> Manifest:
    """Return the Service that callers connect to without a Gateway: it selects the current revision, or all.

    Args:
        definition: The service's.
        canary: Whether a canary gets its share of these connections.
    """
    current = None if canary else definition.current
    serving = definition.serving
    return _build_service(
        definition,
        definition.workflow,
        build_labels(definition.app, definition.team, service=definition.workflow),
        instance_pods.build_pod_selector(definition, current),
        (serving.port or HTTP_PORT, serving.grpc_port or GRPC_PORT),
    )


def build_revision_service(definition: ServiceSpec, revision: Revision) -> Manifest:
    """Return the Service that routes send a revision's share to."""
    name = instance_pods.format_object_name(definition.workflow, revision.id)
    labels = instance_pods.build_revision_labels(definition, revision)
    selector = instance_pods.build_pod_selector(definition, revision)
    return _build_service(definition, name, labels, selector, (HTTP_PORT, GRPC_PORT))


def extract_settings(settings: KubernetesSettings) -> dict[str, Any]:
    """Return the settings that a service's objects depend on."""
    return {"serving": settings.serving, "gateway": settings.gateway, "domain": settings.gateway_domain}


def get_kind_and_name(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def _render_revision(definition: ServiceSpec, revision: Revision, settings: KubernetesSettings) -> RenderedRevision:
    engine, options = ENGINES[settings.serving], instance_pods.build_pod_options(definition)
    template = instance_pods.build_pod_template(definition, revision, options, container=engine.container)
    target = compute_scaling_target(
        settings.serving, instance_pods.format_object_name(definition.workflow, revision.id)
    )
    is_scaled = definition.scaling is not None and revision is definition.current
    return RenderedRevision(
        id=revision.id,
        config_map=instance_pods.build_config_map(definition, revision, options),
        service=build_revision_service(definition, revision),
        workload=build_revision_object(engine, definition, revision, template),
        scaler=_build_autoscaler(definition, target, settings) if is_scaled else None,
        template=instance_pods.get_template_hash(template),
        instances=_count_instances(definition, revision, settings.gateway),
        target=target,
    )


def _build_autoscaler(definition: ServiceSpec, target: ScalingTarget, settings: KubernetesSettings) -> Manifest:
    assert definition.scaling is not None
    return build_autoscaler(
        definition.scaling,
        target,
        app=definition.app,
        team=definition.team,
        namespace=instance_pods.get_namespace(definition),
        service=definition.workflow,
        shape=definition.shape,
        settings=settings,
    )


def _count_instances(definition: ServiceSpec, revision: Revision, gateway: str | None) -> int:
    """Return how many instances a revision should have.

    Raises:
        UnsupportedError: a shadow without a Gateway, which would mirror requests.
    """
    count = definition.shape.instances
    if revision.id == definition.current.id:
        return count
    if revision.shadow:
        if definition.tls is not None:
            raise UnsupportedError(
                "The backend 'kubernetes' does not support a shadow of a service with Serving.clients: its Gateway "
                "passes no certificates to copies. Give the version a share: --weight 0.1"
            )
        if gateway is None:
            raise UnsupportedError(
                "A shadow needs a Gateway, which copies the requests: set SCANFLOW_KUBERNETES_GATEWAY. Or give the "
                "version a share: --weight 0.1"
            )
        return max(count, 1)
    return _count_canary_instances(count, revision.weight, has_gateway=gateway is not None)


def _count_canary_instances(instances: int, weight: float, *, has_gateway: bool) -> int:
    """Return how many instances a canary needs beside ``instances`` of the current revision for its share: of the
    requests, which a Gateway splits, or else of evenly spread connections, to the nearest whole instance."""
    if has_gateway:
        return max(1, math.ceil(round(instances * weight, 6)))
    if weight >= 1:
        return max(instances, 1)
    return max(1, round(weight * max(instances, 1) / (1 - weight)))


def _build_routing(
    definition: ServiceSpec,
    settings: KubernetesSettings,
    gateway: str,
    mirroring: Mirroring,
    backup: ServiceSpec | None,
) -> Routing:
    name = definition.workflow
    shares = {
        instance_pods.format_object_name(name, revision.id): revision.weight
        for revision in definition.revisions
        if not revision.shadow
    }
    shadow = next(
        (instance_pods.format_object_name(name, revision.id) for revision in definition.revisions if revision.shadow),
        None,
    )
    if backup is not None:
        shares, shadow = {instance_pods.format_object_name(backup.workflow, backup.current.id): 1.0}, None
    return Routing(
        definition.app,
        definition.team,
        instance_pods.get_namespace(definition),
        name,
        gateway,
        shares,
        shadow,
        mirroring,
        settings.gateway_domain,
    )


def _build_service(
    definition: ServiceSpec, name: str, labels: Mapping[str, str], selector: Mapping[str, str], ports: tuple[int, int]
) -> Manifest:
    http, grpc = ports
    secure = None if definition.tls is None else "https"
    service_ports = [
        {"name": "http", "port": http, "targetPort": HTTP_PORT, "protocol": "TCP", "appProtocol": secure or "http"}
    ]
    if definition.serving.grpc_port != 0:
        service_ports.append(
            {"name": "grpc", "port": grpc, "targetPort": GRPC_PORT, "protocol": "TCP", "appProtocol": secure or H2C}
        )
    return build_manifest(
        "Service",
        {"name": name, "namespace": instance_pods.get_namespace(definition), "labels": dict(labels)},
        spec={"type": "ClusterIP", "selector": dict(selector), "ports": service_ports},
    )
