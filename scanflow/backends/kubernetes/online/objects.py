"""What a service has beside its pods: Services, the Secret of its token, and the ConfigMap that it is kept in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scanflow.backends.kubernetes.environment.manifests import hash_of
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import labels_of, namespace_of
from scanflow.backends.kubernetes.online.pods import object_name, revision_labels, selected
from scanflow.backends.kubernetes.online.traffic import GRPC_PORT, H2C, HTTP_PORT
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_spec import ServiceSpec
from scanflow.wire import Revision

STATE: Final = "scanflow.dev/state"
"""A label of the ConfigMap that a service is kept in; its value is ``service``."""

DOCUMENT: Final = "service.json"


def stable_service(definition: ServiceSpec, *, canary: bool) -> Manifest:
    """Return what callers connect to where there is no Gateway: the current revision, or all that serve.

    Args:
        definition: Of the service.
        canary: Whether a canary has its share of these connections.
    """
    current = None if canary else definition.current
    serving = definition.serving
    return _service(
        definition,
        definition.workflow,
        labels_of(definition.app, definition.team, service=definition.workflow),
        selected(definition, current),
        (serving.port or HTTP_PORT, serving.grpc_port or GRPC_PORT),
    )


def revision_service(definition: ServiceSpec, revision: Revision) -> Manifest:
    """Return what routes send a revision's share to."""
    name = object_name(definition.workflow, revision.id)
    labels = revision_labels(definition, revision)
    return _service(definition, name, labels, selected(definition, revision), (HTTP_PORT, GRPC_PORT))


def token_secret(definition: ServiceSpec, token: str) -> Manifest:
    """Return the Secret of the token that requests must carry."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": token_secret_name(definition.workflow),
            "namespace": namespace_of(definition.app, definition.team),
            "labels": labels_of(definition.app, definition.team, service=definition.workflow),
        },
        "type": "Opaque",
        "stringData": {"token": token},
    }


def token_secret_name(service: str) -> str:
    return f"service-{service}-token"


def rendered(manifests: Iterable[Manifest]) -> dict[str, str]:
    """Return, for each object by kind and name, what tells it from another: versions of scanflow may write it each in
    its own way."""
    return {kind_and_name(one): hash_of([one]) for one in manifests}


def kind_and_name(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def state_name(service: str) -> str:
    """Return the name of the ConfigMap that a service is kept in."""
    return f"service-{service}"


def state_map(state: DesiredState) -> Manifest:
    """Return the ConfigMap that a service is kept in."""
    definition = state.definition
    labels = labels_of(definition.app, definition.team, service=definition.workflow)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": state_name(state.name),
            "namespace": namespace_of(definition.app, definition.team),
            "labels": {**labels, STATE: "service"},
        },
        "data": {DOCUMENT: state.model_dump_json()},
    }


def _service(
    definition: ServiceSpec, name: str, labels: Mapping[str, str], selector: Mapping[str, str], ports: tuple[int, int]
) -> Manifest:
    http, grpc = ports
    found = [{"name": "http", "port": http, "targetPort": HTTP_PORT, "protocol": "TCP", "appProtocol": "http"}]
    if definition.serving.grpc_port != 0:
        found.append({"name": "grpc", "port": grpc, "targetPort": GRPC_PORT, "protocol": "TCP", "appProtocol": H2C})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace_of(definition.app, definition.team), "labels": dict(labels)},
        "spec": {"type": "ClusterIP", "selector": dict(selector), "ports": found},
    }
