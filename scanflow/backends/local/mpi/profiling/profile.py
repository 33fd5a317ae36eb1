"""Profiling of an MPI program by a short run."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scanflow.app.mpi import MPIWorkload
from scanflow.backends.local.mpi.mpirun import Mpirun
from scanflow.backends.local.mpi.processes import (
    GRACE_S,
    MAX_OUTPUT_BYTES,
    describe_failure,
    end,
    kill_ranks,
    measure_output,
    prepare,
    start,
)
from scanflow.backends.local.mpi.profiling.classify import MeasuredTotals, Profile, classify
from scanflow.backends.local.mpi.profiling.mpi_calls import CallCounters, compile_library, read_calls, sum_calls
from scanflow.backends.local.mpi.profiling.perf import build_record_command, read_mpi_share
from scanflow.backends.local.mpi.profiling.touched_pages import WINDOWS_S, TouchedBytes, estimate_traffic, sample_pages
from scanflow.errors import StepFailedError
from scanflow.placement.mpi.job_plan import MPIPlan
from scanflow.placement.topology import Topology

MAX_DURATION_S: Final = 30.0
"""Longest run of a program's ranks, which are then ended."""

START_S: Final = 30.0
"""Longest startup of the ranks before that run: on a busy machine it takes many seconds."""

WRITE_TIMEOUT_S: Final = 15.0
"""Longest time for ``perf`` to write its samples at the end of the program."""

MAX_CACHE_BYTES: Final = 32 * 2**20
"""Largest share of the last-level cache for one rank. A virtual machine of two CPUs may report 480 MiB of its host,
which other CPUs use too. Processors have 1 to 12 MiB for each core."""

_POLL_S: Final = 0.05


class ProfileSamples(NamedTuple):
    """Samples of a program's ranks."""

    calls: list[list[CallCounters]]
    """Samples of each rank's calls; none: calls were not counted."""

    pages: list[TouchedBytes]
    shares: list[float]
    """Shares of the ranks' CPU time in MPI, by ``perf``; none: it was not used."""

    cache_bytes: int
    """A rank's share of the last-level cache."""

    seconds: float


def measure(
    job: MPIWorkload, plan: MPIPlan, argv: Sequence[str], *, launcher: Mpirun, topology: Topology, folder: Path
) -> Profile:
    """Run the program for at most :data:`MAX_DURATION_S`, and return its profile.

    Raises:
        StepFailedError: a rank failed, or wrote too much.
    """
    observed = observe(
        job,
        plan,
        argv,
        launcher=launcher,
        topology=topology,
        folder=folder,
        enough=build_end_predicate(folder, job.n_tasks),
    )
    if observed is None:
        package = "libopenmpi-dev" if launcher.flavor == "openmpi" else "libmpich-dev"
        why = f"its time in MPI cannot be measured here: neither {launcher.flavor}'s mpicc nor perf can be used"
        advice = f"apt-get install {package} gcc, or set profile='cpu', 'memory' or 'network'"
        return Profile(profile=None, reason=f"{why}. {advice}")
    return compute_profile(observed)


def build_end_predicate(folder: Path, n_tasks: int, clock: Callable[[], float] = time.monotonic) -> Callable[[], bool]:
    """Return a predicate: whether all ranks have run for :data:`MAX_DURATION_S`, or failed to start in time."""
    began, running = clock(), list[float]()

    def enough() -> bool:
        now = clock()
        if not running and all((folder / f"{rank}.pid").exists() for rank in range(n_tasks)):
            running.append(now)
        return now > (running[0] if running else began + START_S) + MAX_DURATION_S

    return enough


