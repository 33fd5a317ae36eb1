"""The serving engines, whose object creates the pods of a revision: Deployment, SeldonDeployment or InferenceService.

All create the same pods, with the same labels, behind the same Services: engines differ in this object, and in the name
of the Deployment that their controllers create. The number of
pods is not part of the manifest, since an autoscaler may own it. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import ServingEngine
from scanflow.backends.kubernetes.object_labels import REVISION, SERVICE
from scanflow.backends.kubernetes.online import instance_pods
from scanflow.backends.service_spec import ServiceSpec
from scanflow.instance_messages import Revision
from scanflow.names import MAX_NAME

_NO_ENGINE: Final = {"seldon.io/no-engine": "true"}
_KSERVE_CONTAINER: Final = "kserve-container"
"""The container that KServe treats as the model server."""

_KSERVE_ANNOTATIONS: Final = {
    "serving.kserve.io/deploymentMode": "RawDeployment",
    "serving.kserve.io/autoscalerClass": "external",  # this backend or its own autoscaler sets the number of pods
}
_STRATEGY: Final = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


_SELDON_PREDICTOR: Final = "default"
_SELDON_CONTAINER: Final = "instance"
"""Seldon names a SeldonDeployment's Deployment after its predictor and container."""


class ScalingTarget(NamedTuple):
    """The object whose ``scale`` sets the number of instances."""

    kind: str
    name: str
    scaler: str
    """The autoscaler's name, which is the revision's: Seldon removes one with the name of its Deployment."""

    @property
    def ref(self) -> Manifest:
        return {"apiVersion": KINDS[self.kind].api_version, "kind": self.kind, "name": self.name}


class ServingObject(NamedTuple):
    """The object through which an engine serves a revision."""

    kind: str
    container: str
    """The container name that the engine requires."""

    build: Callable[[str, str, dict[str, str], Manifest], Manifest]
    """Builds the object from name, namespace, labels and pod template, without the number of pods."""


def build_revision_object(
    engine: ServingObject, definition: ServiceSpec, revision: Revision, template: Manifest
) -> Manifest:
    """Return the engine's object, which creates a revision's pods from their ``template``."""
    name = instance_pods.format_object_name(definition.workflow, revision.id)
    labels = instance_pods.build_revision_labels(definition, revision)
    return engine.build(name, instance_pods.get_namespace(definition), labels, template)


def compute_scaling_target(engine: ServingEngine, name: str) -> ScalingTarget:
    """Return the scale target of a revision of that name: the Deployment that the engine's controller creates.

    Seldon's own ``scale`` has no selector, which autoscalers need. Seldon leaves the number of pods alone if
    ``spec.replicas`` is unset, KServe if the annotation ``autoscalerClass`` is ``external``; else each resets it.
    """
    if engine == "kserve":
        return ScalingTarget("Deployment", f"{name}-predictor", name)
    if engine == "seldon":
        deployment = f"{name}-{_SELDON_PREDICTOR}-0-{_SELDON_CONTAINER}"
        digest = hashlib.md5(deployment.encode(), usedforsecurity=False).hexdigest()
        return ScalingTarget("Deployment", deployment if len(deployment) <= MAX_NAME else f"seldon-{digest}", name)
    return ScalingTarget("Deployment", name, name)


def _build_deployment(name: str, namespace: str, labels: dict[str, str], template: Manifest) -> Manifest:
    """Return a Deployment, which every cluster has."""
    return build_manifest(
        "Deployment",
        {"name": name, "namespace": namespace, "labels": labels},
        spec={
            "selector": {"matchLabels": {label: labels[label] for label in (SERVICE, REVISION)}},
            "strategy": _STRATEGY,
            "revisionHistoryLimit": 1,
            "template": template,
        },
    )


def _build_seldon_deployment(name: str, namespace: str, labels: dict[str, str], template: Manifest) -> Manifest:
    """Return a SeldonDeployment (v1) with one predictor and no engine: the model server runs the whole graph."""
    container = template["spec"]["containers"][0]["name"]
    return build_manifest(
        "SeldonDeployment",
        {"name": name, "namespace": namespace, "labels": labels},
        spec={
            "protocol": "v2",
            "annotations": _NO_ENGINE,
            "predictors": [
                {
                    "name": _SELDON_PREDICTOR,
                    "annotations": {**_NO_ENGINE, **template["metadata"]["annotations"]},
                    "labels": template["metadata"]["labels"],
                    "graph": {
                        "name": container,
                        "type": "MODEL",
                        "endpoint": {"type": "REST", "httpPort": 8080, "grpcPort": 8081},
                    },
                    "componentSpecs": [{"metadata": template["metadata"], "spec": template["spec"]}],
                }
            ],
        },
    )


def _build_inference_service(name: str, namespace: str, labels: dict[str, str], template: Manifest) -> Manifest:
    """Return an InferenceService with a custom predictor container, in raw (standard) deployment mode: a Deployment
    and Services, without Knative."""
    return build_manifest(
        "InferenceService",
        {"name": name, "namespace": namespace, "labels": labels, "annotations": _KSERVE_ANNOTATIONS},
        spec={
            "predictor": {
                **template["spec"],
                "labels": template["metadata"]["labels"],
                "annotations": template["metadata"]["annotations"],
                "deploymentStrategy": _STRATEGY,
            }
        },
    )


ENGINES: Final[dict[ServingEngine, ServingObject]] = {
    "deployment": ServingObject("Deployment", instance_pods.CONTAINER, _build_deployment),
    "seldon": ServingObject("SeldonDeployment", instance_pods.CONTAINER, _build_seldon_deployment),
    "kserve": ServingObject("InferenceService", _KSERVE_CONTAINER, _build_inference_service),
}
