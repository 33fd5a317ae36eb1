"""Every object that is kept as a golden file is taken by a real cluster, admission included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS
from scanflow.errors import UnsupportedError
from tests.manifests import FOLDER

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"scanflow-golden-{os.getpid()}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    cluster.delete("Namespace", name)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_cluster_takes_it(cluster: Cluster, namespace: str, path: Path) -> None:
    missing: list[str] = []
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        manifest: dict[str, Any] = document
        if "kind" not in manifest or "name" not in manifest.get("metadata", {}):
            continue  # a part of an object, or one that is named when it is made
        if KINDS[manifest["kind"]].namespaced:
            manifest["metadata"]["namespace"] = namespace
        try:
            # An account is made, since admission looks up the one that a pod names.
            cluster.apply(manifest, dry_run=manifest["kind"] != "ServiceAccount")
        except UnsupportedError as error:
            missing.append(str(error))
    if missing:
        pytest.skip(missing[0])
