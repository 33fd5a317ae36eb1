"""What the objects of an MPI job have in common: its pods, what the launcher runs, how large a worker is. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import format_memory
from scanflow.backends.kubernetes.batch.layout import DRIVE, format_workflow_name
from scanflow.backends.kubernetes.environment.manifests import variables_from
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import labels_of
from scanflow.backends.kubernetes.mpi.output import TOLD
from scanflow.placement.mpi.plan import MPIPlan
from scanflow.placement.mpi.tasks import MPIWorker

CONNECT_S: Final = 300
"""Longest that a launcher waits for its workers' sshd."""

ROLE: Final = "scanflow.dev/mpi-role"
"""A label of pods: ``launcher`` or ``worker``."""

GRACE_S: Final = 5
"""How long ``mpirun`` may take to end its ranks."""

NETWORKS: Final = "k8s.v1.cni.cncf.io/networks"
"""Multus' annotation of a pod: the networks that it is on beside the pod network."""

_NAMED_S: Final = 1.5
"""How soon a launcher asks for its workers: CoreDNS keeps for 5 s that there is no name, which pods get with their
addresses. Without it, starting takes 3 s more."""

_INTERFACE: Final = "eth0"  # of the pod network, by every CNI; Open MPI tries all that there are, and may hang on one
_SECOND_INTERFACE: Final = "net1"  # as Multus names the first one that it adds

_VARIABLES: Final = "/dev/shm/scanflow-variables"  # noqa: S108 - in the pod's own memory, which only its root reads
_SSHD: Final = f"umask 077; export -p >{_VARIABLES}; umask 022; mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e"
"""What a worker runs. A rank that ssh starts has no variables of its pod, Secrets among them, and reads them there."""

# Each rank tells where it begins and how it ends; mpirun puts the rank's number in front of all that it writes.
_RANK: Final = (
    f"if [ -r {_VARIABLES} ]; then . {_VARIABLES}; fi; "
    'if [ -n "$SCANFLOW_OUTPUT_DIR" ]; then mkdir -p "$SCANFLOW_OUTPUT_DIR"; fi; '
    f'echo "{TOLD} began $(hostname)"; "$@"; code=$?; echo "{TOLD} ended $code"; exit $code'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How the pods of a job reach one another (thesis 3.5)."""

    host: bool = False
    """In the network of their nodes, past the pod network. The namespace has to allow it."""

    multus: str | None = None
    """The secondary network that Multus gives them: the name of a NetworkAttachmentDefinition."""

    @property
    def interface(self) -> str | None:
        """What Open MPI is to use; None: whatever the nodes have."""
        return None if self.host else _INTERFACE if self.multus is None else _SECOND_INTERFACE


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """An MPI job that is to run on a cluster."""

    app: str
    team: str
    namespace: str
    run: str
    workload: MPIWorkload
    plan: MPIPlan
    argv: Sequence[str]
    """The program of a rank with its arguments, as the image has it."""

    image: str
    drive: int = 1
    """How often the run was driven: its objects are named by it."""

    launcher_cpu: str = "50m"
    keep_s: int = 86_400
    """How long its objects are kept after its end."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Of each rank."""

    volumes: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()
    """What all pods mount: the application's files, where the image has them not; where results go."""

    folder: str | None = None
    """Where ranks start. None: where the image says."""

    service_account: str | None = None
    network: Network = Network()
    task_topology: bool = False
    """Whether the scheduler keeps groups together and apart by itself: their pods need no affinities for it."""

    beside_services: bool = True
    """Whether services are there, to be kept out of the way of: a wish about pods that nobody has costs the scheduler a
    twentieth of its throughput on a thousand nodes."""

    @property
    def name(self) -> str:
        """The name of its objects."""
        return format_workflow_name(self.run, self.drive)

    @property
    def alone(self) -> bool:
        """Whether one pod holds all ranks, which then need no ssh."""
        return len(self.plan.workers) == 1

    @property
    def labels(self) -> dict[str, str]:
        return labels_of(self.app, self.team, run=self.run, step=self.workload.name)

    @property
    def metadata(self) -> Manifest:
        return {
            "name": self.name,
            "namespace": self.namespace,
            "labels": self.labels,
            "annotations": {DRIVE: str(self.drive)},
        }


def worker_resources(worker: MPIWorker, job: ClusterJob) -> Manifest:
    """Return a worker's requests and limits: with an affinity whole cores of its own (QoS class Guaranteed)."""
    memory = None if worker.memory_bytes is None else format_memory(worker.memory_bytes)
    if job.workload.mode == "any":
        asked: Manifest = {"cpu": _cores(worker.cores)}
        if memory is not None:
            asked["memory"] = memory
        return {"requests": asked} if memory is None else {"requests": asked, "limits": {"memory": memory}}
    whole = {"cpu": str(max(1, math.ceil(worker.cores))), "memory": memory or "512Mi"}
    return {"requests": whole, "limits": whole}


def mpirun(job: ClusterJob, hostfile: str | None) -> list[str]:
    """Return the command of the launcher. The ranks are bound to cores of their own with ``cpumempin`` only."""
    binding = "core" if job.workload.mode == "cpumempin" else "none"
    where = ["--oversubscribe"] if hostfile is None else ["--hostfile", hostfile]
    rank = ["sh", "-c", _RANK, "rank", *job.argv]
    return ["mpirun", "-np", str(job.workload.n_tasks), *where, "--bind-to", binding, "--tag-output", *rank]


def launch_script(command: Sequence[str], hosts: Sequence[str]) -> str:
    """Return the launcher's shell script: it waits for each worker's sshd, a bounded time, then runs ``mpirun``."""
    lines = ["set -e", f"deadline=$(($(date +%s) + {CONNECT_S}))"]
    if hosts:
        lines += [
            f"sleep {_NAMED_S}",
            f"for host in {' '.join(hosts)}; do",
            "  until ssh -o ConnectTimeout=2 -o BatchMode=yes $host true 2>/dev/null; do",
            "    if [ $(date +%s) -ge $deadline ]; then",
            f'      echo "The worker $host did not answer to ssh within {CONNECT_S} s." >&2; exit 1',
            "    fi",
            "    sleep 0.3",
            "  done",
            "done",
        ]
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])


