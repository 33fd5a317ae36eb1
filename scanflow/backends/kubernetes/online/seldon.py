"""Build a revision as a SeldonDeployment (v1) with one predictor and no engine: the model server runs the whole graph.
Pure."""

from __future__ import annotations

from scanflow.backends.kubernetes.kinds import KINDS, Manifest

_NO_ENGINE = {"seldon.io/no-engine": "true"}


def build_manifest(name: str, namespace: str, labels: dict[str, str], template: Manifest) -> Manifest:
    """Return the SeldonDeployment, without the number of pods."""
    container = template["spec"]["containers"][0]["name"]
    return {
        "apiVersion": KINDS["SeldonDeployment"].api_version,
        "kind": "SeldonDeployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "protocol": "v2",
            "annotations": _NO_ENGINE,
            "predictors": [
                {
                    "name": "default",
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
    }
