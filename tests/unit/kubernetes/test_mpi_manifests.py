"""MPI jobs as objects of Volcano and of the MPI Operator."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.gpus import DevicePlugin, Vendor
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.mpi_objects import (
    ClusterJob,
    Network,
    build_mpirun_command,
    compute_worker_resources,
)
from scanflow.backends.kubernetes.mpi.operator import build_mpi_job
from scanflow.backends.kubernetes.mpi.rank_program import check_ranks_per_pod
from scanflow.backends.kubernetes.mpi.volcano import SCHEDULER_FILE, build_volcano_objects, has_task_topology
from scanflow.errors import UnsupportedError
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import plan_job
from tests.manifests import assert_manifests
from tests.waiting import PATIENCE_S


def job(nodes: int = 2, **fields: Any) -> ClusterJob:
    options: dict[str, Any] = {"name": "ring", "mainfile": "/opt/ring", "n_tasks": 4, "n_nodes": nodes, **fields}
    workload = sf.MPIWorkload(**options)
    plan = plan_job(workload, [ClusterNode(name=f"n{place}", cores=8) for place in range(nodes)])
    return ClusterJob(
        app="hpc",
        team="data",
        namespace="scanflow-hpc-data",
        run="calm-otter-417",
        workload=workload,
        plan=plan,
        argv=["/opt/ring", "--rounds", "3"],
        image="hpc/ring:1",
    )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("volcano-scale", {"profile": "memory", "affinity": "cpumem", "timeout": "10m"}),
        ("volcano-granularity", {"profile": "cpu", "policy": "granularity", "n_tasks": 5}),
        ("volcano-network", {"profile": "network", "oversubscribe": True}),
    ],
)
def test_a_gang_with_a_task_for_each_group(name: str, fields: dict[str, Any]) -> None:
    assert_manifests(name, *build_volcano_objects(job(**fields)))


@pytest.mark.parametrize(
    ("name", "make"), [("volcano-multus", build_volcano_objects), ("mpijob-multus", lambda job: [build_mpi_job(job)])]
)
def test_all_pods_of_a_job_are_on_a_second_network_which_ranks_use(name: str, make: Any) -> None:
    assert_manifests(name, *make(replace(job(profile="memory"), network=Network(multus="mpi/fast"))))


def test_pods_of_groups_are_not_spread_because_they_are_of_one_service() -> None:
    _, gang = build_volcano_objects(job(profile="cpu", policy="granularity", n_tasks=4))
    for task in gang["spec"]["tasks"][1:]:
        [only] = task["template"]["spec"]["topologySpreadConstraints"]
        assert only["whenUnsatisfiable"] == "ScheduleAnyway"
        assert "labelSelector" not in only, "it would count pods"


def scheduler(*plugins: str) -> Manifest:
    listed = "".join(f"  - {plugin}\n" for plugin in plugins)
    return {"data": {SCHEDULER_FILE: f'actions: "enqueue, allocate"\ntiers:\n- plugins:\n{listed}'}}


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        (None, False),
        ({"data": None}, False),
        ({"data": {SCHEDULER_FILE: "tiers: ["}}, False),
        ({"data": {SCHEDULER_FILE: "tiers: [{plugins: task-topology}]"}}, False),
        (scheduler("name: gang"), False),
        (scheduler("name: gang", "name: task-topology"), False),
        (scheduler("{name: task-topology, arguments: {task-topology.weight: much}}"), False),
        (scheduler("name: gang", "{name: task-topology, arguments: {task-topology.weight: 10}}"), True),
    ],
)
def test_whether_the_scheduler_places_groups_by_itself_is_in_its_settings(
    settings: Manifest | None, places: bool
) -> None:
    assert has_task_topology(settings) is places


def test_pods_say_nothing_of_their_group_where_the_scheduler_places_groups() -> None:
    mpi_job = replace(job(profile="cpu", policy="granularity", n_tasks=4), task_topology=True)
    _, gang = build_volcano_objects(mpi_job)
    assert "volcano.sh/task-topology-affinity" in gang["metadata"]["annotations"]
    for task in gang["spec"]["tasks"][1:]:
        affinity = task["template"]["spec"]["affinity"]
        assert list(affinity) == ["podAffinity"], "towards services, as it computes"
        assert len(affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]) == 1


@pytest.mark.parametrize(("profile", "wishes"), [("cpu", 0), ("memory", 1), (None, 1)])
def test_where_there_are_no_services_no_job_says_anything_of_them(profile: str | None, wishes: int) -> None:
    mpi_job = replace(job(profile=profile, policy="granularity", n_tasks=4), task_topology=True, has_services=False)
    *_, gang = build_volcano_objects(mpi_job)
    affinity = gang["spec"]["tasks"][-1]["template"]["spec"].get("affinity", {})
    assert sum(len(terms["preferredDuringSchedulingIgnoredDuringExecution"]) for terms in affinity.values()) == wishes
    assert "scanflow.dev/service" not in str(affinity)


def test_the_hostfile_has_the_workers_in_the_order_of_their_ranks() -> None:
    files, gang = build_volcano_objects(job(profile="cpu", policy="granularity", n_tasks=4))
    hosts = [line.split(".")[0].removeprefix("calm-otter-417-") for line in files["data"]["hostfile"].splitlines()]
    assert hosts == ["group-0-0", "group-1-0", "group-0-1", "group-1-1"]  # workers 0 to 3, dealt to groups in turn
    assert gang["spec"]["minAvailable"] == 1 + sum(task["replicas"] for task in gang["spec"]["tasks"][1:])


def test_what_bounds_a_job_decides_beside_whom_its_pods_are_put() -> None:
    def wishes(profile: Any) -> dict[str, list[str]]:
        [gang] = build_volcano_objects(
            job(profile=profile, n_workers=1, affinity=sf.Affinity(node_selector={"disk": "ssd"}))
        )
        [pod] = [task["template"] for task in gang["spec"]["tasks"]]
        assert pod["metadata"]["labels"]["scanflow.dev/mpi-profile"] == (profile or "unknown")
        assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
        return {
            kind: [
                term["podAffinityTerm"]["labelSelector"]["matchExpressions"][0]["key"]
                for term in affinity["preferredDuringSchedulingIgnoredDuringExecution"]
                if term["podAffinityTerm"]["namespaceSelector"] == {}
            ]
            for kind, affinity in pod["spec"].get("affinity", {}).items()
        }

    apart = {"podAntiAffinity": ["scanflow.dev/mpi-profile", "scanflow.dev/service"]}
    assert wishes("memory") == wishes(None) == apart
    assert wishes("cpu") == {"podAffinity": ["scanflow.dev/service"]}
    assert wishes("network") == {}


def test_an_mpi_job_of_the_operator() -> None:
    assert_manifests("mpijob", build_mpi_job(job(profile="memory", affinity="cpumempin", timeout="10m")))
    with pytest.raises(UnsupportedError, match=r"5 tasks are in 2. Choose n_workers that divides n_tasks"):
        build_mpi_job(job(profile="memory", n_tasks=5))


def test_an_affinity_asks_for_whole_cores_of_its_own() -> None:
    bound = job(profile="memory", affinity="cpumem", resources_per_task=sf.Resources(cpu=0.75, memory="1Gi"))
    resources = compute_worker_resources(bound.plan.workers[0], bound)
    assert resources["requests"] == resources["limits"] == {"cpu": "2", "memory": "2Gi"}
    shared = job(profile="memory", resources_per_task=sf.Resources(cpu=0.75))
    assert compute_worker_resources(shared.plan.workers[0], shared) == {"requests": {"cpu": "1500m"}}


@pytest.mark.parametrize(("gpus", "rank", "seen"), [(1, 0, "0"), (1, 3, "3"), (2, 1, "2,3")])
@pytest.mark.parametrize(("vendor", "name"), [("nvidia", "CUDA_VISIBLE_DEVICES"), ("amd", "HIP_VISIBLE_DEVICES")])
def test_a_rank_sees_its_own_gpus_of_those_of_its_pod(
    gpus: int, rank: int, seen: str, vendor: Vendor, name: str
) -> None:
    asking = job(resources_per_task=sf.Resources(cpu=1, gpu=gpus))
    command = build_mpirun_command(replace(asking, argv=["printenv", name], device_plugin=DevicePlugin(vendor)), None)
    script = command[command.index("sh") :]
    variables = {"PATH": os.environ["PATH"], "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
    done = subprocess.run(script, env=variables, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert seen in done.stdout.splitlines()


def test_each_pod_requests_the_gpus_of_its_ranks_and_the_launcher_none() -> None:
    resources = sf.Resources(cpu=1, gpu=2)
    asking = job(profile="cpu", policy="granularity", n_tasks=5, resources_per_task=resources)
    assert_manifests("volcano-gpus", *build_volcano_objects(asking))


@pytest.mark.parametrize(("gpu", "resource"), [(0.5, "nvidia.com/gpu"), ("1g.10gb", "nvidia.com/mig-1g.10gb")])
def test_a_rank_alone_in_its_pod_has_the_pods_share_or_part(gpu: float | str, resource: str) -> None:
    resources = sf.Resources(cpu=1, gpu=gpu)
    asking = job(n_tasks=2, n_workers=2, resources_per_task=resources)
    check_ranks_per_pod(asking.workload, asking.plan)
    assert {compute_worker_resources(worker, asking)["limits"][resource] for worker in asking.plan.workers} == {"1"}
    assert "VISIBLE_DEVICES" not in " ".join(build_mpirun_command(asking, None))
    together = job(n_tasks=3, n_workers=2, resources_per_task=resources)
    with pytest.raises(UnsupportedError, match=r"for 2 ranks in a pod. Give each rank a pod of its own: n_workers=3"):
        check_ranks_per_pod(together.workload, together.plan)


def test_pods_of_shares_go_where_gpus_are_offered_in_shares() -> None:
    asking = job(n_tasks=2, n_workers=2, resources_per_task=sf.Resources(cpu=1, gpu=0.5))
    assert_manifests("volcano-gpu-shares", *build_volcano_objects(asking))