def launcher(job: ClusterJob, command: Sequence[str], **container: Any) -> Manifest:
    """Return the template of the pod that runs ``mpirun``, which ends with the job's timeout."""
    mounts = [*job.mounts, *container.pop("mounts", ())]
    volumes = [*job.volumes, *container.pop("volumes", ())]
    small = {"requests": {"cpu": job.launcher_cpu, "memory": "64Mi"}}
    found = _pod(job, "launcher", {"command": list(command), "resources": small, **container}, mounts, volumes)
    found["spec"]["terminationGracePeriodSeconds"] = GRACE_S
    if job.workload.timeout_s is not None:
        found["spec"]["activeDeadlineSeconds"] = max(1, round(job.workload.timeout_s))
    return found


def worker_pod(job: ClusterJob, worker: MPIWorker, **container: Any) -> Manifest:
    """Return the template of the pod of a worker, and of those that are like it."""
    resources = worker_resources(worker, job)
    sshd = ["/bin/sh", "-c", _SSHD]
    found = _pod(job, "worker", {"command": sshd, "resources": resources, **container}, job.mounts, job.volumes)
    found["spec"]["terminationGracePeriodSeconds"] = 1
    return found


def _pod(
    job: ClusterJob, role: str, container: Manifest, mounts: Sequence[Manifest], volumes: Sequence[Manifest]
) -> Manifest:
    made: Manifest = {
        "name": role,
        "image": job.image,
        "env": _environment(job),
        "envFrom": variables_from(),
        **container,
    }
    spec: Manifest = {"restartPolicy": "Never", "containers": [made]}
    metadata: Manifest = {"labels": {**job.labels, ROLE: role}}
    if job.folder is not None:
        made["workingDir"] = job.folder
    if mounts:
        made["volumeMounts"] = list(mounts)
    if volumes:
        spec["volumes"] = list(volumes)
    if job.service_account is not None:
        spec["serviceAccountName"] = job.service_account
    if job.network.host:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if job.network.multus is not None:
        metadata["annotations"] = {NETWORKS: job.network.multus}
    return {"metadata": metadata, "spec": spec}


def _environment(job: ClusterJob) -> list[Manifest]:
    """Return variables of the launcher and of its ranks."""
    variables = {
        "SCANFLOW_APP": job.app,
        "SCANFLOW_TEAM": job.team,
        "SCANFLOW_RUN": job.run,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if (interface := job.network.interface) is not None:
        variables |= {"OMPI_MCA_btl_tcp_if_include": interface, "OMPI_MCA_oob_tcp_if_include": interface}
    if job.plan.oversubscribed:
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return [{"name": name, "value": value} for name, value in {**variables, **job.variables}.items()]


def _cores(cores: float) -> str:
    return str(int(cores)) if cores == int(cores) else f"{math.ceil(cores * 1000)}m"
