"""The deployer's promises about runs, kept by Argo on a real cluster: with outputs on a claim, and in a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.deployer import Deployer, EmbeddedDeployer
from scanflow.settings import Settings
from scanflow.testing.deployer import APP, RunsContract
from tests.cluster.batch import batch_backend, make_store
from tests.conftest import home_in

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TEAM = f"t{os.getpid()}"


@pytest.fixture(scope="module", autouse=True)
def namespace(cluster: Cluster) -> Iterator[str]:
    """The namespace of the suite's application, removed at the end."""
    name = derive_namespace("contract", TEAM)
    yield name
    cluster.delete("Namespace", name)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_in(tmp_path_factory.mktemp("batch")) as folder:
        yield folder


class TestBatchOnArgo(RunsContract):
    team = TEAM
    scratch = "/workflow/"

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        folder = tmp_path / "app"
        folder.mkdir()
        path = folder / "contract_app.py"
        path.write_text(APP.replace('team="tests"', f'team="{self.team}"'), encoding="utf-8")
        return path

    @pytest.fixture
    def deployer(self, settings: Settings) -> Iterator[Deployer]:
        with batch_backend(settings) as backend:
            yield EmbeddedDeployer(settings, backend=backend)


STORE_TEAM = f"s{os.getpid()}"


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[dict[str, str]]:
    """The settings of the store, in the namespace of the suite's application, which is removed at the end."""
    namespace = derive_namespace("contract", STORE_TEAM)
    yield make_store(cluster, namespace)
    cluster.delete("Namespace", namespace)


class TestBatchInStoreOnArgo(TestBatchOnArgo):
    team = STORE_TEAM

    @pytest.fixture
    def deployer(self, settings: Settings, store: dict[str, str]) -> Iterator[Deployer]:
        with batch_backend(settings, **store) as backend:
            yield EmbeddedDeployer(settings, backend=backend)
