"""Build what a deployment stores, from its application: the spec of a service, and the objects that its pods
mount besides their configuration, which are the application's files and the token."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.code_configmap import build_code
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.kubernetes.online import instance_pods
from scanflow.backends.kubernetes.online.closed_routes import build_pod_tls, format_tls_secret_name
from scanflow.backends.kubernetes.online.render import DEPLOYED_SETTINGS, extract_settings
from scanflow.backends.kubernetes.placement import build_instance_placement
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.service_change import Deployment
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec, find_scaling
from scanflow.errors import InvalidError, UsageError
from scanflow.instance_messages import ModelFiles, Node, Revision, read_token


def build_definition(
    deployment: Deployment,
    shape: Shape,
    nodes: tuple[Node, ...],
    image: PodImage,
    tracker: str | None,
    settings: KubernetesSettings,
) -> ServiceSpec:
    """Return the spec of a service, as of its first deployment.

    Args:
        deployment: The deployment request.
        shape: Its instances, as checked against the cluster.
        nodes: Its graph, with file paths on this machine.
        image: The image of its pods.
        tracker: The tracking URI of its pods.
        settings: The cluster's.
    """
    app, workflow = deployment.app, deployment.online
    serving = workflow.serving or Serving()
    if deployment.port is not None:
        serving = serving.model_copy(update={"port": deployment.port})
    details: dict[str, Any] = {
        instance_pods.NAMESPACE: settings.derive_namespace(app.name, app.team),
        "volumes": image.volumes,
        "mounts": image.mounts,
        "env": {} if tracker is None else {instance_pods.TRACKER: tracker},
        "service_account": "scanflow-pod",
        "pull_secret": settings.pull_secret,
        "token_secret": format_token_secret_name(workflow.name) if serving.auth else None,
        "device_plugin": asdict(settings.device_plugin),
        DEPLOYED_SETTINGS: extract_settings(settings),
    }
    aliases = [other.name for other in app.workflows if other.type == "online" and _find_backup(other) == workflow.name]
    return ServiceSpec(
        app=app.name,
        team=app.team,
        workflow=workflow.name,
        source=None if deployment.source is None else str(deployment.source),
        app_dir=instance_pods.APP_DIR,
        code="" if image.code is None else image.code.digest,
        deployment=1,
        serves=1,
        shape=shape,
        revisions=(Revision(id="r1", nodes=map_nodes_to_pod(nodes, Path(app.app_dir))),),
        scaling=find_scaling(workflow),
        serving=serving,
        tracker_uri=None if app.tracker is None else app.tracker.uri,
        image=image.image,
        place=build_instance_placement(workflow.services, {}).get("nodeSelector", {}),
        aliases=tuple(aliases),
        tls=None if serving.clients is None else build_pod_tls(details[instance_pods.NAMESPACE], workflow.name),
        details=details,
    )


def build_desired_state(before: DesiredState | None, spec: ServiceSpec, *, at: float) -> DesiredState:
    """Return the desired state of a service that is deployed as a spec at a time, in seconds since the epoch.

    ``before``: what it was; None: it is new.
    """
    if before is not None and not before.deleted and before.settled > 0:
        return before.redeploy(spec)
    generation = 1 if before is None else before.generation + 1
    return DesiredState(
        name=spec.workflow,
        host="",
        port=spec.serving.port or 8080,
        created=at if before is None else before.created,
        generation=generation,
        definition=spec.with_generation(generation),
    )


def _find_backup(workflow: Workflow) -> str | None:
    return (workflow.serving or Serving()).backup


def map_nodes_to_pod(nodes: tuple[Node, ...], app_dir: Path) -> tuple[Node, ...]:
    """Return nodes with the paths that their files have in a pod.

    Raises:
        InvalidError: a file is not below the application's folder.
    """
    folder = app_dir.resolve()

    def map_node(node: Node) -> Node:
        model = None if node.model is None else ModelFiles(name=node.model.name, version=node.model.version, path="")
        if node.file is None:
            return replace(node, model=model)
        try:
            relative = Path(node.file).relative_to(folder)
        except ValueError as error:
            raise InvalidError(
                f"Service {node.name!r}: its file {node.file!r} is outside the application's folder {str(folder)!r}, "
                "and pods receive only that folder. Move it there."
            ) from error
        return replace(node, model=model, file=str(PurePosixPath(instance_pods.APP_DIR, *relative.parts)))

    return tuple(map(map_node, nodes))


def build_mounted_objects(definition: ServiceSpec, image: PodImage, token: str | None) -> list[Manifest]:
    """Return the objects that a service's pods mount, or claim GPUs by."""
    code = [] if image.code is None else [image.code.config_map]
    objects = [*code, *instance_pods.build_instance_claims(definition)]
    return objects if token is None else [*objects, build_token_secret(definition, token)]


def list_mounted_objects(definition: ServiceSpec) -> list[tuple[str, str]]:
    """Return the kinds and names of the objects that the pods of a service mount, or claim GPUs by."""
    volumes = definition.details.get("volumes") or ()
    code = [("ConfigMap", str(volume["configMap"]["name"])) for volume in volumes if "configMap" in volume]
    token = [("Secret", format_token_secret_name(definition.workflow))] if definition.serving.auth else []
    tls = [] if definition.tls is None else [("Secret", format_tls_secret_name(definition.workflow))]
    claims = [(claim["kind"], claim["metadata"]["name"]) for claim in instance_pods.build_instance_claims(definition)]
    return [*code, *token, *tls, *claims]


def rebuild_mounted_object(definition: ServiceSpec, kind: str, name: str) -> Manifest | None:
    """Rebuild a mounted object; None: its content is not on this machine, or has changed."""
    if kind == "Secret" and name == format_tls_secret_name(definition.workflow):
        return None
    if kind == "ResourceClaimTemplate":
        return next(iter(instance_pods.build_instance_claims(definition)), None)
    folder = Path(definition.source or ".").parent
    try:
        if kind == "Secret":
            token = read_token(definition.serving.auth or "", folder)
            return None if token is None else build_token_secret(definition, token)
        namespace = instance_pods.get_namespace(definition)
        code = build_code(definition.app, definition.team, namespace, folder) if definition.source else None
    except (UsageError, OSError):
        return None
    return None if code is None or code.digest != definition.code else code.config_map


def read_service_token(deployment: Deployment) -> str | None:
    """Return the token that requests to a service must carry; None: it needs none."""
    return read_token((deployment.online.serving or Serving()).auth or "", Path(deployment.app.app_dir))


def build_token_secret(definition: ServiceSpec, token: str) -> Manifest:
    """Return the Secret with the token that requests must carry."""
    return build_manifest(
        "Secret",
        {
            "name": format_token_secret_name(definition.workflow),
            "namespace": instance_pods.get_namespace(definition),
            "labels": build_labels(definition.app, definition.team, service=definition.workflow),
        },
        type="Opaque",
        stringData={"token": token},
    )


def format_token_secret_name(service: str) -> str:
    return f"service-{service}-token"
