"""What is wanted of a service that is deployed: from the application as it is written to what the cluster keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.online import pods
from scanflow.backends.kubernetes.online.drift import MADE_WITH, settings_of
from scanflow.backends.kubernetes.online.objects import token_secret_name
from scanflow.backends.kubernetes.placement import instance_placement
from scanflow.backends.kubernetes.pod_image import PodImage
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.service_change import Deployment
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec, scaling_of
from scanflow.errors import InvalidError
from scanflow.wire import ModelFiles, Node, Revision


def definition_of(
    deployment: Deployment,
    shape: Shape,
    nodes: tuple[Node, ...],
    image: PodImage,
    tracker: str | None,
    settings: KubernetesSettings,
) -> ServiceSpec:
    """Return what is wanted of a service, as its first deployment.

    Args:
        deployment: What was asked for.
        shape: Its instances, as the cluster can have them.
        nodes: Its graph, with files of this machine.
        image: What its pods run.
        tracker: Where they log, and fetch models from.
        settings: Of the cluster.
    """
    app, workflow = deployment.app, deployment.online
    serving = workflow.serving or Serving()
    if deployment.port is not None:
        serving = serving.model_copy(update={"port": deployment.port})
    details: dict[str, Any] = {
        "volumes": image.volumes,
        "mounts": image.mounts,
        "env": {} if tracker is None else {pods.TRACKER: tracker},
        "service_account": "scanflow-pod",
        "pull_secret": settings.pull_secret,
        "token_secret": token_secret_name(workflow.name) if serving.auth else None,
        MADE_WITH: settings_of(settings),
    }
    backup_of = [one.name for one in app.workflows if one.type == "online" and _backup(one) == workflow.name]
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
        revisions=(Revision(id="r1", nodes=nodes_in_pod(nodes, Path(app.app_dir))),),
        scaling=scaling_of(workflow),
        serving=serving,
        tracker_uri=None if app.tracker is None else app.tracker.uri,
        image=image.image,
        place=instance_placement(workflow.services, {}).get("nodeSelector", {}),
        aliases=tuple(backup_of),
        details=details,
    )


def _backup(workflow: Workflow) -> str | None:
    return (workflow.serving or Serving()).backup


def nodes_in_pod(nodes: tuple[Node, ...], app_dir: Path) -> tuple[Node, ...]:
    """Return nodes with their files where a pod has them.

    Raises:
        InvalidError: a file is not below the application's folder.
    """
    folder = app_dir.resolve()

    def place(node: Node) -> Node:
        model = None if node.model is None else ModelFiles(name=node.model.name, version=node.model.version, path="")
        if node.file is None:
            return replace(node, model=model)
        try:
            inside = Path(node.file).relative_to(folder)
        except ValueError as error:
            raise InvalidError(
                f"Service {node.name!r}: its file {node.file!r} is not below the application's folder {str(folder)!r}, "
                "which is all that pods get. Move it there."
            ) from error
        return replace(node, model=model, file=str(PurePosixPath(pods.APP_DIR, *inside.parts)))

    return tuple(map(place, nodes))


def given_of(definition: ServiceSpec) -> pods.Given:
    """Return what all pods of a service have, as it was noted when it was deployed."""
    details: Mapping[str, Any] = definition.details
    return pods.Given(
        image=definition.image or "",
        code=pods.MountedCode(details.get("volumes") or (), details.get("mounts") or ()),
        env=details.get("env") or {},
        service_account=details.get("service_account"),
        pull_secret=details.get("pull_secret"),
        token_secret=details.get("token_secret"),
    )
