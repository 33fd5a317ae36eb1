"""Build the objects of a service besides its pods: Services, Secret of the token, and ConfigMap of its state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scanflow.backends.kubernetes.environment.manifests import hash_manifests
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import build_labels
from scanflow.backends.kubernetes.online.pods import (
    build_pod_selector,
    build_revision_labels,
    format_object_name,
    get_namespace,
)
from scanflow.backends.kubernetes.online.traffic import GRPC_PORT, H2C, HTTP_PORT
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_spec import ServiceSpec
from scanflow.wire import Revision

STATE: Final = "scanflow.dev/state"
"""A label of the ConfigMap with a service's state; its value is ``service``."""

DOCUMENT: Final = "service.json"


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
        build_pod_selector(definition, current),
        (serving.port or HTTP_PORT, serving.grpc_port or GRPC_PORT),
    )


def build_revision_service(definition: ServiceSpec, revision: Revision) -> Manifest:
    """Return the Service that routes send a revision's share to."""
    name = format_object_name(definition.workflow, revision.id)
    labels = build_revision_labels(definition, revision)
    return _build_service(definition, name, labels, build_pod_selector(definition, revision), (HTTP_PORT, GRPC_PORT))


def build_token_secret(definition: ServiceSpec, token: str) -> Manifest:
    """Return the Secret with the token that requests must carry."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": format_token_secret_name(definition.workflow),
            "namespace": get_namespace(definition),
            "labels": build_labels(definition.app, definition.team, service=definition.workflow),
        },
        "type": "Opaque",
        "stringData": {"token": token},
    }


def format_token_secret_name(service: str) -> str:
    return f"service-{service}-token"


def compute_hashes(manifests: Iterable[Manifest]) -> dict[str, str]:
    """Return the hash of each manifest, by kind and name: versions of scanflow may write them differently."""
    return {get_kind_and_name(manifest): hash_manifests([manifest]) for manifest in manifests}


def get_kind_and_name(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def format_state_name(service: str) -> str:
    """Return the name of the ConfigMap with a service's state."""
    return f"service-{service}"


def build_state_map(state: DesiredState) -> Manifest:
    """Return the ConfigMap with a service's state."""
    definition = state.definition
    labels = build_labels(definition.app, definition.team, service=definition.workflow)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": format_state_name(state.name),
            "namespace": get_namespace(definition),
            "labels": {**labels, STATE: "service"},
        },
        "data": {DOCUMENT: state.model_dump_json()},
    }


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
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": get_namespace(definition), "labels": dict(labels)},
        "spec": {"type": "ClusterIP", "selector": dict(selector), "ports": service_ports},
    }
