"""Selection of ``mpirun`` for a program, and its command line. Pure but for reading files."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from scanflow.app.mpi import MPIFlavor
from scanflow.errors import InvalidError, NotFoundError

_MAGIC: Final = b"\x7fELF"

_LOAD, _DYNAMIC = 1, 2  # types of segments

_NEEDED, _NAMES, _NAMES_SIZE = 1, 5, 10  # tags of the dynamic segment: DT_NEEDED, DT_STRTAB, DT_STRSZ

_MAX_BYTES: Final = 1 << 24  # of a table; a damaged header may have any number

_MAX_OFFSET: Final = 1 << 40


_PROGRAMS: Final[Mapping[MPIFlavor, tuple[str, ...]]] = {
    "openmpi": ("mpirun.openmpi", "orterun"),
    "mpich": ("mpiexec.hydra", "mpirun.mpich"),
}
_PACKAGES: Final[Mapping[MPIFlavor, str]] = {"openmpi": "openmpi-bin", "mpich": "mpich"}
_LIBRARIES: Final[Mapping[MPIFlavor, tuple[str, ...]]] = {
    "mpich": ("libmpich", "libmpi.so.12", "libmpifort.so.12"),
    "openmpi": ("libmpi.so", "libmpi_", "libopen-rte.so"),
}
"""Prefixes of the names of each flavor's libraries; MPICH's are matched first."""

RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""The variable with a process' rank, for each flavor."""


@dataclass(frozen=True, slots=True)
class Mpirun:
    """An installed ``mpirun``."""

    flavor: MPIFlavor
    program: str


def find_linked_flavor(program: Path) -> MPIFlavor | None:
    """Return the flavor whose library a program is linked with; None: it is a script, or linked with no known MPI.

    A program that is started by the other flavor's ``mpirun`` silently runs as many jobs of one rank each.
    """
    needed = read_needed_libraries(program)
    for flavor, names in _LIBRARIES.items():
        if any(library.startswith(names) for library in needed):
            return flavor
    return None


def get_launcher(
    wanted: MPIFlavor | None, program: Path, *, name: str, which: Callable[[str], str | None] = shutil.which
) -> Mpirun:
    """Return the ``mpirun`` that starts the workload ``name``.

    Args:
        wanted: The workload's flavor.
        program: The rank's program.
        name: The workload's name, for messages.
        which: Finds programs by name.

    Raises:
        InvalidError: the program is linked with the other flavor.
        NotFoundError: it is not installed.
    """
    linked = find_linked_flavor(program)
    if wanted is not None and linked is not None and wanted != linked:
        raise InvalidError(
            f"MPIWorkload {name!r} sets flavor={wanted!r}, but its program is linked with {linked!r}. Omit flavor, or "
            "recompile the program."
        )
    chosen = wanted or linked
    flavors: Sequence[MPIFlavor] = ("openmpi", "mpich") if chosen is None else (chosen,)
    for flavor in flavors:
        for mpirun in _PROGRAMS[flavor]:
            if (program_path := which(mpirun)) is not None:
                return Mpirun(flavor, program_path)
    if chosen is None and (program_path := which("mpirun")) is not None:
        return Mpirun("openmpi", program_path)
    package = _PACKAGES[chosen or "openmpi"]
    raise NotFoundError(
        f"MPIWorkload {name!r} needs mpirun{'' if chosen is None else f' of {chosen}'}, which is not installed. On "
        f"Debian and Ubuntu: apt-get install {package}"
    )


def build_command(
    launcher: Mpirun, n_tasks: int, *, oversubscribed: bool, argv: Sequence[str], root: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts ``n_tasks`` processes of ``argv`` on this machine, and variables for it.

    Processes are bound by the wrapper at the head of ``argv``, not by ``mpirun``. On oversubscribed cores waiting
    processes yield (thesis 3.3.5).
    """
    if launcher.flavor == "mpich":
        return [launcher.program, "-launcher", "fork", "-n", str(n_tasks), "-bind-to", "none", *argv], {}
    degraded = ["--mca", "mpi_yield_when_idle", "1"] if oversubscribed else []
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if root else {}
    # The plan has counted the cores, so it sets the slots. Single-copy needs a permission that containers do not have.
    where = ["--host", f"localhost:{n_tasks}", "--bind-to", "none"]
    env["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    return [launcher.program, "-np", str(n_tasks), *where, *degraded, *argv], env


def read_needed_libraries(program: Path) -> tuple[str, ...]:
    """Return the names of the libraries that the dynamic linker loads for a program.

    None for a script, for a program that is linked statically, and for a file that is damaged.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head[:4] != _MAGIC:
            return ()
        try:
            return _read_needed(file, head)
        except (struct.error, ValueError, LookupError):
            return ()


def _read_needed(file: BinaryIO, head: bytes) -> tuple[str, ...]:
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    start, size, count = struct.unpack_from(f"{order}{'32xQ14xHH' if wide else '28xI10xHH'}", head)
    # Each segment's type, offset in the file, address in memory and length.
    segment = f"{order}{'I4xQQ8xQ' if wide else 'III4xI'}"
    segments = [struct.unpack_from(segment, _read_part(file, start + size * index, size)) for index in range(count)]
    dynamic = [(offset, length) for kind, offset, _, length in segments if kind == _DYNAMIC]
    if not dynamic:
        return ()
    table = _read_part(file, *dynamic[0])
    entry = struct.Struct(f"{order}{'qQ' if wide else 'iI'}")
    entries = list(entry.iter_unpack(table[: len(table) // entry.size * entry.size]))
    tags = dict(entries)
    names = _read_part(file, _get_offset(tags[_NAMES], segments), tags[_NAMES_SIZE]) if _NAMES in tags else b""
    return tuple(names[at:].split(b"\0", 1)[0].decode("ascii", "replace") for tag, at in entries if tag == _NEEDED)


def _get_offset(address: int, segments: list[tuple[int, ...]]) -> int:
    for kind, offset, start, length in segments:
        if kind == _LOAD and start <= address < start + length:
            return offset + address - start
    raise ValueError(address)


def _read_part(file: BinaryIO, offset: int, length: int) -> bytes:
    if length > _MAX_BYTES or offset > _MAX_OFFSET:
        raise ValueError(offset, length)
    file.seek(offset)
    return file.read(length)
