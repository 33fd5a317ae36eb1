"""MPI jobs on a real cluster: real ``mpirun`` over ssh between pods, by Volcano and by the MPI Operator."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.launcher_log import parse_log
from scanflow.backends.kubernetes.mpi.mpi_objects import ClusterJob
from scanflow.backends.kubernetes.mpi.operator import build_mpi_job
from scanflow.backends.kubernetes.mpi.volcano import build_volcano_objects
from scanflow.backends.kubernetes.pod_logs import read_lines_since
from scanflow.errors import UnsupportedError
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import plan_job
from tests.cluster.drains import all_nodes_schedulable
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster
IMAGE = os.environ.get("SCANFLOW_TEST_MPI_IMAGE", "lab/mpi:1")
WITHIN_S = 120.0


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"scanflow-mpi-{secrets.token_hex(3)}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    cluster.delete("Namespace", name)


def job(namespace: str, **fields: Any) -> ClusterJob:
    options: dict[str, Any] = {"name": "ring", "mainfile": "/opt/ring.py", "n_tasks": 4, "n_nodes": 2, **fields}
    workload = sf.MPIWorkload(resources_per_task=sf.Resources(cpu=0.05, memory="64Mi"), oversubscribe=True, **options)
    plan = plan_job(workload, [ClusterNode(name=f"n{place}", cores=1) for place in range(2)])
    return ClusterJob(
        app="mpi",
        team="t",
        namespace=namespace,
        run="ring",
        workload=workload,
        plan=plan,
        argv=["python3", "/opt/ring.py"],
        image=IMAGE,
    )


def run(cluster: Cluster, namespace: str, objects: list[Manifest], ended: Callable[[Manifest], bool]) -> Manifest:
    try:
        for manifest in objects:
            cluster.apply(manifest)
    except UnsupportedError as error:
        pytest.skip(str(error))
    kind, name = objects[-1]["kind"], objects[-1]["metadata"]["name"]
    wait_until(lambda: ended(cluster.get(kind, name, namespace) or {}), f"{kind} {name} has ended", patience_s=WITHIN_S)
    return cluster.get(kind, name, namespace) or {}


def workers(cluster: Cluster, namespace: str) -> dict[str, str]:
    pods, _ = cluster.find("Pod", namespace, labels="scanflow.dev/mpi-role=worker")
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}


def read_rank_output(cluster: Cluster, namespace: str) -> str:
    """Return what all ranks wrote, line by line; the launcher's log has tags in the middle of lines."""
    [pod], _ = cluster.find("Pod", namespace, labels="scanflow.dev/mpi-role=launcher")
    log = parse_log(read_lines_since(cluster, namespace, pod["metadata"]["name"], ""), n_tasks=64)
    return (log.whole["stdout"] + log.whole["stderr"]).decode()


def phase(manifest: Manifest) -> str:
    state: str = manifest.get("status", {}).get("state", {}).get("phase", "")
    return state


def test_volcano_runs_a_gang_over_two_nodes(cluster: Cluster, namespace: str) -> None:
    mpi_job = job(namespace, profile="memory")
    nodes: dict[str, str] = {}  # seen while it runs: at its end Volcano removes them

    def has_terminated(manifest: Manifest) -> bool:
        nodes.update(workers(cluster, namespace))
        return phase(manifest) in {"Completed", "Terminated", "Failed"}

    with all_nodes_schedulable():
        status = run(cluster, namespace, build_volcano_objects(mpi_job), has_terminated)
    log = read_rank_output(cluster, namespace)
    assert phase(status) == "Completed", log
    assert "sum 6.0 expected 6.0" in log
    assert len(nodes) == len(set(nodes.values())) == 2  # groups are on different nodes


def test_volcano_runs_a_job_of_one_worker_without_ssh(cluster: Cluster, namespace: str) -> None:
    mpi_job = job(namespace, profile="network")
    status = run(
        cluster,
        namespace,
        build_volcano_objects(mpi_job),
        lambda manifest: phase(manifest) in {"Completed", "Terminated"},
    )
    assert phase(status) == "Completed"
    assert "sum 6.0 expected 6.0" in read_rank_output(cluster, namespace)
    assert workers(cluster, namespace) == {}


def test_the_operator_runs_the_same_plan(cluster: Cluster, namespace: str) -> None:
    mpi_job = job(namespace, profile="memory")

    def has_condition(manifest: Manifest) -> bool:
        conditions = manifest.get("status", {}).get("conditions", [])
        return any(
            condition["type"] in {"Succeeded", "Failed"} and condition["status"] == "True" for condition in conditions
        )

    status = run(cluster, namespace, [build_mpi_job(mpi_job)], has_condition)
    assert "sum 6.0 expected 6.0" in read_rank_output(cluster, namespace), status["status"]
