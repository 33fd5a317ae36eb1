"""What the ranks of an MPI job run in pods, and on which nodes they may be planned."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from scanflow.app.application import Application
from scanflow.app.mpi import MPIWorkload
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.code import APP_DIR, Code, code_of
from scanflow.backends.kubernetes.labels import namespace_of
from scanflow.backends.kubernetes.mpi.affinity import node_selector
from scanflow.backends.kubernetes.nodes import is_schedulable, read_allocatable
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.mpi_program import MPIProgram, check_affinity, program_of
from scanflow.errors import AccessDeniedError, InvalidError, UnsupportedError
from scanflow.placement.mpi.groups import ClusterNode


class PodProgram(NamedTuple):
    """What a rank runs in its pod."""

    workload: MPIWorkload
    image: str
    argv: list[str]
    code: Code | None
    """The application's files, where the image has them not."""


def pod_program(app: Application, workflow: Workflow, settings: KubernetesSettings) -> PodProgram:
    """Return what the ranks of an MPI workflow run.

    A job that names an image finds its program in there; one that names none runs in the settings' image, and the
    application's folder is sent along.

    Raises:
        UnsupportedError: a field that pods do not honour, or there is no image.
        InvalidError: the program cannot be sent.
    """
    found = program_of(app, workflow)
    workload = found.workload
    _check(workload)
    if workload.image is not None:
        return PodProgram(workload, workload.image, _argv(found, workload.mainfile), None)
    if settings.mpi_image is None:
        raise UnsupportedError(
            f"MPIWorkload {workload.name!r} names no image, and pods need one with Open MPI and an sshd. Write "
            "image='...', or set SCANFLOW_KUBERNETES_MPI_IMAGE for all jobs that name none."
        )
    namespace = namespace_of(app.name, app.team)
    code = code_of(app.name, app.team, namespace, Path(app.app_dir))
    return PodProgram(workload, settings.mpi_image, _argv(found, _sent(found, app, code)), code)


def _check(workload: MPIWorkload) -> None:
    who = f"MPIWorkload {workload.name!r}"
    if workload.runtime is not None:
        raise UnsupportedError(f"{who}: the backend 'kubernetes' cannot honour runtime: its nodes have one. Remove it.")
    if workload.flavor == "mpich":
        raise UnsupportedError(
            f"{who}: on Kubernetes jobs run under Open MPI. Compile it with that, and remove flavor."
        )
    check_affinity(workload, "node_selector")
    if workload.resources_per_task.gpu:
        raise UnsupportedError(f"{who}: the backend 'kubernetes' cannot honour resources_per_task.gpu of MPI jobs.")


def _sent(found: MPIProgram, app: Application, code: Code) -> str:
    """Return where pods find the program among the application's files."""
    who = f"MPIWorkload {found.workload.name!r}"
    assert found.file is not None
    try:
        path = found.file.relative_to(Path(app.app_dir).resolve())
    except ValueError as error:
        raise InvalidError(
            f"{who}: {str(found.file)!r} is not in the application's folder, and so is not sent to the cluster. Put it "
            "there, or name an image that has it: image='...'."
        ) from error
    sent = {one["path"]: one for one in code.volume["configMap"]["items"]}.get(path.as_posix())
    if sent is None:
        raise InvalidError(f"{who}: {str(path)!r} is left out of what is sent. See .scanflowignore.")
    if found.file.suffix != ".py" and "mode" not in sent:
        raise InvalidError(f"{who}: {str(path)!r} cannot be executed. Compile it, or allow it: chmod +x {path}")
    return str(PurePosixPath(APP_DIR) / path.as_posix())


def _argv(found: MPIProgram, path: str) -> list[str]:
    python = ["python3"] if path.endswith(".py") else []
    return [*python, path, *found.arguments]


def cluster_nodes(cluster: Cluster, workload: MPIWorkload) -> list[ClusterNode]:
    """Return the nodes that may have its ranks, the largest first, with what they give to all pods together: a job may
    wait until they are free. Without the right to look at nodes, as many as the workload names, of any size."""
    try:
        nodes, _ = cluster.find("Node")
    except AccessDeniedError:
        cores = (workload.resources_per_task.cores or 1.0) * workload.n_tasks
        return [ClusterNode(name=f"node-{place}", cores=cores) for place in range(workload.n_nodes)]
    if wanted := node_selector(workload):
        labels = [one["metadata"].get("labels") or {} for one in nodes]
        nodes = [node for node, own in zip(nodes, labels, strict=True) if wanted.items() <= own.items()]
        if not nodes:
            said = ", ".join(f"{name}={value}" for name, value in wanted.items())
            raise InvalidError(f"MPIWorkload {workload.name!r}: no node has the labels {said} of its node_selector.")
    given = [(str(one["metadata"]["name"]), *read_allocatable(one)) for one in nodes if is_schedulable(one)]
    found = [ClusterNode(name=name, cores=cores, memory_bytes=memory) for name, cores, memory in given]
    return sorted(found, key=lambda one: (-one.cores, one.name))
