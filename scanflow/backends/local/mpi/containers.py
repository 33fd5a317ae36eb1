"""Ranks in containers on this machine: ``mpirun`` outside starts a container for each, which is one of its ranks.

A rank reaches the others and ``mpirun`` as a process would: by the host's network, shared memory and ``/tmp``, and by
the variables that ``mpirun`` sets. The image needs the same MPI, of the same version.
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


# podman's containers are no children of who started them, and would outlive a job that is ended by force: in each one
# something waits for the shell of its rank, in the processes of the host, and then ends what became of the rank.
_WITH_ITS_SHELL: Final = (
    "(while kill -0 $SCANFLOW_MPI_SHELL && kill -0 $$; do sleep 1; done; kill -KILL $$) </dev/null >/dev/null 2>&1 & "
    'exec "$@"'
)


def find_runtime(runtime: MPIRuntime, *, name: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the program of a runtime, for the workload ``name``.

    Raises:
        NotFoundError: it is not installed.
    """
    if (found := which(runtime)) is None:
        raise NotFoundError(
            f"MPIWorkload {name!r} says runtime={runtime!r}, which is not installed here. Install it: "
            f"{_PACKAGES[runtime]}; or remove image and runtime, and compile the program on this machine."
        )
    return found


def in_container(
    runtime: MPIRuntime, program: str, image: str, argv: Sequence[str], folder: str, *, root: bool | None = None
) -> list[str]:
    """Return the command that runs a rank in a container. Pure.

    Args:
        runtime: Which kind of runtime ``program`` is.
        program: The runtime's.
        image: As the runtime names images.
        argv: The rank's program in the image, and its arguments.
        folder: Of the application, which is there under the same path, and where the rank starts.
        root: Whether this user is root, whose files need no mapping. None: look.
    """
    if runtime != "podman":
        return [program, "exec", "--bind", folder, "--pwd", folder, image, *argv]
    mapped = [] if (os.geteuid() == 0 if root is None else root) else ["--userns=keep-id"]
    guarded = ["sh", "-c", _WITH_ITS_SHELL, "rank", *argv]
    shared = ["--network=host", "--ipc=host", "--pid=host", "--volume=/tmp:/tmp", f"--volume={folder}:{folder}"]
    return [program, "run", "--rm", "--env-host", *mapped, *shared, f"--workdir={folder}", image, *guarded]
