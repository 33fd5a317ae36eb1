"""What a run on a cluster leaves: values of any size and kind, logs that outlive pods, results that are used again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.labels import build_selector, derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.loading import load_application
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TEAM = f"t{os.getpid()}"

STEPS = """
import scanflow as sf


@sf.step(cache=True)
def large() -> str:
    print("a large one")
    return "x" * 5000


@sf.step
def unusual() -> set:
    return {1, 2}


@sf.step
def together(text: str, numbers: set) -> int:
    return len(text) + sum(numbers)


a, b = large.bind(), unusual.bind()
"""


@pytest.fixture
def backend(settings: Settings, cluster: Cluster) -> Iterator[Kubernetes]:
    with batch_backend(settings) as found:
        yield found
    cluster.delete("Namespace", derive_namespace("leftovers", TEAM))


def doubled(value: int) -> int:
    """Return it twice: a function that travels by value."""
    return value * 2


def test_what_a_run_left_is_read_when_its_pods_are_gone(
    backend: Kubernetes, settings: Settings, tmp_path: Path, cluster: Cluster
) -> None:
    path = tmp_path / "app" / "leftovers_app.py"
    path.parent.mkdir()
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    name = backend.batch().keep_function(cloudpickle.dumps(doubled))
    cloudpickle.unregister_pickle_by_value(module)
    by_value = f'sf.Executor(name="doubled", function="{name}:doubled", parameters={{"value": c.output}})'
    nodes = f"nodes=[a, b, c, {by_value}]"
    made = f'sf.Application(name="leftovers", team="{TEAM}", workflows=[sf.Workflow(name="w", {nodes})])'
    path.write_text(f"{STEPS}\nc = together.bind(a, b)\napp = {made}\n")
    deployer = EmbeddedDeployer(settings, backend=backend)
    app = load_application(str(path))[0]
    record = deployer.run(RunRequest(app, source=path))
    assert record.state == "succeeded", [task.failure for task in record.tasks]
    namespace = derive_namespace("leftovers", TEAM)
    for pod in cluster.find("Pod", namespace, labels=build_selector(run=record.name))[0]:
        cluster.delete("Pod", pod["metadata"]["name"], namespace, grace_s=0)
    until(lambda: not cluster.find("Pod", namespace, labels=build_selector(run=record.name))[0], "the pods are gone")
    for file in Path(record.folder).glob("steps/large/1/*.log"):
        file.unlink()
    assert b"".join(part.data for part in deployer.logs(TaskLog(record.name, "large"))) == b"a large one\n"
    assert deployer.outputs(record.name, "large") == {"result": "x" * 5000}
    assert deployer.outputs(record.name, "unusual") == {"result": {1, 2}}
    assert deployer.outputs(record.name, "doubled") == {"result": 10006}
    again = deployer.run(RunRequest(app, source=path))
    assert {task.task: task.origin for task in again.tasks} == {
        "large": record.name,
        "unusual": None,
        "together": None,
        "doubled": None,
    }
