"""Build the MPIJob of Kubeflow's MPI Operator for an MPI job."""

from __future__ import annotations

from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.mpi.affinity import add_placement
from scanflow.backends.kubernetes.mpi.mpi_objects import (
    ClusterJob,
    build_launcher_template,
    build_mpirun_command,
    build_worker_template,
)
from scanflow.errors import UnsupportedError


def build_mpi_job(job: ClusterJob) -> Manifest:
    """Return the MPIJob. The operator creates the hostfile, the keys and the workers' sshd.

    Raises:
        UnsupportedError: its workers have different numbers of tasks, which an MPIJob cannot express.
    """
    first = job.plan.workers[0]
    sizes = {worker.n_tasks for worker in job.plan.workers}
    if len(sizes) > 1:
        raise UnsupportedError(
            f"MPIWorkload {job.workload.name!r}: an MPIJob has the same number of tasks in each worker, and "
            f"{job.workload.n_tasks} tasks are in {len(job.plan.workers)}. Choose n_workers that divides n_tasks, or "
            "Volcano."
        )
    ssh = {"readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 1}}
    return build_manifest(
        "MPIJob",
        job.metadata,
        spec={
            "slotsPerWorker": sizes.pop(),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, "ttlSecondsAfterFinished": job.keep_s},
            "mpiReplicaSpecs": {
                "Launcher": _build_replicas(
                    1, build_launcher_template(job, build_mpirun_command(job, "/etc/mpi/hostfile"))
                ),
                "Worker": _build_replicas(
                    len(job.plan.workers), add_placement(job, first, build_worker_template(job, first, **ssh))
                ),
            },
        },
    )


def _build_replicas(count: int, template: Manifest) -> Manifest:
    """Return the spec of replicas, with the restart policy beside the template, as the operator expects it."""
    spec = {name: value for name, value in template["spec"].items() if name != "restartPolicy"}
    return {"replicas": count, "restartPolicy": "Never", "template": {**template, "spec": spec}}
