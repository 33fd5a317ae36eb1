"""Build a revision as a Deployment, which every cluster has. Pure."""

from __future__ import annotations

from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import REVISION, SERVICE

_STRATEGY: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def build_manifest(name: str, namespace: str, labels: dict[str, str], template: Manifest) -> Manifest:
    """Return the Deployment, without the number of pods."""
    return {
        "apiVersion": KINDS["Deployment"].api_version,
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {label: labels[label] for label in (SERVICE, REVISION)}},
            "strategy": _STRATEGY,
            "revisionHistoryLimit": 1,
            "template": template,
        },
    }
