"""Batch workflows of the cluster's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import pytest

from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.backends.port import Models

GIVEN: Final = {name: text for name, text in os.environ.items() if name.startswith("SCANFLOW_KUBERNETES_")}
"""What this cluster is like, as whoever runs the tests said it; tests of their own home see nothing of it."""


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
