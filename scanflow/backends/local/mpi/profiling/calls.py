"""Time in MPI and what is sent, by MPI's profiling interface: a small library, compiled on the spot, counts calls."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from scanflow.app.mpi import MPIFlavor

SOURCE: Final = Path(__file__).with_name("pmpi.c")
_COMPILERS: Final[dict[MPIFlavor, tuple[str, ...]]] = {
    "openmpi": ("mpicc.openmpi", "mpicc"),
    "mpich": ("mpicc.mpich", "mpicc"),
}
_COMPILE_S: Final = 60


class Calls(NamedTuple):
    """What a rank has done up to a moment."""

    at_s: float
    """By the monotonic clock."""

    calls: float
    messages: float
    bytes: float
    mpi_s: float
    mpi_cpu_s: float
    cpu_s: float
    """Of the process, MPI included."""

    def since(self, before: Calls) -> Calls:
        """Return what it has done from another moment on; ``at_s`` is how long that is."""
        return Calls(*(after - earlier for after, earlier in zip(self, before, strict=True)))


def compile_library(
    flavor: MPIFlavor, folder: Path, *, which: Callable[[str], str | None] = shutil.which
) -> Path | None:
    """Return the library that counts calls, compiled into ``folder``; None: there is no compiler for that flavor."""
    for name in _COMPILERS[flavor]:
        if (compiler := which(name)) is None:
            continue
        library = folder / "pmpi.so"
        argv = [compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", str(library), str(SOURCE)]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=_COMPILE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return library
    return None


def read_calls(folder: Path, rank: int) -> list[Calls]:
    """Return what the library noted of a rank, moment by moment; none if the rank did not call ``MPI_Init``."""
    try:
        lines = (folder / str(rank)).read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return []
    found: list[Calls] = []
    for line in lines:
        numbers = [int(number) for number in line.split()]
        if len(numbers) == len(Calls._fields):  # the last line may be cut
            at, calls, messages, sent, wall, inside, cpu = numbers
            found.append(Calls(at / 1e9, calls, messages, sent, wall / 1e9, inside / 1e9, cpu / 1e9))
    return found


def total(parts: Iterable[Calls]) -> Calls:
    """Return the sum over ranks."""
    return Calls(*(sum(column) for column in zip(*parts, strict=True)))
