"""What pages show of a cluster is so: their blocks for one are run, in order with the others.

``SCANFLOW_KUBERNETES_REGISTRY`` names the registry; this checkout's code is put upon of the images that it has.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from tests.cluster.images import CHECKOUT, refresh
from tests.conftest import home_in
from tests.integration.test_task_pages import run_page
from tests.page_examples import PAGES, read_blocks
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

NAMESPACES = ("team-red", "scanflow-hello-data", "scanflow-first-default", "scanflow")
"""Those of the pages' applications. The first is one that an administrator made."""

ON_A_CLUSTER = [page for page in PAGES if any(block.on_cluster for block in read_blocks(page.read_text()))]


@pytest.fixture
def variables(cluster: Cluster, base_image: str) -> Iterator[Mapping[str, str]]:
    """What this cluster has in place of what the pages name: images that were pushed, and a storage class."""
    registry = os.environ["SCANFLOW_KUBERNETES_REGISTRY"]
    team = NAMESPACES[0]
    for name in ("server", "tracker"):  # as the page builds them, and the chart names them
        refresh(CHECKOUT, registry, f"scanflow/{name}", tag="0.1.0")
    remove_namespaces(cluster)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": "registry", "namespace": team},
            "stringData": {".dockerconfigjson": '{"auths": {}}'},
        }
    )
    try:
        yield {
            "KUBECONFIG": os.environ["KUBECONFIG"],
            "SCANFLOW_KUBERNETES_IMAGE": base_image,
            "SCANFLOW_KUBERNETES_AGENT_IMAGE": refresh(CHECKOUT, registry, "scanflow/agent"),
            "SCANFLOW_KUBERNETES_TRACKER_IMAGE": refresh(CHECKOUT, registry, "scanflow/tracker"),
            "SCANFLOW_KUBERNETES_STORAGE_CLASS": "local-path",
            "SCANFLOW_KUBERNETES_STORAGE_MODE": "ReadWriteOnce",
        }
    finally:
        remove_namespaces(cluster)


def remove_namespaces(cluster: Cluster) -> None:
    for name in NAMESPACES:
        cluster.delete("Namespace", name)
    for name in NAMESPACES:
        wait_until(partial(is_gone, cluster, name), f"{name} is gone", patience_s=120)


def is_gone(cluster: Cluster, namespace: str) -> bool:
    return cluster.get("Namespace", namespace) is None


@pytest.mark.parametrize("page", ON_A_CLUSTER, ids=[page.stem for page in ON_A_CLUSTER])
def test_a_page_does_on_a_cluster_what_it_says(page: Path, variables: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, home_in(Path(folder)):
        work = Path(folder) / "page"
        work.mkdir()
        (work / "deploy").symlink_to(CHECKOUT / "deploy")  # the chart
        assert not run_page(page, work, variables)
