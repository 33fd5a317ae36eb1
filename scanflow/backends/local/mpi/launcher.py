"""The step of an MPI job: starts ``mpirun``, prints the ranks' output, and reports the rank that failed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import round_memory
from scanflow.backends.local.mpi.claims import claim_cpus
from scanflow.backends.local.mpi.mpirun import Mpirun, get_launcher
from scanflow.backends.local.mpi.processes import (
    MAX_OUTPUT_BYTES,
    describe_failure,
    end,
    kill_ranks,
    measure_cpu_time,
    measure_output,
    prepare,
    start,
    wait,
)
from scanflow.backends.rank_files import RANKS, describe_running_ranks
from scanflow.errors import StepFailedError
from scanflow.outputs import output_dir
from scanflow.placement.mpi.job_plan import MPIPlan
from scanflow.placement.mpi.local_plan import plan_local_job
from scanflow.placement.sysfs import read_topology

PROFILE: Final = "profile"
"""The folder of a profiling run, in the step's output folder."""

POLL_S: Final = 0.05
_READ_BYTES: Final = 1 << 20


class RankFailedError(StepFailedError):
    """A rank failed, or ``mpirun`` did."""

    exit_code = 1
    """That of ``mpirun``, as a shell reports it: of the first rank that failed."""


def launch(workload: Mapping[str, Any], argv: Sequence[str], home: str | None = None) -> dict[str, Any]:
    """Run the ranks until they end, beside the services and jobs of a home; the result has their duration.

    Raises:
        StepFailedError: the job took too long, or wrote too much. It names the rank.
        SystemExit: a rank failed; with its exit code, as in a cluster. Its cause names the rank.
    """
    try:
        return _launch(workload, argv, home)
    except RankFailedError as error:
        raise SystemExit(error.exit_code) from error


def _launch(workload: Mapping[str, Any], argv: Sequence[str], home: str | None) -> dict[str, Any]:
    job = MPIWorkload.model_validate(workload)
    launcher = get_launcher(job.flavor, Path(argv[0]), name=job.name)
    job, notes = _resolve_profile(job, argv, launcher)
    if home is None:
        return _run(job, plan_local_job(job), argv, launcher, notes)
    assert job.profile != "auto"
    with claim_cpus(Path(home), job.name, job.profile, lambda others: plan_local_job(job, neighbours=others)) as plan:
        return _run(job, plan, argv, launcher, notes)


def _run(
    job: MPIWorkload, plan: MPIPlan, argv: Sequence[str], launcher: Mpirun, notes: dict[str, Any]
) -> dict[str, Any]:
    _say(*plan.reasons, *plan.lines())
    folder = output_dir() / RANKS
    prepare(folder, plan, notes)
    began = time.monotonic()
    with _raise_on_sigterm():
        process = start(folder, plan, launcher, argv)
        try:
            problem = _watch(process, folder, job, began)
        finally:
            end(process)
    if problem is not None:
        raise StepFailedError(problem)
    if process.returncode:
        failure = RankFailedError(describe_failure(folder, job.name, process.returncode))
        failure.exit_code = process.returncode if process.returncode > 0 else 128 - process.returncode
        raise failure
    return {"seconds": time.monotonic() - began, "ranks": job.n_tasks, "flavor": launcher.flavor, **notes}


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise an exception inside the context, so that ``mpirun`` is ended and ends its ranks: a rank that
    does not use MPI would not notice that ``mpirun`` is gone."""

    def exit_on_signal(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _resolve_profile(job: MPIWorkload, argv: Sequence[str], launcher: Mpirun) -> tuple[MPIWorkload, dict[str, Any]]:
    """Replace the profile ``auto`` of a job by that of a short run; return it with notes about the reason."""
    if job.profile != "auto":
        return job, {}
    from scanflow.backends.local.mpi.profiling.profile import MAX_DURATION_S, measure

    _say(f"profile='auto': the program first runs for at most {MAX_DURATION_S:g} s, to be profiled")
    topology = read_topology()
    plan = plan_local_job(job, topology)
    profile = measure(job, plan, argv, launcher=launcher, topology=topology, folder=output_dir() / PROFILE)
    _say(f"profile='auto': {profile}")
    return job.replace(profile=profile.profile), {"profile": profile.profile, "profile_reason": profile.reason}


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


class _OutputPrinter:
    """Prints the ranks' output incrementally: each line with its rank in front, if there are several."""

    def __init__(self, folder: Path, n_tasks: int) -> None:
        self._files = [
            (rank, folder / f"{rank}.{kind}", stream)
            for rank in range(n_tasks)
            for kind, stream in (("out", sys.stdout), ("err", sys.stderr))
        ]
        self._several = n_tasks > 1
        self._read = dict.fromkeys((file for _, file, _ in self._files), 0)
        self._rest: dict[Path, bytes] = {}

    def print_new(self, *, last: bool = False) -> None:
        for rank, file, stream in self._files:
            try:
                with file.open("rb") as opened:
                    opened.seek(self._read[file])
                    new = opened.read(-1 if last else _READ_BYTES)
            except FileNotFoundError:
                continue  # the rank has not begun
            self._read[file] += len(new)
            *lines, rest = (self._rest.get(file, b"") + new).split(b"\n")
            if last and rest:
                lines, rest = [*lines, rest], b""
            self._rest[file] = rest
            for line in lines:
                text = line.decode("utf-8", errors="replace")
                stream.write(f"[{rank}] {text}\n" if self._several else f"{text}\n")
            stream.flush()


def _watch(process: subprocess.Popen[bytes], folder: Path, job: MPIWorkload, began: float) -> str | None:
    """Print output until the job ends; return the reason if it must be stopped earlier."""
    printer = _OutputPrinter(folder, job.n_tasks)
    while process.poll() is None:
        printer.print_new()
        sizes = measure_output(folder, job.n_tasks)
        if sum(sizes.values()) > MAX_OUTPUT_BYTES:
            kill_ranks(folder, MAX_OUTPUT_BYTES)
            loudest, size = max(sizes.items(), key=lambda item: item[1])
            return (
                f"The ranks of {job.name!r} wrote more than {round_memory(MAX_OUTPUT_BYTES)}, rank {loudest} the most "
                f"({round_memory(size)}). Write results into files, and print fewer lines."
            )
        if job.timeout_s is not None and time.monotonic() - began > job.timeout_s:
            return describe_running_ranks(job.name, job.n_tasks, job.timeout_s, folder, measure_cpu_time(folder))
        wait(process, POLL_S)
    printer.print_new(last=True)
    return None
