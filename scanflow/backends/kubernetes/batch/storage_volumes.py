"""The volumes and variables with which pods have the outputs of their environment, on a claim or in a store. Pure."""

from __future__ import annotations

from typing import Any

from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.kinds import Manifest


def build_outputs_volume(claim: str, store: str | None, **fields: Any) -> Manifest:
    """Return the volume of outputs: the claim or, for those in a store, an empty folder that is filled from there."""
    if store is not None:
        return {"name": "outputs", "emptyDir": {}}
    return {"name": "outputs", "persistentVolumeClaim": {"claimName": claim, **fields}}


def build_store_variables(store: str | None) -> dict[str, str]:
    return {} if store is None else {pod_layout.STORE_VARIABLE: store}


def build_store_volumes(secret: str | None) -> list[Manifest]:
    """Return the volume of the Secret that a store is reached with: files, which steps' variables do not show."""
    if secret is None:
        return []
    return [{"name": "store", "secret": {"secretName": secret, "defaultMode": 0o440}}]


def build_store_mounts(secret: str | None) -> list[Manifest]:
    return [] if secret is None else [{"name": "store", "mountPath": str(pod_layout.STORE_SECRET), "readOnly": True}]
