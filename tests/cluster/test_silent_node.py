"""A node whose kubelet is killed while instances and a step run there: what is said, what is done, what comes of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.backends.run_records import Event, RunRecord, Waiting
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.cluster.kubelets import MINE, killed_kubelet
from tests.cluster.online import Place
from tests.waiting import patient, wait_until

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900), MINE]
TEAM = f"t{os.getpid()}"
SMALL = sf.Resources(cpu="150m", memory="256Mi")
EVICTED_S = 5
"""How long the pods of the test stay on a node that does not answer; 300 s is usual."""

APP = """
import time
import scanflow as sf


@sf.step(retries=1)
def hold() -> int:
    seen = sf.output_dir().parent / "seen.txt"
    with seen.open("a") as file:
        file.write("x")
    print("holding", flush=True)
    time.sleep(0 if len(seen.read_text()) > 1 else 900)
    return len(seen.read_text())


app = sf.Application(name="silent", team="{team}", workflows=[sf.Workflow(name="hold", nodes=[hold.bind()])])
"""


class Run:
    """A run whose step holds until it is ended, driven beside the test."""

    def __init__(self, settings: Settings, cluster: Cluster, folder: Path) -> None:
        self.settings, self.cluster, self.events = settings, cluster, list[Event]()
        self.namespace, self.record = derive_namespace("silent", TEAM), list[RunRecord]()
        self.source = folder / "app" / "silent_app.py"
        self.source.parent.mkdir()
        self.source.write_text(APP.replace("{team}", TEAM), encoding="utf-8")
        self.thread = threading.Thread(target=self._drive, daemon=True)

    def _drive(self) -> None:
        with batch_backend(self.settings) as backend:
            request = RunRequest(load_application(str(self.source))[0], "hold", source=self.source)
            deployer = EmbeddedDeployer(self.settings, backend=backend)
            self.record.append(deployer.run(request, observe=self.events.append))

    def pod(self) -> Manifest | None:
        """Return the pod of the step once it prints."""
        pods, _ = self.cluster.find(
            "Pod", self.namespace, labels=build_selector(step="hold"), fields="status.phase=Running"
        )
        if not pods:
            return None
        log = self.cluster.log(pods[0]["metadata"]["name"], self.namespace, container="main")
        return pods[0] if b"holding" in b"".join(log) else None

    def waits(self) -> str:
        return "\n".join(f"{event.what}: {event.why}" for event in self.events if isinstance(event, Waiting))


@pytest.fixture
def run(settings: Settings, cluster: Cluster, tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "run").mkdir()
    started = Run(settings, cluster, tmp_path / "run")
    yield started
    cluster.delete("Namespace", started.namespace)
    started.thread.join(patient(60))


def evict_early(cluster: Cluster, pod: Manifest) -> None:
    """Have a pod leave a node that does not answer sooner than others do: the first toleration of a taint holds."""
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    sooner = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTED_S} for key in keys]
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    cluster.patch("Pod", name, namespace, {"spec": {"tolerations": [*sooner, *pod["spec"]["tolerations"]]}})


def test_a_service_and_a_run_outlive_a_node_with_a_killed_kubelet(
    place: Callable[..., Place], run: Run, cluster: Cluster
) -> None:
    here = place(SCANFLOW_KUBERNETES_TIMEOUT_S="200")
    run.thread.start()
    wait_until(run.pod, "the step runs")
    step = run.pod()
    assert step is not None
    node = step["spec"]["nodeName"]
    here.deploy(2, instances=2, resources=SMALL)
    (lost,) = [pod for pod in here.pods().values() if pod["spec"]["nodeName"] == node]
    name = lost["metadata"]["name"]
    for pod in (step, lost):
        evict_early(cluster, pod)

    def instances() -> dict[str, Any]:
        return {instance.instance: instance for instance in here.deployer.service(here.name).instances}

    with here.load() as failed:
        began, marks = time.monotonic(), dict[str, float]()
        with killed_kubelet(cluster, node):
            silent = f"its node {node} does not answer"
            wait_until(lambda: silent in str(instances()[name].error), "the service's record says so")
            marks["named"] = time.monotonic() - began
            wait_until(
                lambda: [instance.state for instance in instances().values()].count("ready") == 2, "it is replaced"
            )
            marks["replaced"] = time.monotonic() - began
            assert node not in {instance.place for instance in instances().values() if instance.state == "ready"}
            assert silent in str(instances()[name].error), "its end is confirmed by nobody"
            wait_until(lambda: f"the node of hold: NodeNotReady: {silent}" in run.waits(), "so does the run")
            assert not run.record, "its step may be running there"
        marks["node back"] = time.monotonic() - began
        wait_until(lambda: run.record, "the run ends")
        marks["run ended"] = time.monotonic() - began
        wait_until(lambda: cluster.get("Pod", name, here.namespace) is None, "the lost instance is gone")
    print(f"\n{ {what: round(seconds, 1) for what, seconds in marks.items()} }; {len(failed)} of {here.asked} failed")
    (record,) = run.record
    (task,) = record.tasks
    assert (record.state, task.state, task.attempts) == ("succeeded", "succeeded", 2), task
    assert failed == []
    service = here.deployer.service(here.name)
    assert (service.state, service.generation, len(service.instances), here.answer()) == ("ready", 1, 2, [2])
