"""An MPI job as an MPIJob of Kubeflow's MPI Operator."""

from __future__ import annotations

from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.mpi.affinity import placed
from scanflow.backends.kubernetes.mpi.job import ClusterJob, launcher, mpirun, worker_pod
from scanflow.errors import UnsupportedError


def mpi_job(job: ClusterJob) -> Manifest:
    """Return the MPIJob. The operator makes the hostfile, the keys and the workers' sshd.

    Raises:
        UnsupportedError: its workers have different numbers of tasks, which an MPIJob cannot say.
    """
    sizes = {worker.n_tasks for worker in job.plan.workers}
    if len(sizes) > 1:
        raise UnsupportedError(
            f"MPIWorkload {job.workload.name!r}: an MPIJob has the same number of tasks in each worker, and "
            f"{job.workload.n_tasks} tasks are in {len(job.plan.workers)}. Choose n_workers that divides n_tasks, or "
            "Volcano."
        )
    ssh = {"readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 1}}
    return {
        "apiVersion": KINDS["MPIJob"].api_version,
        "kind": "MPIJob",
        "metadata": job.metadata,
        "spec": {
            "slotsPerWorker": sizes.pop(),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, "ttlSecondsAfterFinished": job.keep_s},
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, launcher(job, mpirun(job, "/etc/mpi/hostfile"))),
                "Worker": _replicas(len(job.plan.workers), placed(job, worker_pod(job, job.plan.workers[0], **ssh))),
            },
        },
    }


def _replicas(count: int, template: Manifest) -> Manifest:
    """The operator has the restart policy beside the template."""
    spec = {name: value for name, value in template["spec"].items() if name != "restartPolicy"}
    return {"replicas": count, "restartPolicy": "Never", "template": {**template, "spec": spec}}
