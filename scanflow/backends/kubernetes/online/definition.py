"""Build the spec of a deployed service, which the cluster stores, from its application."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.online import pods
from scanflow.backends.kubernetes.online.closed_routes import build_pod_tls
from scanflow.backends.kubernetes.online.mounts import format_token_secret_name
from scanflow.backends.kubernetes.online.render import DEPLOYED_SETTINGS, extract_settings
from scanflow.backends.kubernetes.placement import build_instance_placement
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.service_change import Deployment
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec, find_scaling
from scanflow.errors import InvalidError
from scanflow.wire import ModelFiles, Node, Revision


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
        pods.NAMESPACE: settings.derive_namespace(app.name, app.team),
        "volumes": image.volumes,
        "mounts": image.mounts,
        "env": {} if tracker is None else {pods.TRACKER: tracker},
        "service_account": "scanflow-pod",
        "pull_secret": settings.pull_secret,
        "token_secret": format_token_secret_name(workflow.name) if serving.auth else None,
        DEPLOYED_SETTINGS: extract_settings(settings),
    }
    aliases = [other.name for other in app.workflows if other.type == "online" and _get_backup(other) == workflow.name]
    return ServiceSpec(
        app=app.name,
        team=app.team,
        workflow=workflow.name,
        source=None if deployment.source is None else str(deployment.source),
        app_dir=pods.APP_DIR,
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
        tls=None if serving.clients is None else build_pod_tls(details[pods.NAMESPACE], workflow.name),
        details=details,
    )


def _get_backup(workflow: Workflow) -> str | None:
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
        return replace(node, model=model, file=str(PurePosixPath(pods.APP_DIR, *relative.parts)))

    return tuple(map(map_node, nodes))
