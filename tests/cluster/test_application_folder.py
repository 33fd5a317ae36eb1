"""What a step sees of its application's folder on a real cluster: what it sees on a laptop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TEAM = f"t{os.getpid()}"

COUNT = """
# 🚀 a rocket is beyond U+FFFF
import subprocess
from pathlib import Path
import scanflow as sf

subprocess.Popen(["sleep", "300"])  # holds stdout open
sf.output("sum", sum(int(path.read_text()) for path in Path(".").rglob("*.csv")))
sf.output("links", [str(path) for path in Path(".").rglob("*") if path.is_symlink()])
"""
BESIDE = 'open("model.bin", "w")'


@pytest.fixture(autouse=True)
def namespace(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.delete("Namespace", derive_namespace("folder", TEAM))


def test_a_step_sees_real_files_and_learns_where_to_write(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for name, text in {"count.py": COUNT, "beside.py": BESIDE, "a.csv": "1", "parts/b.csv": "10"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    nodes = [sf.Executor(name="count", mainfile="count.py"), sf.Executor(name="beside", mainfile="beside.py")]
    workflow = sf.Workflow(name="read", nodes=nodes)
    app = sf.Application(name="folder", team=TEAM, app_dir=tmp_path, workflows=[workflow])
    with batch_backend(settings) as backend:
        deployer = EmbeddedDeployer(settings, backend=backend)
        record = deployer.run(RunRequest(app, "read"))
        assert deployer.outputs(record.name, "count") == {"sum": 11, "links": []}
    failure = next(task.failure for task in record.tasks if task.task == "beside")
    assert failure is not None
    assert "$SCANFLOW_OUTPUT_DIR" in failure.cause
