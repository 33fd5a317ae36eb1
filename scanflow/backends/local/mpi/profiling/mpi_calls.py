"""Time in MPI and bytes sent, by MPI's profiling interface: a small library, compiled on demand, counts calls."""

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
_COMPILE_TIMEOUT_S: Final = 60


class CallCounters(NamedTuple):
    """A rank's counters at one moment."""

    at_s: float
    """Time of the monotonic clock."""

    calls: float
    messages: float
    bytes: float
    mpi_s: float
    mpi_cpu_s: float
    cpu_s: float
    """CPU time of the process, MPI included."""

    def subtract(self, before: CallCounters) -> CallCounters:
        """Return the difference to an earlier moment; ``at_s`` is the time between them."""
        return CallCounters(*(after - earlier for after, earlier in zip(self, before, strict=True)))


def compile_library(
    flavor: MPIFlavor, folder: Path, *, which: Callable[[str], str | None] = shutil.which
) -> Path | None:
    """Compile the library that counts calls into ``folder``; None: there is no compiler for that flavor."""
    for name in _COMPILERS[flavor]:
        if (compiler := which(name)) is None:
            continue
        library = folder / "pmpi.so"
        argv = [compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", str(library), str(SOURCE)]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=_COMPILE_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return library
    return None


def read_calls(folder: Path, rank: int) -> list[CallCounters]:
    """Return the library's samples of a rank's counters; none if the rank did not call ``MPI_Init``."""
    try:
        lines = (folder / str(rank)).read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return []
    moments: list[CallCounters] = []
    for line in lines:
        numbers = [int(number) for number in line.split()]
        if len(numbers) == len(CallCounters._fields):  # the last line may be cut
            at, calls, messages, sent, wall, inside, cpu = numbers
            moments.append(CallCounters(at / 1e9, calls, messages, sent, wall / 1e9, inside / 1e9, cpu / 1e9))
    return moments


def sum_calls(parts: Iterable[CallCounters]) -> CallCounters:
    """Return the sum over ranks."""
    return CallCounters(*(sum(column) for column in zip(*parts, strict=True)))
