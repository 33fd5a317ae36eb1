"""The common parts of MPI jobs' objects: pod templates, the launcher's command, worker resources. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import format_memory
from scanflow.app.resources import Resources
from scanflow.backends.kubernetes.batch.pod_layout import DRIVE, format_workflow_name
from scanflow.backends.kubernetes.environment.manifests import build_env_from
from scanflow.backends.kubernetes.gpu_claims import build_claim_templates
from scanflow.backends.kubernetes.gpus import DevicePlugin, GpuRequest, build_gpu_request, build_gpu_variables
from scanflow.backends.kubernetes.kinds import Manifest, drop_empty
from scanflow.backends.kubernetes.mpi.launcher_log import REPORT_PREFIX
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.placement.mpi.job_plan import MPIPlan
from scanflow.placement.mpi.task_allocation import MPIWorker

CONNECT_S: Final = 300
"""The longest time that a launcher waits for its workers' sshd."""

ROLE: Final = "scanflow.dev/mpi-role"
"""A label of pods: ``launcher`` or ``worker``."""

GRACE_S: Final = 5
"""Grace period in which ``mpirun`` ends its ranks."""

NETWORKS: Final = "k8s.v1.cni.cncf.io/networks"
"""Multus' annotation of a pod: its networks beside the pod network."""

_NAMED_S: Final = 1.5
"""Delay of a launcher's first DNS query: CoreDNS caches a missing name for 5 s, and pods get names with their
addresses. Without the delay, starting takes 3 s more."""

_INTERFACE: Final = "eth0"  # of the pod network, by every CNI; Open MPI tries all that there are, and may hang on one
_SECOND_INTERFACE: Final = "net1"  # as Multus names the first one that it adds

_VARIABLES: Final = "/dev/shm/scanflow-variables"  # noqa: S108 - in the pod's own memory, which only its root reads
_SSHD: Final = f"umask 077; export -p >{_VARIABLES}; umask 022; mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e"
"""A worker's command. Ranks started by ssh lack their pod's environment, Secrets included, and read it from there."""

