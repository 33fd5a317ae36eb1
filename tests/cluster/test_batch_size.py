"""A run whose objects were made smaller, as those of thousands of steps are: it runs the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.batch import argo_workflow, run_document
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
TEAM = f"t{os.getpid()}"


def test_a_run_with_shared_templates_and_a_compressed_document_runs_the_same(
    settings: Settings, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(argo_workflow, "MAX_BYTES", 0)
    monkeypatch.setattr(run_document, "MIN_PACKED_BYTES", 0)
    (tmp_path / "double.py").write_text(
        "import sys\nimport scanflow as sf\nprint(*sys.argv[1:])\nsf.output('twice', 2 * int(sys.argv[2]))\n"
    )
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n"
        "def step(name, **more):\n"
        "    return sf.Executor(name=name, mainfile='double.py', **more)\n"
        "first, other = step('first', parameters={'of': 1}), step('other', parameters={'of': 5})\n"
        "each = step('each', for_each=[1, 2], parameters={'of': sf.item})\n"
        "last = step('last', parameters={'of': first['twice']}, when=other['twice'] >= 10)\n"
        "w = sf.Workflow(name='w', nodes=[first, other, each, last])\n"
        f"app = sf.Application(name='small', team='{TEAM}', workflows=[w])\n"
    )
    app = load_application(str(tmp_path / "app.py"))[0]
    try:
        with batch_backend(settings) as backend:
            deployer = EmbeddedDeployer(settings, backend=backend)
            record = deployer.run(RunRequest(app, source=tmp_path / "app.py"))
            assert record.state == "succeeded", [task.failure for task in record.tasks]
            names = {"first", "other", "each.0", "each.1", "last"}
            assert {task.task: task.step for task in record.tasks} == {name: name.partition(".")[0] for name in names}
            assert deployer.outputs(record.name, "last") == {"twice": 4}
            assert deployer.outputs(record.name, "each") == [{"twice": 2}, {"twice": 4}]
            output = b"".join(part.data for part in deployer.logs(TaskLog(record.name, "each.1")))
            assert output == b"--of 2\n"
        (workflow,) = cluster.find("Workflow", derive_namespace("small", TEAM))[0]
        steps = [template["name"] for template in workflow["spec"]["templates"] if template["name"].startswith("step-")]
        assert steps == ["step-first", "step-other", "step-each"], "the last is like the first; one tells a signal"
    finally:
        cluster.delete("Namespace", derive_namespace("small", TEAM))
