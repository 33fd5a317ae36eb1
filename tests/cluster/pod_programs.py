"""Pods that run one program in an image, as steps do, for tests of images."""

from __future__ import annotations

from typing import Any

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.backends.kubernetes.pod_image import PodImage
from tests.waiting import wait_until

PATIENCE_S = 90.0


def pod(app: sf.Application, image: PodImage, program: str) -> Manifest:
    """A pod as steps are: no rights, and a root file system that cannot be written."""
    container: dict[str, Any] = {
        "name": "step",
        "image": image.image,
        "command": ["python", "-c", program],
        "resources": {"requests": {"cpu": "50m"}},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *image.mounts],
        "workingDir": "/app",
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *image.volumes],
    }
    metadata = {"generateName": "step-", "namespace": derive_namespace(app.name, app.team)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def run_pod(cluster: Cluster, app: sf.Application, image: PodImage, program: str) -> str:
    """Run a pod to its end, and return its log."""
    if image.code is not None:
        cluster.apply(image.code.config_map)
    metadata = cluster.create(pod(app, image, program))["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]

    def has_ended() -> bool:
        pod = cluster.get("Pod", name, namespace)
        assert pod is not None
        return pod["status"].get("phase") in {"Succeeded", "Failed"}

    wait_until(has_ended, f"the pod {name} had ended", patience_s=PATIENCE_S)
    return b"".join(cluster.log(name, namespace, container="step")).decode()
