"""What the pods of a service mount beside what they are told: the application's files, and the token of requests."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.serving import Serving
from scanflow.backends.kubernetes.code import code_of
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import namespace_of
from scanflow.backends.kubernetes.online.objects import token_secret, token_secret_name
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.service_change import Deployment
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import UsageError
from scanflow.wire import read_token


def mounted_objects(made: ServiceSpec, image: PodImage, token: str | None) -> list[Manifest]:
    """Return the objects that a service's pods mount."""
    code = [] if image.code is None else [image.code.config_map]
    return code if token is None else [*code, token_secret(made, token)]


def mounted_of(definition: ServiceSpec) -> list[tuple[str, str]]:
    """Return the kinds and names of the objects that the pods of a service mount."""
    volumes = definition.details.get("volumes") or ()
    code = [("ConfigMap", str(volume["configMap"]["name"])) for volume in volumes if "configMap" in volume]
    return [*code, ("Secret", token_secret_name(definition.workflow))] if definition.serving.auth else code


def mounted_again(definition: ServiceSpec, kind: str) -> Manifest | None:
    """Return one of these objects as it was made; None: what is in it is not on this machine, or not as it was."""
    folder = Path(definition.source or ".").parent
    try:
        if kind == "Secret":
            token = read_token(definition.serving.auth or "", folder)
            return None if token is None else token_secret(definition, token)
        namespace = namespace_of(definition.app, definition.team)
        found = code_of(definition.app, definition.team, namespace, folder) if definition.source else None
    except (UsageError, OSError):
        return None
    return None if found is None or found.digest != definition.code else found.config_map


def token_of(deployment: Deployment) -> str | None:
    """Return the token that a service's requests must carry; None: none."""
    return read_token((deployment.online.serving or Serving()).auth or "", Path(deployment.app.app_dir))
