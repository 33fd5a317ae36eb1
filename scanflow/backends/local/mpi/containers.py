"""Ranks in containers on this machine: ``mpirun`` runs outside and starts a container for each rank.

A rank communicates as a process would: by the host's network, shared memory and ``/tmp``, and the variables that
``mpirun`` sets. The image needs the same MPI, of the same version.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scanflow.app.mpi import MPIRuntime
from scanflow.errors import NotFoundError

_PACKAGES: Final[Mapping[MPIRuntime, str]] = {
    "podman": "apt-get install podman",
    "apptainer": "https://apptainer.org/docs/admin/latest/installation.html",
    "singularity": "https://docs.sylabs.io/guides/latest/admin-guide/installation.html",
}


# podman's containers are not children of their starter, and would outlive a job that is killed: in each one a loop
# waits for the end of its rank's shell on the host, and then kills the rank.
_WITH_ITS_SHELL: Final = (
    "(while kill -0 $SCANFLOW_MPI_SHELL && kill -0 $$; do sleep 1; done; kill -KILL $$) </dev/null >/dev/null 2>&1 & "
    'exec "$@"'
)


def get_runtime(runtime: MPIRuntime, *, name: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the path of a container runtime, for the workload ``name``.

    Raises:
        NotFoundError: it is not installed.
    """
    if (program := which(runtime)) is None:
        raise NotFoundError(
            f"MPIWorkload {name!r} sets runtime={runtime!r}, which is not installed here. Install it: "
            f"{_PACKAGES[runtime]}; or remove image and runtime, and compile the program on this machine."
        )
    return program


def build_container_command(
    runtime: MPIRuntime, program: str, image: str, argv: Sequence[str], folder: str, *, root: bool | None = None
) -> list[str]:
    """Return the command that runs a rank in a container. Pure.

    Args:
        runtime: The kind of runtime.
        program: The path of the runtime.
        image: The image, by the runtime's naming.
        argv: The rank's program in the image, and its arguments.
        folder: The application's folder, mounted at the same path, and the working directory.
        root: Whether this user is root, whose files need no mapping. None: detect it.
    """
    if runtime != "podman":
        return [program, "exec", "--bind", folder, "--pwd", folder, image, *argv]
    mapped = [] if (os.geteuid() == 0 if root is None else root) else ["--userns=keep-id"]
    guarded = ["sh", "-c", _WITH_ITS_SHELL, "rank", *argv]
    shared = ["--network=host", "--ipc=host", "--pid=host", "--volume=/tmp:/tmp", f"--volume={folder}:{folder}"]
    return [program, "run", "--rm", "--env-host", *mapped, *shared, f"--workdir={folder}", image, *guarded]
