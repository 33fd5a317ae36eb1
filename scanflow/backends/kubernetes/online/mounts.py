"""The objects that pods of a service mount besides their configuration: the application's files, and the token."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.serving import Serving
from scanflow.backends.kubernetes.code_configmap import build_code
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import build_labels
from scanflow.backends.kubernetes.online.closed_routes import format_tls_secret_name
from scanflow.backends.kubernetes.online.pods import get_namespace
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.service_change import Deployment
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import UsageError
from scanflow.wire import read_token


def build_mounted_objects(definition: ServiceSpec, image: PodImage, token: str | None) -> list[Manifest]:
    """Return the objects that a service's pods mount."""
    code = [] if image.code is None else [image.code.config_map]
    return code if token is None else [*code, build_token_secret(definition, token)]


def list_mounted_objects(definition: ServiceSpec) -> list[tuple[str, str]]:
    """Return the kinds and names of the objects that the pods of a service mount."""
    volumes = definition.details.get("volumes") or ()
    code = [("ConfigMap", str(volume["configMap"]["name"])) for volume in volumes if "configMap" in volume]
    token = [("Secret", format_token_secret_name(definition.workflow))] if definition.serving.auth else []
    tls = [] if definition.tls is None else [("Secret", format_tls_secret_name(definition.workflow))]
    return [*code, *token, *tls]


def rebuild_mounted_object(definition: ServiceSpec, kind: str, name: str) -> Manifest | None:
    """Rebuild a mounted object; None: its content is not on this machine, or has changed."""
    if kind == "Secret" and name == format_tls_secret_name(definition.workflow):
        return None
    folder = Path(definition.source or ".").parent
    try:
        if kind == "Secret":
            token = read_token(definition.serving.auth or "", folder)
            return None if token is None else build_token_secret(definition, token)
        namespace = get_namespace(definition)
        code = build_code(definition.app, definition.team, namespace, folder) if definition.source else None
    except (UsageError, OSError):
        return None
    return None if code is None or code.digest != definition.code else code.config_map


def read_service_token(deployment: Deployment) -> str | None:
    """Return the token that requests to a service must carry; None: it needs none."""
    return read_token((deployment.online.serving or Serving()).auth or "", Path(deployment.app.app_dir))


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
