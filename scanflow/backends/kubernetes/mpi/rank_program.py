"""The program of an MPI job's ranks in pods, and the nodes on which they may be planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from scanflow.app.application import Application
from scanflow.app.mpi import MPIWorkload
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.code_configmap import APP_DIR, CodeConfigMap, build_code
from scanflow.backends.kubernetes.gpu_claims import check_engine
from scanflow.backends.kubernetes.gpus import (
    DevicePlugin,
    GpuRequest,
    build_gpu_request,
    check_gpus,
    count_gpus,
    explain_lack,
    has_labels,
    list_tolerated,
)
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.mpi.affinity import read_node_selector
from scanflow.backends.kubernetes.nodes import is_schedulable, read_allocatable
from scanflow.backends.mpi_program import MPIProgram, check_affinity, load_mpi_program
from scanflow.errors import AccessDeniedError, InvalidError, UnsupportedError
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import MPIPlan


class PodProgram(NamedTuple):
    """The image and command of a rank's pod."""

    workload: MPIWorkload
    image: str
    argv: list[str]
    code: CodeConfigMap | None
    """The application's files, where the image lacks them."""

    note: str = ""
    """What may surprise about the program."""


def build_pod_program(app: Application, workflow: Workflow, settings: KubernetesSettings) -> PodProgram:
    """Return the program of an MPI workflow's ranks.

    A job that names an image finds its program in there; one that names none runs in the settings' image, and the
    application's folder is sent along.

    Raises:
        UnsupportedError: a field that pods do not honour, or there is no image.
        InvalidError: the program cannot be sent.
    """
    program = load_mpi_program(app, workflow)
    workload = program.workload
    _check_supported(workload, settings)
    if workload.image is not None:
        own = f"{workload.mainfile} is looked for in the image: the application's folder is not sent to an own image"
        note = own if program.file is not None else ""
        return PodProgram(workload, workload.image, _build_argv(program, workload.mainfile), None, note)
    if settings.mpi_image is None:
        raise UnsupportedError(
            f"MPIWorkload {workload.name!r} names no image, and pods need one with Open MPI and an sshd. Write "
            "image='...', or set SCANFLOW_KUBERNETES_MPI_IMAGE for all jobs that name none."
        )
    namespace = settings.derive_namespace(app.name, app.team)
    code = build_code(app.name, app.team, namespace, Path(app.app_dir))
    return PodProgram(workload, settings.mpi_image, _build_argv(program, _locate_program(program, app, code)), code)


def _check_supported(workload: MPIWorkload, settings: KubernetesSettings) -> None:
    who = f"MPIWorkload {workload.name!r}"
    if workload.runtime is not None:
        raise UnsupportedError(
            f"{who}: the backend 'kubernetes' does not support runtime: its nodes have one. Remove it."
        )
    if workload.flavor == "mpich":
        raise UnsupportedError(
            f"{who}: on Kubernetes jobs run under Open MPI. Compile the program with it, and remove flavor."
        )
    check_affinity(workload, "node_selector")
    check_gpus(settings.device_plugin, lambda: None, workload.resources_per_task, who)
    if settings.mpi == "volcano":
        advice = "Have the MPI Operator run jobs: SCANFLOW_KUBERNETES_MPI=mpi-operator."
        check_engine("Volcano", workload.resources_per_task, settings.device_plugin, who, advice)


def check_ranks_per_pod(workload: MPIWorkload, plan: MPIPlan) -> None:
    """Check that no rank has to find its share or part of a GPU among those of others: a device plugin does not say
    which of its pod's are which.

    Raises:
        UnsupportedError: pods have several ranks, with a share or part each.
    """
    gpu, most = workload.resources_per_task.gpu, max(worker.n_tasks for worker in plan.workers)
    if not isinstance(gpu, int) and most > 1:
        raise UnsupportedError(
            f"MPIWorkload {workload.name!r}: the backend 'kubernetes' does not support "
            f"resources_per_task.{workload.resources_per_task.part_of_gpu}, for {most} ranks in a pod. Give each rank "
            f"a pod of its own: n_workers={workload.n_tasks}; or whole GPUs: gpu=1."
        )


