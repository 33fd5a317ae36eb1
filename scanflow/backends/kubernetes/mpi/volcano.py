"""An MPI job as a Job of stock Volcano: a gang of a launcher and workers; groups of workers are tasks (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import yaml

from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.mpi.affinity import placed
from scanflow.backends.kubernetes.mpi.job import (
    ClusterJob,
    launch_script,
    launcher,
    mpirun,
    worker_pod,
    worker_resources,
)
from scanflow.placement.mpi.tasks import MPIWorker, hostfile

LAUNCHER: Final = "launcher"
SCHEDULER: Final = ("volcano-system", "volcano-scheduler-configmap")
"""Namespace and name of the scheduler's settings, as Volcano is installed."""

SCHEDULER_FILE: Final = "volcano-scheduler.conf"
LEAST_WEIGHT: Final = 10
_FILES: Final = "/etc/scanflow"


class _Task(NamedTuple):
    """Workers of one group that are alike."""

    name: str
    group: int
    workers: tuple[MPIWorker, ...]


def volcano_objects(job: ClusterJob) -> list[Manifest]:
    """Return the Job, and the ConfigMap with its hostfile where there are several workers.

    Each group is a task, or two where its workers are of two sizes. Volcano's task-topology plugin keeps the workers of
    a group on one node and groups on different nodes; where it is off, preferred pod (anti-)affinities do.
    """
    if job.alone:
        return [_job(job, [], _alone(job))]
    tasks = list(_tasks(job))
    named = {worker.index: _host(job, task, place) for task in tasks for place, worker in enumerate(task.workers)}
    hosts = [(named[worker.index], worker.n_tasks) for worker in job.plan.workers]  # mpirun numbers ranks in this order
    files: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": job.metadata,
        "data": {
            "hostfile": hostfile(hosts),
            "launch": launch_script(mpirun(job, f"{_FILES}/hostfile"), [host for host, _ in hosts]),
        },
    }
    return [files, _job(job, tasks, _launcher(job))]


def has_task_topology(settings: Manifest | None) -> bool:
    """Whether Volcano's scheduler places groups by its plugin task-topology alone, by the ConfigMap of its settings.

    With less than the weight that was tried, the node order's and binpack's scores may outweigh the plugin's.
    """
    text = ((settings or {}).get("data") or {}).get(SCHEDULER_FILE, "")
    try:
        tiers = (yaml.safe_load(text) or {}).get("tiers") or []
        plugins = [plugin for tier in tiers for plugin in tier.get("plugins") or []]
        found = [plugin.get("arguments") or {} for plugin in plugins if plugin.get("name") == "task-topology"]
        return any(float(one.get("task-topology.weight", 1)) >= LEAST_WEIGHT for one in found)
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        return False  # somebody's own, which Volcano may read


def _tasks(job: ClusterJob) -> Iterator[_Task]:
    group_of = {rank.worker: rank.group for rank in job.plan.ranks}
    alike: dict[int, dict[int, list[MPIWorker]]] = {}  # by group and number of tasks
    for worker in job.plan.workers:
        alike.setdefault(group_of[worker.index], {}).setdefault(worker.n_tasks, []).append(worker)
    for group, sizes in sorted(alike.items()):
        for place, size in enumerate(sorted(sizes, reverse=True)):
            yield _Task(f"group-{group}" if place == 0 else f"group-{group}-b", group, tuple(sizes[size]))


def _host(job: ClusterJob, task: _Task, index: int) -> str:
    """Return a worker's name in the headless service that the plugin ``svc`` makes."""
    return f"{job.name}-{task.name}-{index}.{job.name}"


def _job(job: ClusterJob, tasks: list[_Task], launched: Manifest) -> Manifest:
    metadata = job.metadata
    metadata["annotations"] |= _topology(tasks)
    return {
        "apiVersion": KINDS["Job"].api_version,
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": 1 + sum(len(task.workers) for task in tasks),
            "maxRetry": 1,
            "ttlSecondsAfterFinished": job.keep_s,
            "plugins": {"ssh": [], "svc": []} if tasks else {},
            "tasks": [
                {
                    "name": LAUNCHER,
                    "replicas": 1,
                    "policies": [
                        {"event": "TaskCompleted", "action": "CompleteJob"},
                        # A worker that is lost ends mpirun, and that ends the job: its log stays to be read.
                        {"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"},
                    ],
                    "template": launched,
                },
                *(_worker_task(job, task) for task in tasks),
            ],
        },
    }


def _topology(tasks: list[_Task]) -> dict[str, str]:
    groups: dict[int, list[str]] = {}
    for task in tasks:
        groups.setdefault(task.group, []).append(task.name)
    if not groups:
        return {}
    found = {"volcano.sh/task-topology-affinity": ";".join(",".join(names) for names in groups.values())}
    if len(groups) > 1:
        found["volcano.sh/task-topology-anti-affinity"] = ",".join(names[0] for names in groups.values())
    return found


def _alone(job: ClusterJob) -> Manifest:
    """Return the one pod of a job that is one worker: the ranks are its processes."""
    [worker] = job.plan.workers
    return placed(job, launcher(job, mpirun(job, None), resources=worker_resources(worker, job)))


def _launcher(job: ClusterJob) -> Manifest:
    files = [{"name": "files", "configMap": {"name": job.name}}]
    mounts = [{"name": "files", "mountPath": _FILES}]
    return launcher(job, ["/bin/sh", f"{_FILES}/launch"], mounts=mounts, volumes=files)


def _worker_task(job: ClusterJob, task: _Task) -> Manifest:
    template = worker_pod(job, task.workers[0], ports=[{"containerPort": 22, "name": "ssh"}])
    return {"name": task.name, "replicas": len(task.workers), "template": placed(job, template, task.group)}
