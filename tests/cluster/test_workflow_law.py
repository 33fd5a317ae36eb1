"""A workflow is its calls on a real cluster, too: drawn programs, each step in a pod of its own."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.laws import operations, workflow_programs
from tests.laws.strategies import draw_programs
from tests.laws.strategies import programs as draw_program
from tests.laws.workflow_programs import build_application, find_differences

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
TEAM = f"t{os.getpid()}"
N_PROGRAMS = 15


@pytest.fixture(autouse=True)
def namespace(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.delete("Namespace", derive_namespace("law", TEAM))


@pytest.fixture
def shipped_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The functions and values as a module of the application's folder, which pods get."""
    shutil.copy(operations.__file__, tmp_path / "law_operations.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("law_operations")
    for name in vars(operations):
        if not name.startswith("__"):
            monkeypatch.setattr(operations, name, getattr(module, name))
    monkeypatch.setattr(workflow_programs, "is_same", module.is_same)
    return module


def test_programs_on_a_cluster_are_their_calls(settings: Settings, tmp_path: Path, shipped_module: ModuleType) -> None:
    drawn = draw_programs(N_PROGRAMS, 700, draw_program(max_calls=2))
    app = build_application(drawn)
    nodes = app.workflows[0].nodes
    gather = (
        sf.step(shipped_module.options)
        .options(name="gather")
        .bind(**{node.name.replace("-", "_"): node for node in nodes})
    )
    workflow = sf.Workflow(name="programs", nodes=[*nodes, gather])
    with batch_backend(settings) as backend:
        deployer = EmbeddedDeployer(settings, backend=backend)
        run = deployer.run(RunRequest(app.replace(team=TEAM, app_dir=str(tmp_path), workflows=(workflow,))))
        assert run.state == "succeeded", [(task.task, task.failure) for task in run.tasks if task.failure]
        gathered = deployer.outputs(run.name, "gather")["result"]  # type: ignore[call-overload]
        assert "\n".join(find_differences(drawn, lambda step: gathered[step.replace("-", "_")])) == ""
        sent = backend.batch().output_files(run.name, "gather")  # as a server sends them
        assert not isinstance(sent, list)
        assert shipped_module.is_same(sent.load()["result"], gathered)
