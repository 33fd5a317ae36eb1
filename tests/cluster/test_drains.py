"""Steps whose pods are told to end while their run goes on: evicted, or drained with their node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.backends.run_records import Event, RunRecord, TaskStarted, Waiting
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.cluster.drains import cordon_node, evict
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
TEAM = f"t{os.getpid()}"
UNSEEN_S = 12.0
"""Argo makes a pod again, and counts no retry, that is gone within ten seconds of its start."""

APP = """
import time
import scanflow as sf


@sf.step
def hold() -> int:
    seen = sf.output_dir().parent / "seen.txt"
    with seen.open("a") as file:
        file.write("x")
    print("holding", flush=True)
    time.sleep(0 if len(seen.read_text()) > 1 else 300)
    return len(seen.read_text())


@sf.step
def after(times: int) -> int:
    return times


once = hold.options(name="once").bind()
again = hold.options(name="again", retries=sf.Retry(limit=2, delay="1s")).bind()
app = sf.Application(name="drains", team="{team}", workflows=[
    sf.Workflow(name="once", nodes=[once, after.bind(once)]),
    sf.Workflow(name="again", nodes=[again, after.bind(again)]),
])
"""


@pytest.fixture(scope="module", autouse=True)
def namespace(cluster: Cluster) -> Iterator[str]:
    name = derive_namespace("drains", TEAM)
    yield name
    cluster.delete("Namespace", name)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "app" / "drains_app.py"
    path.parent.mkdir()
    path.write_text(APP.replace("{team}", TEAM), encoding="utf-8")
    return path


Seen = Callable[[Manifest], None]
"""Does something to a pod that runs."""


def run(settings: Settings, cluster: Cluster, source: Path, workflow: str, do: Seen) -> tuple[RunRecord, list[Event]]:
    """Run a workflow, and do something to the pod of its first step once that runs, as others do meanwhile."""
    namespace, events = derive_namespace("drains", TEAM), list[Event]()

    def observe(event: Event) -> None:
        events.append(event)
        if isinstance(event, TaskStarted) and (event.step, event.attempt) == (workflow, 1):
            (pod,), _ = cluster.find("Pod", namespace, labels=build_selector(run=str(event.run), step=workflow))
            wait_until(lambda: _has_output(cluster, pod), "its program runs")
            seen = time.monotonic()
            wait_until(
                lambda: time.monotonic() - seen > UNSEEN_S,
                "Argo does not take the pod for one that it has not seen yet",
            )
            do(pod)

    with batch_backend(settings, SCANFLOW_KUBERNETES_PENDING_S="60") as backend:
        request = RunRequest(load_application(str(source))[0], workflow, source=source)
        return EmbeddedDeployer(settings, backend=backend).run(request, observe=observe), events


def _has_output(cluster: Cluster, pod: Manifest) -> bool:
    metadata = pod["metadata"]
    return b"holding" in b"".join(cluster.log(metadata["name"], metadata["namespace"], container="main"))


def attempts(record: RunRecord) -> dict[str, tuple[str, int]]:
    return {task.task: (task.state, task.attempts) for task in record.tasks}


def test_a_step_with_an_evicted_pod_has_failed_or_is_tried_again(
    settings: Settings, cluster: Cluster, source: Path
) -> None:
    def end(pod: Manifest) -> None:
        evict(cluster, pod["metadata"]["name"], pod["metadata"]["namespace"])

    record, _ = run(settings, cluster, source, "once", end)
    assert (record.state, attempts(record)) == ("failed", {"once": ("failed", 1), "after": ("pending", 0)})
    failure = record.tasks[0].failure
    assert failure is not None
    assert "its pod was terminated" in f"{failure.summary} {failure.cause}"

    record, _ = run(settings, cluster, source, "again", end)
    assert attempts(record) == {"again": ("succeeded", 2), "after": ("succeeded", 1)}, record.tasks[0]


def test_a_run_with_a_drained_node_waits_for_capacity_and_goes_on(
    settings: Settings, cluster: Cluster, source: Path
) -> None:
    drained = ExitStack()

    def drain(pod: Manifest) -> None:
        drained.enter_context(cordon_node(cluster, pod["spec"]["nodeName"]))
        evict(cluster, pod["metadata"]["name"], pod["metadata"]["namespace"])
        threading.Timer(25.0, drained.close).start()

    with drained:
        record, events = run(settings, cluster, source, "again", drain)
    waited = [event.what for event in events if isinstance(event, Waiting)]
    print(waited)
    assert attempts(record) == {"again": ("succeeded", 2), "after": ("succeeded", 1)}, record.tasks[0]
