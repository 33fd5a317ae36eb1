"""An MPI job as a Job of stock Volcano: a gang of a launcher and workers; groups of workers are tasks (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import yaml

from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_manifest
from scanflow.backends.kubernetes.mpi.affinity import add_placement
from scanflow.backends.kubernetes.mpi.mpi_objects import (
    ClusterJob,
    build_launcher_template,
    build_mpirun_command,
    build_worker_template,
    format_launch_script,
)
from scanflow.placement.mpi.task_allocation import MPIWorker, format_hostfile

LAUNCHER: Final = "launcher"
SCHEDULER: Final = ("volcano-system", "volcano-scheduler-configmap")
"""Namespace and name of the scheduler's ConfigMap in Volcano's installation."""

SCHEDULER_FILE: Final = "volcano-scheduler.conf"
MIN_WEIGHT: Final = 10
_FILES: Final = "/etc/scanflow"


class _Task(NamedTuple):
    """Equal workers of one group."""

    name: str
    group: int
    workers: tuple[MPIWorker, ...]


def build_volcano_objects(job: ClusterJob) -> list[Manifest]:
    """Return the Job and, where there are several workers, the ConfigMap with its hostfile.

    Each group is a task, or two where its workers are of two sizes. Volcano's task-topology plugin keeps the workers of
    a group on one node and groups on different nodes; where it is off, preferred pod (anti-)affinities do.
    """
    if job.is_single_pod:
        return [_build_job(job, [], _build_single_pod(job))]
    tasks = list(_group_workers(job))
    named = {
        worker.index: _format_host(job, task, place) for task in tasks for place, worker in enumerate(task.workers)
    }
    hosts = [(named[worker.index], worker.n_tasks) for worker in job.plan.workers]  # mpirun numbers ranks in this order
    files: Manifest = build_manifest(
        "ConfigMap",
        job.metadata,
        data={
            "hostfile": format_hostfile(hosts),
            "launch": format_launch_script(
                build_mpirun_command(job, f"{_FILES}/hostfile"), [host for host, _ in hosts]
            ),
        },
    )
    return [files, _build_job(job, tasks, _build_launcher(job))]


def has_task_topology(settings: Manifest | None) -> bool:
    """Return whether Volcano's scheduler places groups by its plugin task-topology alone, according to its ConfigMap.

    Below the tested weight, the scores of nodeorder and binpack may outweigh the plugin's.
    """
    text = ((settings or {}).get("data") or {}).get(SCHEDULER_FILE, "")
    try:
        tiers = (yaml.safe_load(text) or {}).get("tiers") or []
        plugins = [plugin for tier in tiers for plugin in tier.get("plugins") or []]
        arguments = [plugin.get("arguments") or {} for plugin in plugins if plugin.get("name") == "task-topology"]
        return any(
            float(plugin_arguments.get("task-topology.weight", 1)) >= MIN_WEIGHT for plugin_arguments in arguments
        )
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        return False  # a custom format, which Volcano may read


def _group_workers(job: ClusterJob) -> Iterator[_Task]:
    group_of = {rank.worker: rank.group for rank in job.plan.ranks}
    workers_by_size: dict[int, dict[int, list[MPIWorker]]] = {}  # by group and number of tasks
    for worker in job.plan.workers:
        workers_by_size.setdefault(group_of[worker.index], {}).setdefault(worker.n_tasks, []).append(worker)
    for group, sizes in sorted(workers_by_size.items()):
        for place, size in enumerate(sorted(sizes, reverse=True)):
            yield _Task(f"group-{group}" if place == 0 else f"group-{group}-b", group, tuple(sizes[size]))


def _format_host(job: ClusterJob, task: _Task, index: int) -> str:
    """Return a worker's name in the headless service of the plugin ``svc``."""
    return f"{job.name}-{task.name}-{index}.{job.name}"


def _build_job(job: ClusterJob, tasks: list[_Task], launcher_template: Manifest) -> Manifest:
    metadata = job.metadata
    metadata["annotations"] |= _build_topology(tasks)
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
                    "template": launcher_template,
                },
                *(_build_worker_task(job, task) for task in tasks),
            ],
        },
    }


def _build_topology(tasks: list[_Task]) -> dict[str, str]:
    groups: dict[int, list[str]] = {}
    for task in tasks:
        groups.setdefault(task.group, []).append(task.name)
    if not groups:
        return {}
    annotations = {"volcano.sh/task-topology-affinity": ";".join(",".join(names) for names in groups.values())}
    if len(groups) > 1:
        annotations["volcano.sh/task-topology-anti-affinity"] = ",".join(names[0] for names in groups.values())
    return annotations


def _build_single_pod(job: ClusterJob) -> Manifest:
    """Return the pod template of a job with one worker, whose processes are the ranks."""
    [worker] = job.plan.workers
    return add_placement(job, worker, build_launcher_template(job, build_mpirun_command(job, None), worker))


def _build_launcher(job: ClusterJob) -> Manifest:
    files = [{"name": "files", "configMap": {"name": job.name}}]
    mounts = [{"name": "files", "mountPath": _FILES}]
    return build_launcher_template(job, ["/bin/sh", f"{_FILES}/launch"], mounts=mounts, volumes=files)


def _build_worker_task(job: ClusterJob, task: _Task) -> Manifest:
    worker = task.workers[0]
    template = build_worker_template(job, worker, ports=[{"containerPort": 22, "name": "ssh"}])
    return {
        "name": task.name,
        "replicas": len(task.workers),
        "template": add_placement(job, worker, template, task.group),
    }
