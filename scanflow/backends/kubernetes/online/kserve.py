"""Build a revision as an InferenceService with a custom predictor container, in raw (standard) deployment mode: a
Deployment and Services, without Knative. Pure."""

from __future__ import annotations

from typing import Final

from scanflow.backends.kubernetes.kinds import KINDS, Manifest

CONTAINER: Final = "kserve-container"
"""The container that KServe treats as the model server."""

_ANNOTATIONS: Final = {
    "serving.kserve.io/deploymentMode": "RawDeployment",
    "serving.kserve.io/autoscalerClass": "external",  # this backend or its own autoscaler sets the number of pods
}


def build_manifest(name: str, namespace: str, labels: dict[str, str], template: Manifest) -> Manifest:
    """Return the InferenceService, without the number of pods."""
    return {
        "apiVersion": KINDS["InferenceService"].api_version,
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": _ANNOTATIONS},
        "spec": {
            "predictor": {
                **template["spec"],
                "labels": template["metadata"]["labels"],
                "annotations": template["metadata"]["annotations"],
                "deploymentStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            }
        },
    }
