"""A revision as an InferenceService whose predictor is our own container, in raw (standard) deployment mode: a
Deployment and Services, without Knative. Pure."""

from __future__ import annotations

from typing import Final

from scanflow.backends.kubernetes.kinds import KINDS, Manifest

CONTAINER: Final = "kserve-container"
"""The one that KServe takes for the model server."""

_ANNOTATIONS: Final = {
    "serving.kserve.io/deploymentMode": "RawDeployment",
    "serving.kserve.io/autoscalerClass": "external",  # how many pods there are is said here, or by our own autoscaler
}


def manifest(name: str, namespace: str, labels: dict[str, str], template: Manifest) -> Manifest:
    """Return the object, without the number of its pods."""
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
