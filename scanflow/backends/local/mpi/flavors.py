"""Which ``mpirun`` starts a program, and the command line. Pure but for the look at files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scanflow.app.mpi import MPIFlavor
from scanflow.backends.local.mpi.elf import needed_libraries
from scanflow.errors import InvalidError, NotFoundError

_PROGRAMS: Final[Mapping[MPIFlavor, tuple[str, ...]]] = {
    "openmpi": ("mpirun.openmpi", "orterun"),
    "mpich": ("mpiexec.hydra", "mpirun.mpich"),
}
_PACKAGES: Final[Mapping[MPIFlavor, str]] = {"openmpi": "openmpi-bin", "mpich": "mpich"}
_LIBRARIES: Final[Mapping[MPIFlavor, tuple[str, ...]]] = {
    "mpich": ("libmpich", "libmpi.so.12", "libmpifort.so.12"),
    "openmpi": ("libmpi.so", "libmpi_", "libopen-rte.so"),
}
"""How the names of their libraries begin; MPICH's are looked for first."""

RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where each flavor tells a process its rank."""


@dataclass(frozen=True, slots=True)
class Mpirun:
    """An installed ``mpirun``."""

    flavor: MPIFlavor
    program: str


def linked_flavor(program: Path) -> MPIFlavor | None:
    """Return whose library a program is linked with; None: it is a script, or linked with none that is known.

    A program that is started by the other flavor's ``mpirun`` runs as many jobs of one rank each, without a word.
    """
    needed = needed_libraries(program)
    for flavor, names in _LIBRARIES.items():
        if any(one.startswith(names) for one in needed):
            return flavor
    return None


def find_launcher(
    wanted: MPIFlavor | None, program: Path, *, name: str, which: Callable[[str], str | None] = shutil.which
) -> Mpirun:
    """Return the ``mpirun`` that starts the workload ``name``.

    Args:
        wanted: What the workload says.
        program: What a rank runs.
        name: For messages.
        which: Finds programs.

    Raises:
        InvalidError: the program is linked with the other flavor.
        NotFoundError: it is not installed.
    """
    linked = linked_flavor(program)
    if wanted is not None and linked is not None and wanted != linked:
        raise InvalidError(
            f"MPIWorkload {name!r} says flavor={wanted!r}, and its program is linked with {linked!r}. Leave flavor "
            "out, or compile it again."
        )
    chosen = wanted or linked
    flavors: Sequence[MPIFlavor] = ("openmpi", "mpich") if chosen is None else (chosen,)
    for flavor in flavors:
        for mpirun in _PROGRAMS[flavor]:
            if (found := which(mpirun)) is not None:
                return Mpirun(flavor, found)
    if chosen is None and (found := which("mpirun")) is not None:
        return Mpirun("openmpi", found)
    package = _PACKAGES[chosen or "openmpi"]
    raise NotFoundError(
        f"MPIWorkload {name!r} needs mpirun{'' if chosen is None else f' of {chosen}'}, which is not installed. On "
        f"Debian and Ubuntu: apt-get install {package}"
    )


def command(
    launcher: Mpirun, n_tasks: int, *, oversubscribed: bool, argv: Sequence[str], root: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts ``n_tasks`` processes of ``argv`` on this machine, and variables for it.

    Processes are bound by what ``argv`` begins with, and not by ``mpirun``. Where cores have more than one, those that
    wait yield (thesis 3.3.5).
    """
    if launcher.flavor == "mpich":
        return [launcher.program, "-launcher", "fork", "-n", str(n_tasks), "-bind-to", "none", *argv], {}
    degraded = ["--mca", "mpi_yield_when_idle", "1"] if oversubscribed else []
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if root else {}
    # The slots are the plan's: it has counted the cores. Single-copy needs a permission that containers do not have.
    where = ["--host", f"localhost:{n_tasks}", "--bind-to", "none"]
    env["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    return [launcher.program, "-np", str(n_tasks), *where, *degraded, *argv], env
