"""The serving engines, whose object creates the pods of a revision: Deployment, SeldonDeployment or InferenceService.

All create the same pods, with the same labels, behind the same Services: engines differ in nothing else. The number of
pods is not part of the manifest, since an autoscaler may own it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.online import deployment, kserve, pods, seldon
from scanflow.backends.kubernetes.settings import ServingEngine
from scanflow.backends.service_spec import ServiceSpec
from scanflow.wire import Revision


class ServingObject(NamedTuple):
    """The object through which an engine serves a revision."""

    kind: str
    container: str
    """The container name that the engine requires."""

    build_manifest: Callable[[str, str, dict[str, str], Manifest], Manifest]
    """Builds the object from name, namespace, labels and pod template, without the number of pods."""


ENGINES: Final[dict[ServingEngine, ServingObject]] = {
    "deployment": ServingObject("Deployment", pods.CONTAINER, deployment.build_manifest),
    "seldon": ServingObject("SeldonDeployment", pods.CONTAINER, seldon.build_manifest),
    "kserve": ServingObject("InferenceService", kserve.CONTAINER, kserve.build_manifest),
}


def build_revision_object(
    engine: ServingObject, definition: ServiceSpec, revision: Revision, options: pods.PodOptions
) -> Manifest:
    """Return the engine's object, which creates a revision's pods."""
    template = pods.build_pod_template(definition, revision, options, container=engine.container)
    name = pods.format_object_name(definition.workflow, revision.id)
    labels = pods.build_revision_labels(definition, revision)
    return engine.build_manifest(name, pods.get_namespace(definition), labels, template)
