"""What a run on a cluster leaves: values of any size and kind, logs that outlive pods, results that are used again."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.nodes import is_schedulable
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend, make_store
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

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


@pytest.fixture(params=["claim", "store"])
def team(request: pytest.FixtureRequest) -> str:
    """The team of the application, whose outputs are there."""
    return f"{request.param}{uuid.uuid4().hex[:6]}"


@pytest.fixture
def backend(settings: Settings, cluster: Cluster, team: str) -> Iterator[Kubernetes]:
    namespace = derive_namespace("leftovers", team)
    with batch_backend(settings, **(make_store(cluster, namespace) if team.startswith("store") else {})) as backend:
        yield backend
    cluster.delete("Namespace", namespace)


def double_value(value: int) -> int:
    """Return it twice: a function that travels by value."""
    return value * 2


def test_what_a_run_left_is_read_when_its_pods_are_gone(
    backend: Kubernetes, settings: Settings, tmp_path: Path, cluster: Cluster, team: str
) -> None:
    path = tmp_path / "app" / "leftovers_app.py"
    path.parent.mkdir()
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    name = backend.batch().keep_function(cloudpickle.dumps(double_value))
    cloudpickle.unregister_pickle_by_value(module)
    by_value = f'sf.Executor(name="doubled", function="{name}:double_value", parameters={{"value": c.output}})'
    nodes = f"nodes=[a, b, c, {by_value}]"
    application = f'sf.Application(name="leftovers", team="{team}", workflows=[sf.Workflow(name="w", {nodes})])'
    path.write_text(f"{STEPS}\nc = together.bind(a, b)\napp = {application}\n")
    deployer = EmbeddedDeployer(settings, backend=backend)
    app = load_application(str(path))[0]
    record = deployer.run(RunRequest(app, source=path))
    assert record.state == "succeeded", [task.failure for task in record.tasks]
    namespace = derive_namespace("leftovers", team)
    for pod in cluster.find("Pod", namespace, labels=build_selector(run=record.name))[0]:
        cluster.delete("Pod", pod["metadata"]["name"], namespace, grace_s=0)
    wait_until(
        lambda: not cluster.find("Pod", namespace, labels=build_selector(run=record.name))[0], "the pods are gone"
    )
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


ON_NODES = """
import os
from pathlib import Path
import scanflow as sf


@sf.step
def write() -> Path:
    file = sf.output_dir() / "rows.csv"
    file.write_text("1")
    return file


@sf.step
def add(file: Path) -> list[Path]:
    own = sf.output_dir() / "more.csv"
    own.write_text("2")
    return [file, own]


@sf.step
def read(files: list[Path]) -> list[str]:
    return [file.read_text() for file in files] + sorted(path.name for path in Path("/scanflow/outputs").rglob("*.csv"))
"""


@pytest.mark.parametrize("team", ["store"], indirect=True)
def test_steps_on_two_nodes_read_what_earlier_ones_left(
    backend: Kubernetes, settings: Settings, tmp_path: Path, cluster: Cluster, team: str
) -> None:
    nodes = [node["metadata"]["name"] for node in cluster.find("Node")[0] if is_schedulable(node)]
    if len(nodes) < 2:
        pytest.skip("one node alone takes pods")
    path = tmp_path / "app" / "nodes_app.py"
    path.parent.mkdir()
    on = [f'affinity=sf.Affinity(node_selector={{"kubernetes.io/hostname": "{node}"}})' for node in nodes[:2]]
    bound = f"a = write.options({on[0]}).bind()\nb = add.options({on[1]}).bind(a)\nc = read.options({on[0]}).bind(b)"
    application = f'sf.Application(name="leftovers", team="{team}", workflows=[sf.Workflow(name="w", nodes=[a, b, c])])'
    path.write_text(f"{ON_NODES}\n{bound}\napp = {application}\n")
    deployer = EmbeddedDeployer(settings, backend=backend)
    record = deployer.run(RunRequest(load_application(str(path))[0], source=path))
    assert record.state == "succeeded", [task.failure for task in record.tasks]
    assert deployer.outputs(record.name, "read") == {"result": ["1", "2", "more.csv", "rows.csv"]}
    assert [(file.task, file.name) for file in deployer.files(record.name)] == [
        ("write", "rows.csv"),
        ("add", "more.csv"),
    ]
    assert cluster.get("PersistentVolumeClaim", "scanflow-outputs", derive_namespace("leftovers", team)) is None