# Each rank prints its host at its start and its exit code at its end; mpirun prefixes its output with its number.
_RANK: Final = (
    f"if [ -r {_VARIABLES} ]; then . {_VARIABLES}; fi; "
    'if [ -n "$SCANFLOW_OUTPUT_DIR" ]; then mkdir -p "$SCANFLOW_OUTPUT_DIR"; fi; '
    f'echo "{REPORT_PREFIX} began $(hostname)"; "$@"; code=$?; echo "{REPORT_PREFIX} ended $code"; exit $code'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How the pods of a job reach one another (thesis 3.5)."""

    host: bool = False
    """Whether they are in the network of their nodes, which the namespace has to allow."""

    multus: str | None = None
    """Their secondary network: the name of a NetworkAttachmentDefinition of Multus."""

    @property
    def interface(self) -> str | None:
        """The interface for Open MPI; None: any of the node's."""
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
    """A rank's program in the image, with its arguments."""

    image: str
    drive: int = 1
    """The number of the run's drive, which is part of its objects' names."""

    launcher_cpu: str = "50m"
    keep_s: int = 86_400
    """How long its objects are kept after its end."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables of each rank."""

    volumes: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()
    """Mounts of all pods: the application's files, where the image lacks them, and the volume of results."""

    folder: str | None = None
    """The working directory of ranks. None: the image's."""

    service_account: str | None = None
    device_plugin: DevicePlugin = field(default_factory=DevicePlugin)
    network: Network = Network()
    task_topology: bool = False
    """Whether the scheduler itself keeps groups together and apart, so that pods need no affinities for it."""

    has_services: bool = True
    """Whether there are services to avoid: a preference about pods that do not exist costs the scheduler a twentieth of
    its throughput on a thousand nodes."""

    @property
    def name(self) -> str:
        """The name of its objects."""
        return format_workflow_name(self.run, self.drive)

    @property
    def is_single_pod(self) -> bool:
        """Whether one pod holds all ranks, which then need no ssh."""
        return len(self.plan.workers) == 1

    @property
    def labels(self) -> dict[str, str]:
        return build_labels(self.app, self.team, run=self.run, step=self.workload.name)

    @property
    def metadata(self) -> Manifest:
        return {
            "name": self.name,
            "namespace": self.namespace,
            "labels": self.labels,
            "annotations": {DRIVE: str(self.drive)},
        }


def build_worker_gpus(worker: MPIWorker, job: ClusterJob) -> GpuRequest | None:
    """Return what a worker asks for: the whole GPUs of all its ranks, or the share or part of its only one; None:
    none."""
    return build_gpu_request(_add_gpus(worker, job), job.device_plugin)


def build_worker_claims(job: ClusterJob) -> list[Manifest]:
    """Return the templates of what workers claim."""
    asking = [_add_gpus(worker, job) for worker in job.plan.workers]
    return build_claim_templates(asking, job.device_plugin, app=job.app, team=job.team, namespace=job.namespace)


def _add_gpus(worker: MPIWorker, job: ClusterJob) -> Resources:
    resources = job.workload.resources_per_task
    gpu = worker.n_tasks * resources.gpu if isinstance(resources.gpu, int) else resources.gpu
    return resources.model_copy(update={"gpu": gpu})


def compute_worker_resources(worker: MPIWorker, job: ClusterJob) -> Manifest:
    """Return a worker's requests and limits; with an affinity, whole exclusive cores (QoS class Guaranteed)."""
    gpus = build_worker_gpus(worker, job)
    resources = _compute_cores_and_memory(worker, job)
    if gpus is not None:
        resources |= drop_empty(limits=resources.get("limits", {}) | gpus.limits, claims=gpus.claims)
    return resources


def _compute_cores_and_memory(worker: MPIWorker, job: ClusterJob) -> Manifest:
    memory = None if worker.memory_bytes is None else format_memory(worker.memory_bytes)
    if job.workload.mode == "any":
        asked: Manifest = {"cpu": _format_cores(worker.cores)}
        if memory is not None:
            asked["memory"] = memory
        return {"requests": asked} if memory is None else {"requests": asked, "limits": {"memory": memory}}
    whole = {"cpu": str(max(1, math.ceil(worker.cores))), "memory": memory or "512Mi"}
    return {"requests": whole, "limits": dict(whole)}


def build_mpirun_command(job: ClusterJob, hostfile: str | None) -> list[str]:
    """Return the command of the launcher. Ranks are bound to cores with ``cpumempin`` only."""
    binding = "core" if job.workload.mode == "cpumempin" else "none"
    hosts = ["--oversubscribe"] if hostfile is None else ["--hostfile", hostfile]
    rank = ["sh", "-c", _choose_gpus(job) + _RANK, "rank", *job.argv]
    return ["mpirun", "-np", str(job.workload.n_tasks), *hosts, "--bind-to", binding, "--tag-output", *rank]


def _choose_gpus(job: ClusterJob) -> str:
    """Return the shell command by which a rank sees its own GPUs of its pod's and no others, by its local rank."""
    count = job.workload.resources_per_task.gpu
    if not count or not isinstance(count, int):  # the rank is alone with its pod's share or part
        return ""
    name = "CUDA_VISIBLE_DEVICES" if job.device_plugin.vendor == "nvidia" else "HIP_VISIBLE_DEVICES"
    first = f"OMPI_COMM_WORLD_LOCAL_RANK * {count}"
    return f"export {name}=$(seq -s , $(({first})) $(({first} + {count} - 1))); "


def format_launch_script(command: Sequence[str], hosts: Sequence[str]) -> str:
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


def build_launcher_template(
    job: ClusterJob, command: Sequence[str], worker: MPIWorker | None = None, **container: Any
) -> Manifest:
    """Return the pod template of ``mpirun``, which ends at the job's timeout; ``worker``: whose ranks it has, too."""
    mounts = [*job.mounts, *container.pop("mounts", ())]
    volumes = [*job.volumes, *container.pop("volumes", ())]
    least = {"requests": {"cpu": job.launcher_cpu, "memory": "64Mi"}}
    resources = least if worker is None else compute_worker_resources(worker, job)
    gpus = None if worker is None else build_worker_gpus(worker, job)
    template = _build_pod_template(
        job, "launcher", {"command": list(command), "resources": resources, **container}, mounts, volumes, gpus
    )
    template["spec"]["terminationGracePeriodSeconds"] = GRACE_S
    if job.workload.timeout_s is not None:
        template["spec"]["activeDeadlineSeconds"] = max(1, round(job.workload.timeout_s))
    return template


def build_worker_template(job: ClusterJob, worker: MPIWorker, **container: Any) -> Manifest:
    """Return the pod template of a worker and of all identical ones."""
    resources = compute_worker_resources(worker, job)
    sshd = ["/bin/sh", "-c", _SSHD]
    gpus = build_worker_gpus(worker, job)
    template = _build_pod_template(
        job, "worker", {"command": sshd, "resources": resources, **container}, job.mounts, job.volumes, gpus
    )
    template["spec"]["terminationGracePeriodSeconds"] = 1
    return template


def _build_pod_template(
    job: ClusterJob,
    role: str,
    container: Manifest,
    mounts: Sequence[Manifest],
    volumes: Sequence[Manifest],
    gpus: GpuRequest | None,
) -> Manifest:
    pod_container: Manifest = {
        "name": role,
        "image": job.image,
        "env": [*_build_environment(job), *build_gpu_variables(gpus)],
        "envFrom": build_env_from(),
        **container,
    }
    spec: Manifest = {"restartPolicy": "Never", "containers": [pod_container]}
    metadata: Manifest = {"labels": {**job.labels, ROLE: role}}
    if job.folder is not None:
        pod_container["workingDir"] = job.folder
    if mounts:
        pod_container["volumeMounts"] = list(mounts)
    if volumes:
        spec["volumes"] = list(volumes)
    if job.service_account is not None:
        spec["serviceAccountName"] = job.service_account
    if job.network.host:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if job.network.multus is not None:
        metadata["annotations"] = {NETWORKS: job.network.multus}
    return {"metadata": metadata, "spec": spec}


def _build_environment(job: ClusterJob) -> list[Manifest]:
    """Return the environment variables of the launcher and of its ranks."""
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


def _format_cores(cores: float) -> str:
    return str(int(cores)) if cores == int(cores) else f"{math.ceil(cores * 1000)}m"