def _locate_program(program: MPIProgram, app: Application, code: CodeConfigMap) -> str:
    """Return the path of the program among the application's files in a pod."""
    who = f"MPIWorkload {program.workload.name!r}"
    assert program.file is not None
    try:
        path = program.file.relative_to(Path(app.app_dir).resolve())
    except ValueError as error:
        raise InvalidError(
            f"{who}: {str(program.file)!r} is outside the application's folder, so it is not sent to the cluster. Move "
            "it there, or name an image that has it: image='...'."
        ) from error
    item = {item["path"]: item for item in code.volume["configMap"]["items"]}.get(path.as_posix())
    if item is None:
        raise InvalidError(f"{who}: {str(path)!r} is not among the files that are sent. See .scanflowignore.")
    if program.file.suffix != ".py" and "mode" not in item:
        raise InvalidError(
            f"{who}: {str(path)!r} is not executable. Compile it, or make it executable: chmod +x {path}"
        )
    return str(PurePosixPath(APP_DIR) / path.as_posix())


def _build_argv(program: MPIProgram, path: str) -> list[str]:
    python = ["python3"] if path.endswith(".py") else []
    return [*python, path, *program.arguments]


def list_cluster_nodes(cluster: Cluster, workload: MPIWorkload, device_plugin: DevicePlugin) -> list[ClusterNode]:
    """Return the nodes that may run a job's ranks, the largest first, with their allocatable resources, which a job may
    wait for: cores only for as many ranks as there are GPUs. Without the right to list nodes, assume as many as
    requested, of sufficient size.

    Raises:
        InvalidError: no node has the labels, or there are not enough GPUs.
    """
    try:
        nodes, _ = cluster.find("Node")
    except AccessDeniedError:
        cores = (workload.resources_per_task.cores or 1.0) * workload.n_tasks
        return [ClusterNode(name=f"node-{place}", cores=cores) for place in range(workload.n_nodes)]
    if selector := read_node_selector(workload):
        labels = [node["metadata"].get("labels") or {} for node in nodes]
        nodes = [
            node for node, node_labels in zip(nodes, labels, strict=True) if selector.items() <= node_labels.items()
        ]
        if not nodes:
            requirements = ", ".join(f"{name}={value}" for name, value in selector.items())
            raise InvalidError(
                f"MPIWorkload {workload.name!r}: no node has the labels {requirements} of its node_selector."
            )
    request = build_gpu_request(workload.resources_per_task, device_plugin)
    usable = [node for node in nodes if is_schedulable(node, list_tolerated(request))]
    if request is None or request.claim:
        candidates = _list_candidates(usable)
    else:
        candidates = _list_with_gpus(usable, workload, request)
    return sorted(candidates, key=lambda node: (-node.cores, node.name))


def _list_candidates(nodes: Iterable[Manifest]) -> list[ClusterNode]:
    allocatable = [(str(node["metadata"]["name"]), *read_allocatable(node)) for node in nodes]
    return [ClusterNode(name=name, cores=cores, memory_bytes=memory) for name, cores, memory in allocatable]


def _list_with_gpus(nodes: Sequence[Manifest], workload: MPIWorkload, request: GpuRequest) -> list[ClusterNode]:
    """Return the nodes with GPUs for a rank at least, each with cores for as many ranks as it has GPUs for."""
    who, cores_each = f"MPIWorkload {workload.name!r}", workload.resources_per_task.cores or 1.0
    if lack := explain_lack(nodes, request):
        raise InvalidError(f"{who}: no node has the GPUs of a rank: {lack}.")
    suiting = [node for node in nodes if has_labels(node, request.labels)]
    ranks = {node["metadata"]["name"]: count_gpus(node, request.resource) // request.number for node in suiting}
    if sum(ranks.values()) < workload.n_tasks:
        raise InvalidError(
            f"{who}: each of its {workload.n_tasks} ranks asks for {request.number} of {request.resource}, and the "
            f"nodes have them for {sum(ranks.values())}. Request fewer, or start fewer ranks."
        )
    return [
        replace(node, cores=min(node.cores, ranks[node.name] * cores_each))
        for node in _list_candidates(suiting)
        if ranks[node.name]
    ]
