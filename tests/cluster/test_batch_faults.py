"""What goes wrong with batch workflows on a real cluster, and what is said and done about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scanflow.app.application import Application
from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.backends.run_records import EnvironmentReady, Event, RunRecord, TaskRecord, Waiting
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import NotFoundError, UnavailableError
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TEAM = f"t{os.getpid()}"

STEPS = """
import pathlib
import sys
import time
import scanflow as sf


@sf.step
def quick() -> int:
    return 1


@sf.step
def leave(code: int = 3) -> int:
    sys.exit(code)


@sf.step(resources=sf.Resources(memory="160Mi"))
def greedy() -> int:
    return len(b"x" * 10**9)


@sf.step(timeout="2s")
def slow() -> int:
    time.sleep(60)
    return 0


@sf.step
def counted(before: int, seconds: float = 8.0) -> int:
    with (sf.output_dir().parent / "seen.txt").open("a") as file:
        file.write("x")
    time.sleep(seconds)
    return before + 1


@sf.step
def times(after: int) -> int:
    return len((sf.output_dir().parent / "seen.txt").read_text())


one = quick.bind()
two = counted.bind(one)
"""

WORKFLOWS = {
    "leave": "leave.bind()",
    "greedy": "greedy.bind()",
    "slow": "slow.bind()",
    "imageless": 'quick.options(image="nowhere/none:1").bind()',
    "counted": "one, two, times.bind(two)",
}


@pytest.fixture(scope="module", autouse=True)
def namespaces(cluster: Cluster) -> Iterator[None]:
    """The namespaces of the applications, removed at the end."""
    yield
    for name in ("faults", "faults-quota"):
        cluster.delete("Namespace", derive_namespace(name, TEAM))


def application(folder: Path, name: str = "faults") -> tuple[Application, Path]:
    listed = ", ".join(f'sf.Workflow(name="{key}", nodes=[{nodes}])' for key, nodes in WORKFLOWS.items())
    path = folder / "app" / "faults_app.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{STEPS}\napp = sf.Application(name="{name}", team="{TEAM}", workflows=[{listed}])\n')
    return load_application(str(path))[0], path


@pytest.fixture
def run(settings: Settings, tmp_path: Path) -> Callable[..., RunRecord]:
    def run_one(workflow: str, *events: list[Event], name: str = "faults", **variables: str) -> RunRecord:
        with batch_backend(settings, **variables) as backend:
            app, source = application(tmp_path, name)
            request = RunRequest(app, workflow, source=source)
            deployer = EmbeddedDeployer(settings, backend=backend)
            return deployer.run(request, observe=events[0].append if events else lambda _: None)

    return run_one


@pytest.fixture
def backend(settings: Settings) -> Iterator[Kubernetes]:
    with batch_backend(settings) as backend:
        yield backend


@pytest.fixture
def deployer(settings: Settings, backend: Kubernetes) -> EmbeddedDeployer:
    return EmbeddedDeployer(settings, backend=backend)


def get_failed_task(record: RunRecord) -> TaskRecord:
    """Return the one task that failed."""
    assert record.state == "failed", record
    return next(task for task in record.tasks if task.state == "failed")


def test_how_a_step_failed_is_said(run: Callable[..., RunRecord]) -> None:
    task = get_failed_task(run("leave"))
    assert task.failure is not None
    assert (task.exit_code, task.failure.summary) == (3, "exit code 3")
    task = get_failed_task(run("slow"))
    assert task.failure is not None
    assert task.failure.summary.startswith("timed out after 2")
    task = get_failed_task(run("greedy"))
    assert task.failure is not None
    assert "memory" in task.failure.summary


def test_a_missing_image_is_reported_while_it_is_waited_for_and_then_named(run: Callable[..., RunRecord]) -> None:
    events: list[Event] = []
    task = get_failed_task(run("imageless", events, SCANFLOW_KUBERNETES_PENDING_S="8"))
    waited = [f"{event.what}: {event.why}" for event in events if isinstance(event, Waiting)]
    assert len(waited) >= 1
    assert "the pod of quick: " in waited[0]
    assert "nowhere/none:1" in waited[0]
    assert task.failure is not None
    assert task.failure.summary.startswith("its pod did not start in 8")
    assert "nowhere/none:1" in task.failure.cause
    assert "SCANFLOW_KUBERNETES_PULL_SECRET" in task.failure.cause


def test_a_quota_that_is_used_up_is_reported_and_then_named(
    run: Callable[..., RunRecord], backend: Kubernetes, tmp_path: Path, cluster: Cluster
) -> None:
    app, _ = application(tmp_path, "faults-quota")
    namespace = backend.environments().ensure(app).namespace
    metadata = {"name": "nothing", "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "0"}}})
    events: list[Event] = []
    task = get_failed_task(run("leave", events, name="faults-quota", SCANFLOW_KUBERNETES_PENDING_S="5"))
    assert any("exceeded quota" in event.why for event in events if isinstance(event, Waiting))
    assert task.failure is not None
    assert "Raise the namespace's quota" in task.failure.cause


def test_a_driver_that_is_killed_is_followed_by_another_and_nothing_runs_twice(
    deployer: EmbeddedDeployer, tmp_path: Path
) -> None:
    source = application(tmp_path)[1]
    code = "from scanflow_client.cli.main import main; main()"
    first = subprocess.Popen(
        [sys.executable, "-c", code, "run", f"{source}:counted"],
        env={**os.environ, "SCANFLOW_BACKEND": "kubernetes"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _state(deployer, "counted") == "running", "the second step runs", patience_s=120)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    name = find_own(deployer)
    assert deployer.show(name).state == "running", "Argo goes on with nobody watching"
    record = deployer.run(RunRequest(run=name))
    assert record.state == "succeeded"
    assert deployer.outputs(name, "times") == {"result": 1}
    assert [task.attempts for task in record.tasks] == [1, 1, 1]


def _state(deployer: EmbeddedDeployer, task: str) -> str:
    if not (name := find_own(deployer)):
        return ""
    return next((record.state for record in deployer.show(name).tasks if record.task == task), "")


def find_own(deployer: EmbeddedDeployer) -> str:
    """Return the newest run of this home; the list has those of all homes."""
    try:
        return deployer.show("@latest").name
    except NotFoundError:
        return ""


def test_a_workflow_that_a_user_deletes_is_named_and_gone_on_with(
    deployer: EmbeddedDeployer, tmp_path: Path, cluster: Cluster
) -> None:
    app, source = application(tmp_path)
    begun = deployer.begin(RunRequest(app, "counted", source=source))
    wait_until(lambda: _state(deployer, "counted") == "running", "the second step runs", patience_s=120)
    namespace = derive_namespace("faults", TEAM)
    cluster.delete("Workflow", begun.name, namespace)
    record = deployer.wait(begun.name, timeout_s=60)
    assert record.state == "stopped"
    assert record.error is not None
    assert f"scanflow resume {begun.name}" in record.error
    assert {task.task: task.state for task in record.tasks} == {
        "quick": "succeeded",
        "counted": "stopped",
        "times": "pending",
    }
    wait_until(lambda: not _pods(cluster, namespace, begun.name), "its pods are gone", patience_s=90)
    assert deployer.run(RunRequest(run=begun.name)).state == "succeeded"
    assert deployer.outputs(begun.name, "times") == {"result": 2}


def _pods(cluster: Cluster, namespace: str, run: str) -> list[object]:
    pods, _ = cluster.find("Pod", namespace, labels=build_selector(run=run))
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def test_an_api_server_that_is_away_for_a_while_is_waited_for(
    deployer: EmbeddedDeployer, backend: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, source = application(tmp_path)
    events: list[Event] = []
    away = threading.Event()
    _fail_while(away, backend.cluster, monkeypatch)

    def observe(event: Event) -> None:
        events.append(event)
        if getattr(event, "task", "") == "counted":
            away.set()
        if isinstance(event, Waiting) and event.what == "the API server of the cluster":
            threading.Timer(3.0, away.clear).start()

    record = deployer.run(RunRequest(app, "counted", source=source), observe=observe)
    assert record.state == "succeeded"
    waited = [(type(event), event.what) for event in events if isinstance(event, Waiting | EnvironmentReady)]
    what = "the API server of the cluster"
    assert [progress for progress in waited if progress[1] == what] == [(Waiting, what), (EnvironmentReady, what)]


def _fail_while(away: threading.Event, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all requests of a cluster fail while it is away."""

    def guard_call(call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(*args: Any, **more: Any) -> Any:
            if away.is_set():
                raise UnavailableError("The API server does not answer.")
            return call(*args, **more)

        return guard

    for name in ("_send", "_stream"):
        monkeypatch.setattr(cluster, name, guard_call(getattr(cluster, name)))
