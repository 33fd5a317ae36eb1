"""Batch workflows of the cluster's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.backend_port import Models

GIVEN: Final = {name: text for name, text in os.environ.items() if name.startswith("SCANFLOW_KUBERNETES_")}
"""What this cluster is like, as whoever runs the tests said it; tests of their own home see nothing of it."""

STORE: Final = os.environ.get("TEST_S3", "http://s3.argo:9000")
"""An S3-compatible store that pods reach, which takes any key: the lab's add-on argo has one."""


def make_store(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Make the Secret of the store in a namespace, which is made for it; return the settings with which it is used."""
    variables = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": STORE}
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    metadata = {"name": "store", "namespace": namespace}
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": variables})
    return {"SCANFLOW_KUBERNETES_OUTPUTS": "s3://outputs/tests", "SCANFLOW_KUBERNETES_OUTPUTS_SECRET": "store"}


@contextmanager
def batch_backend(settings: Settings, **more: str) -> Iterator[Kubernetes]:
    """Lend the backend, for a cluster whose volumes are mounted by one node.

    ``more`` are variables of the environment: ``SCANFLOW_KUBERNETES_PENDING_S="5"``. Steps need no models.
    """
    settled = {"SCANFLOW_KUBERNETES_STORAGE_MODE": "ReadWriteOnce", "SCANFLOW_KUBERNETES_STORAGE_SIZE": "1Gi"}
    with pytest.MonkeyPatch.context() as patch:
        for name, text in {**settled, **GIVEN, **more}.items():
            patch.setenv(name, text)
        backend = Kubernetes(settings, lambda _: cast("Models", None))
        yield backend
        backend.cluster.close()
