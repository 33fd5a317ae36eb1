"""Joint placement on a real cluster: jobs that memory bounds keep off one another's nodes while there is room."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.app.quantities import parse_cpu
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.affinity import PROFILE
from scanflow.backends.kubernetes.nodes import is_schedulable
from scanflow.backends.kubernetes.object_labels import SERVICE, build_selector, derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.cluster.batch import batch_backend
from tests.cluster.drains import all_nodes_schedulable
from tests.cluster.test_cluster_mpi_runs import IMAGE, SLEEPS, WITHIN_S
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
TEAM = f"t{secrets.token_hex(3)}"
NODE = "kubernetes.io/hostname"


@pytest.fixture
def namespaces(cluster: Cluster) -> Iterator[list[str]]:
    namespaces = [derive_namespace(app, TEAM) for app in ("solver", "grid")]
    yield namespaces
    for name in namespaces:
        cluster.delete("Namespace", name)
    for name in namespaces:
        wait_until(lambda name=name: cluster.get("Namespace", name) is None, f"{name} is gone", patience_s=WITHIN_S)  # type: ignore[misc]


def request(folder: Path, app: str, **affinity: Any) -> RunRequest:
    workload = sf.MPIWorkload(
        name="job",
        mainfile="sleeps.sh",
        n_tasks=1,
        profile="memory",
        resources_per_task=sf.Resources(cpu=0.05, memory="32Mi"),
        affinity=sf.Affinity(**affinity),
    )
    workflow = sf.Workflow(name="hpc", type="mpi", nodes=[workload])
    return RunRequest(app=sf.Application(name=app, team=TEAM, app_dir=folder, workflows=[workflow]))


def alive(cluster: Cluster) -> list[Manifest]:
    pods, _ = cluster.find("Pod")
    return [pod for pod in pods if pod["spec"].get("nodeName") and pod["status"]["phase"] in {"Pending", "Running"}]


def count_bad_neighbours(pods: list[Manifest], node: str) -> int:
    """Return how many pods a node has that a job which memory bounds keeps off."""
    own = [pod["metadata"].get("labels") or {} for pod in pods if pod["spec"]["nodeName"] == node]
    return sum(SERVICE in labels or labels.get(PROFILE) in {"memory", "unknown"} for labels in own)


def sum_requested_cores(pods: list[Manifest], node: str) -> float:
    """Return the cores that the pods of a node ask for."""
    containers = [
        container for pod in pods if pod["spec"]["nodeName"] == node for container in pod["spec"]["containers"]
    ]
    requests = [container.get("resources", {}).get("requests", {}).get("cpu", "0") for container in containers]
    return sum(parse_cpu(cpu) for cpu in requests if cpu != "0")


def place(cluster: Cluster, namespace: str, run: str) -> str:
    def pods() -> list[Manifest]:
        return [
            pod
            for pod in cluster.find("Pod", namespace, labels=build_selector(run=run))[0]
            if pod["spec"].get("nodeName")
        ]

    wait_until(pods, f"{run} has a node", patience_s=WITHIN_S)
    return str(pods()[0]["spec"]["nodeName"])


def load(cluster: Cluster, namespace: str, node: str) -> None:
    """Have a node be the fuller one, which a scheduler would leave alone by itself."""
    asked = {"requests": {"cpu": "300m", "memory": "512Mi"}}
    container = {"name": "load", "image": IMAGE, "command": ["sleep", "600"], "resources": asked}
    spec = {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    metadata = {"name": "load", "namespace": namespace}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def test_two_jobs_that_memory_bounds_are_on_different_nodes(
    settings: Settings, cluster: Cluster, namespaces: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sleeps.sh").write_text(SLEEPS)
    (tmp_path / "sleeps.sh").chmod(0o755)
    with batch_backend(settings, SCANFLOW_KUBERNETES_MPI_IMAGE=IMAGE) as backend, all_nodes_schedulable():
        deployer = EmbeddedDeployer(settings, backend=backend)
        pods = alive(cluster)
        nodes = [str(machine["metadata"]["name"]) for machine in cluster.find("Node")[0] if is_schedulable(machine)]
        # where the second would go too if nothing kept it off: the emptier one, among those with as many to keep off
        first, *others = sorted(
            nodes, key=lambda node: (-count_bad_neighbours(pods, node), sum_requested_cores(pods, node))
        )
        record = deployer.begin(request(tmp_path, "solver", node_selector={NODE: first}))
        assert place(cluster, namespaces[0], record.name) == first
        load(cluster, namespaces[0], others[0])
        other = deployer.begin(request(tmp_path, "grid"))
        assert place(cluster, namespaces[1], other.name) != first
        for run in (record, other):
            deployer.stop(run.name)
            assert deployer.wait(run.name, timeout_s=WITHIN_S).state == "stopped"
