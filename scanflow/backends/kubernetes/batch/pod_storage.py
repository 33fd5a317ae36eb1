"""The storage of a pod's outputs: a claim, or an object store."""

from __future__ import annotations

from scanflow.backends.kubernetes.batch.folders import Folders
from scanflow.backends.kubernetes.batch.storage import ClaimStorage


def open_storage(folders: Folders) -> ClaimStorage:
    """Return the storage of a pod."""
    if not folders.store:
        return ClaimStorage(folders.outputs)
    from scanflow.backends.kubernetes.batch.object_storage import ObjectStorage

    return ObjectStorage.open(folders)