def observe(
    job: MPIWorkload,
    plan: MPIPlan,
    argv: Sequence[str],
    *,
    launcher: Mpirun,
    topology: Topology,
    folder: Path,
    enough: Callable[[], bool],
) -> ProfileSamples | None:
    """Run the program, and sample it until it ends or has run long ``enough``.

    Args:
        job: The workload.
        plan: The placement of its ranks.
        argv: The command of a rank.
        launcher: The ``mpirun`` to use.
        topology: The topology of this machine.
        folder: The folder of the run's files; its content is removed.
        enough: Returns whether to end the program.

    Returns:
        None: time in MPI cannot be measured here, and the program was not started.

    Raises:
        StepFailedError: a rank failed, or wrote too much.
    """
    prepare(folder, plan, {})
    library = compile_library(launcher.flavor, folder)
    recording = None if library is not None else build_record_command(folder)
    if library is not None:
        argv = ["env", f"LD_PRELOAD={library}", f"SCANFLOW_MPI_PROFILE={folder}", *argv]
    elif recording is not None:
        argv = [*recording, *argv]
    else:
        return None
    began = time.monotonic()
    grace_s = GRACE_S if library is not None else WRITE_TIMEOUT_S
    process = start(folder, plan, launcher, argv, end_s=1 if library is not None else round(WRITE_TIMEOUT_S) - 1)
    try:
        pages = _sample_pages(process, folder, job, enough, child=library is None)
    finally:
        end(process, grace_s=grace_s)
    ranks = range(job.n_tasks)
    return ProfileSamples(
        calls=[moments for rank in ranks if (moments := read_calls(folder, rank))],
        pages=pages,
        shares=[]
        if library is not None
        else [share for rank in ranks if (share := read_mpi_share(folder, rank)) is not None],
        cache_bytes=_cache_share(topology, job.n_tasks),
        seconds=time.monotonic() - began,
    )


def compute_profile(observed: ProfileSamples) -> Profile:
    """Compute a program's profile from its samples."""
    calls, pages, shares, cache, seconds = observed
    if calls:
        seen = sum_calls(moments[-1].subtract(moments[0]) for moments in calls)
        outside = max(0.0, seen.cpu_s - seen.mpi_cpu_s)
        memory = estimate_traffic(pages, cache, outside_mpi=outside / seen.cpu_s if seen.cpu_s else 1.0)
        return classify(
            MeasuredTotals(
                how=f"measured in {len(calls)} ranks by MPI's profiling interface",
                seconds=seconds,
                cpu_s=outside,
                messages=int(seen.messages),
                bytes=int(seen.bytes),
                memory_bytes=memory,
            )
        )
    if shares:
        share = statistics.mean(shares)
        memory = estimate_traffic(pages, cache, outside_mpi=1 - share)
        how = f"measured in {len(shares)} ranks by perf"
        return classify(MeasuredTotals(how=how, seconds=seconds, share_in_mpi=share, memory_bytes=memory))
    return Profile(profile=None, reason="no rank ran long enough after MPI_Init to be measured")


def _sample_pages(
    process: subprocess.Popen[bytes], folder: Path, job: MPIWorkload, enough: Callable[[], bool], *, child: bool
) -> list[TouchedBytes]:
    """Sample the pages the ranks touch, one rank after the other; ``child``: perf started the program."""
    samples: list[TouchedBytes] = []
    turn = 0
    while process.poll() is None and not enough():
        if sum(measure_output(folder, job.n_tasks).values()) > MAX_OUTPUT_BYTES:
            kill_ranks(folder, MAX_OUTPUT_BYTES)
            raise StepFailedError(f"While it was profiled, {job.name!r} exceeded the output limit. Print fewer lines.")
        rank, window_s = turn % job.n_tasks, WINDOWS_S[turn // job.n_tasks % len(WINDOWS_S)]
        pid = _find_pid(folder, rank, child)
        sample = None if pid is None else sample_pages(pid, window_s)
        if sample is not None:
            samples.append(sample)
        turn += 1
        try:
            process.wait(_POLL_S if sample is None else window_s)
        except subprocess.TimeoutExpired:
            continue
    if process.returncode:
        raise StepFailedError(f"While it was profiled: {describe_failure(folder, job.name, process.returncode)}")
    return samples


def _find_pid(folder: Path, rank: int, child: bool) -> int | None:
    try:
        pid = int((folder / f"{rank}.pid").read_text(encoding="ascii"))
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0]) if child else pid
    except (OSError, ValueError, IndexError):
        return None


def _cache_share(topology: Topology, n_tasks: int) -> int:
    """Return a rank's share of the last-level caches of this machine, up to :data:`MAX_CACHE_BYTES`."""
    level = max((cache.level for cache in topology.caches), default=0)
    whole = sum(cache.size_bytes or 0 for cache in topology.caches if cache.level == level)
    return min(whole // n_tasks, MAX_CACHE_BYTES)
