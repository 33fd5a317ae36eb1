"""Task groups by stock Volcano beside its default placement, on KWOK's fake nodes.

``python -m tests.benchmarks.mpi_placement`` needs ``KUBECONFIG`` of a cluster with Volcano and with fake nodes: they
have the label ``type=kwok`` and the taint ``kwok.x-k8s.io/node``, so that only what tolerates it lands there. Each
round makes jobs in a namespace of its own, as ``scanflow`` submits them or plain ones, in turn, and removes them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.mpi.mpi_objects import ClusterJob
from scanflow.backends.kubernetes.mpi.volcano import build_volcano_objects
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import plan_job
from tests.waiting import wait_until

MAX_DURATION_S: Final = 240.0
FAKE: Final = {"type": "kwok"}
TOLERATION: Final = {"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True, kw_only=True)
class Placed:
    """How one round went."""

    pods: int
    seconds: float
    """Until the last pod had a node."""

    created_s: float
    """Until the last pod was there."""

    imbalance: int
    """The most by which the workers of a job differ between the nodes that it is on."""

    nodes: float
    """On how many nodes a job is, on average."""


def make_grouped(namespace: str, name: str, tasks: int, nodes: int, *, task_topology: bool = True) -> list[Manifest]:
    """Return a job as scanflow submits it, with the policy ``granularity``."""
    workload = sf.MPIWorkload(
        name="bench", mainfile="/bench", n_tasks=tasks, n_nodes=nodes, profile="cpu", policy="granularity"
    )
    plan = plan_job(workload, [ClusterNode(name=f"n{place}", cores=16) for place in range(nodes)])
    job = ClusterJob(
        app="bench",
        team="mpi",
        namespace=namespace,
        run=name,
        workload=workload,
        plan=plan,
        argv=["/bench"],
        image="fake",
        task_topology=task_topology,
        has_services=False,  # as there are none on fake nodes
    )
    objects = build_volcano_objects(job)
    for task in objects[-1]["spec"]["tasks"]:
        task["template"]["spec"] |= {"nodeSelector": FAKE, "tolerations": [TOLERATION]}
    return objects


def plain(namespace: str, name: str, tasks: int, nodes: int) -> list[Manifest]:
    """Return a plain Job for MPI, with ssh and a hostfile too: its workers are one task, placed by default."""
    *files, job = make_grouped(namespace, name, tasks, nodes)
    launcher, worker, *_ = job["spec"]["tasks"]
    job["metadata"].pop("annotations", None)
    for ours in ("affinity", "topologySpreadConstraints"):
        worker["template"]["spec"].pop(ours, None)
    job["spec"]["tasks"] = [launcher, {**worker, "name": "worker", "replicas": tasks}]
    return [*files, job]


def make_without_plugin(namespace: str, name: str, tasks: int, nodes: int) -> list[Manifest]:
    """Return a job as scanflow submits it where the plugin is off, less the annotations, of no effect then."""
    *files, job = make_grouped(namespace, name, tasks, nodes, task_topology=False)
    job["metadata"].pop("annotations")
    return [*files, job]


def make_annotated(namespace: str, name: str, tasks: int, nodes: int) -> list[Manifest]:
    """Return a job as scanflow submits it, less the affinities of its pods: the annotations alone."""
    *files, job = make_grouped(namespace, name, tasks, nodes)
    for task in job["spec"]["tasks"]:
        task["template"]["spec"].pop("affinity", None)
    return [*files, job]


KINDS: Final[Mapping[str, Callable[[str, str, int, int], list[Manifest]]]] = {
    "scanflow": make_grouped,
    "both": partial(make_grouped, task_topology=False),  # annotations, and affinities for schedulers without the plugin
    "annotated": make_annotated,
    "wished": make_without_plugin,
    "plain": plain,
}


@contextmanager
def namespace_of_own(cluster: Cluster) -> Iterator[str]:
    name = f"scanflow-placement-{uuid.uuid4().hex[:6]}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        cluster.delete("Namespace", name)
        wait_until(lambda: cluster.get("Namespace", name) is None, f"{name} is gone", patience_s=MAX_DURATION_S)


def measure_placement(
    cluster: Cluster, make: Callable[[str, str, int, int], list[Manifest]], *, jobs: int, tasks: int, nodes: int
) -> Placed:
    """Submit the jobs, and return how their pods were placed."""
    with namespace_of_own(cluster) as namespace:
        job_objects = [make(namespace, f"job-{number}", tasks, nodes) for number in range(jobs)]
        wanted = jobs * (tasks + 1)
        _, since = cluster.find("Pod", namespace)
        began = time.monotonic()
        with ThreadPoolExecutor(4) as several:
            list(several.map(lambda objects: [cluster.create(manifest) for manifest in objects], job_objects))
        # Watched: asked for again and again, they would take half of what the API server can do on two cores.
        there: dict[str, Manifest] = {}
        created_s = 0.0
        for event in cluster.watch("Pod", namespace, since=since, within_s=MAX_DURATION_S):
            there[event.object["metadata"]["name"]] = event.object
            if not created_s and len(there) == wanted:
                created_s = time.monotonic() - began
            if sum("nodeName" in pod["spec"] for pod in there.values()) == wanted:
                break
        else:
            raise TimeoutError(f"Not all of {wanted} pods have a node after {MAX_DURATION_S:g} s.")
        seconds, pods = time.monotonic() - began, list(there.values())
        on_nodes: dict[str, Counter[str]] = {}
        for pod in pods:
            job = pod["metadata"]["annotations"]["volcano.sh/job-name"]
            if pod["metadata"]["annotations"]["volcano.sh/task-spec"] != "launcher":
                on_nodes.setdefault(job, Counter())[pod["spec"]["nodeName"]] += 1
        return Placed(
            pods=len(pods),
            seconds=seconds,
            created_s=created_s,
            imbalance=max(max(count.values()) - min(count.values()) for count in on_nodes.values()),
            nodes=statistics.fmean(map(len, on_nodes.values())),
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=10, help="jobs that are submitted together")
    options.add_argument("--tasks", type=int, default=16, help="of each, a worker each")
    options.add_argument("--nodes", type=int, default=4, help="of each")
    options.add_argument("--pairs", type=int, default=3, help="rounds of each kind")
    options.add_argument("--kinds", nargs="+", default=["scanflow", "plain"], choices=list(KINDS))
    args = options.parse_args()
    cluster = Cluster(KubernetesSettings.from_environment())
    there = len(cluster.find("Node", labels="type=kwok")[0])
    kinds = {kind: KINDS[kind] for kind in args.kinds}
    placements: dict[str, list[Placed]] = {kind: [] for kind in kinds}
    for pair in range(args.pairs):
        for kind in list(kinds) if pair % 2 == 0 else reversed(kinds):
            placement = measure_placement(cluster, kinds[kind], jobs=args.jobs, tasks=args.tasks, nodes=args.nodes)
            print(f"{kind:9} {json.dumps(vars(placement))}", flush=True)
            placements[kind].append(placement)
    print(f"{there} fake nodes, {args.jobs} jobs of {args.tasks} workers on {args.nodes} nodes, {args.pairs} pairs")
    for kind, rounds in placements.items():
        rate = statistics.median(measurement.pods / measurement.seconds for measurement in rounds)
        worst = max(measurement.imbalance for measurement in rounds)
        nodes = statistics.fmean(measurement.nodes for measurement in rounds)
        beside = placements.get("plain", rounds)
        ratios = [theirs.seconds / ours.seconds for ours, theirs in zip(rounds, beside, strict=True)]
        print(
            f"{kind:9} {rate:.1f} pods/s, {statistics.median(ratios):.2f} of plain ({min(ratios):.2f} to "
            f"{max(ratios):.2f}), imbalance at most {worst}, {nodes:.1f} nodes a job"
        )


if __name__ == "__main__":
    main()
