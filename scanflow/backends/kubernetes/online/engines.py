"""What makes the pods of a revision: a Deployment, a SeldonDeployment or an InferenceService.

All have the same pods, found by their labels, and the same Services before them, so that nothing else differs between
engines. How many pods there are is set apart from the rest: an autoscaler may own that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import namespace_of, selector
from scanflow.backends.kubernetes.online import deployment, kserve, pods, seldon
from scanflow.backends.kubernetes.settings import ServingEngine
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import UnsupportedError
from scanflow.wire import Revision


class ServingObject(NamedTuple):
    """How one engine is spoken to."""

    kind: str
    container: str
    """The name that it wants the container to have."""

    manifest: Callable[[str, str, dict[str, str], Manifest], Manifest]
    """From name, namespace, labels and pod template to its object, without the number of pods."""


ENGINES: Final[dict[ServingEngine, ServingObject]] = {
    "deployment": ServingObject("Deployment", pods.CONTAINER, deployment.manifest),
    "seldon": ServingObject("SeldonDeployment", pods.CONTAINER, seldon.manifest),
    "kserve": ServingObject("InferenceService", kserve.CONTAINER, kserve.manifest),
}


def has_kind(cluster: Cluster, kind: str) -> bool:
    """Say whether a cluster knows a kind."""
    try:
        cluster.find(kind, "default", labels=selector(service="none"))
    except UnsupportedError:
        return False
    return True


def revision_object(engine: ServingObject, definition: ServiceSpec, revision: Revision, given: pods.Given) -> Manifest:
    """Return the object that makes a revision's pods."""
    template = pods.pod_template(definition, revision, given, container=engine.container)
    name = pods.object_name(definition.workflow, revision.id)
    labels = pods.revision_labels(definition, revision)
    return engine.manifest(name, namespace_of(definition.app, definition.team), labels, template)
