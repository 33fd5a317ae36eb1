"""What the step of an MPI job does: starts ``mpirun``, shows what ranks write, and says which one failed."""

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
from scanflow.backends.local.mpi.claims import claimed
from scanflow.backends.local.mpi.flavors import Mpirun, find_launcher
from scanflow.backends.local.mpi.processes import (
    MAX_OUTPUT_BYTES,
    cpu_used,
    end,
    failure,
    prepare,
    silence,
    start,
    wait,
    written,
)
from scanflow.backends.rank_files import RANKS, still_running
from scanflow.errors import StepFailedError
from scanflow.outputs import output_dir
from scanflow.placement.mpi.here import plan_here
from scanflow.placement.mpi.plan import MPIPlan
from scanflow.placement.sysfs import read_topology

PROFILE: Final = "profile"
"""In the step's output folder: what a run that was measured wrote."""

POLL_S: Final = 0.05
_READ_BYTES: Final = 1 << 20


def launch(workload: Mapping[str, Any], argv: Sequence[str], home: str | None = None) -> dict[str, Any]:
    """Run the ranks to their end, beside the services and jobs of a home; the step's result is how long they took.

    Raises:
        StepFailedError: a rank failed, the job took too long, or wrote too much. It names the rank.
    """
    job = MPIWorkload.model_validate(workload)
    launcher = find_launcher(job.flavor, Path(argv[0]), name=job.name)
    job, notes = _profiled(job, argv, launcher)
    if home is None:
        return _run(job, plan_here(job), argv, launcher, notes)
    assert job.profile != "auto"
    with claimed(Path(home), job.name, job.profile, lambda others: plan_here(job, neighbours=others)) as plan:
        return _run(job, plan, argv, launcher, notes)


def _run(
    job: MPIWorkload, plan: MPIPlan, argv: Sequence[str], launcher: Mpirun, notes: dict[str, Any]
) -> dict[str, Any]:
    _say(*plan.reasons, *plan.lines())
    folder = output_dir() / RANKS
    prepare(folder, plan, notes)
    began = time.monotonic()
    with _orderly_shutdown():
        process = start(folder, plan, launcher, argv)
        try:
            problem = _watch(process, folder, job, began)
        finally:
            end(process)
    if problem is not None or process.returncode:
        raise StepFailedError(problem or failure(folder, job.name, process.returncode))
    return {"seconds": time.monotonic() - began, "ranks": job.n_tasks, "flavor": launcher.flavor, **notes}


@contextmanager
def _orderly_shutdown() -> Iterator[None]:
    """While inside, have SIGTERM end this process by an exception, once ``mpirun`` has ended its ranks: one that does
    not use MPI would not notice that it is gone."""

    def ended(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _profiled(job: MPIWorkload, argv: Sequence[str], launcher: Mpirun) -> tuple[MPIWorkload, dict[str, Any]]:
    """Return a job whose profile is ``auto`` with the one that is found by a short run, and the reason to be kept."""
    if job.profile != "auto":
        return job, {}
    from scanflow.backends.local.mpi.profiling.profile import LONGEST_S, measure

    _say(f"profile='auto': the program is run first for {LONGEST_S:g} s at most, to be measured")
    topology = read_topology()
    plan = plan_here(job, topology)
    found = measure(job, plan, argv, launcher=launcher, topology=topology, folder=output_dir() / PROFILE)
    _say(f"profile='auto': {found}")
    return job.replace(profile=found.profile), {"profile": found.profile, "profile_reason": found.reason}


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


class _Shown:
    """What of the ranks' output has been printed: each line with its rank in front, where there are several."""

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
    """Show output until the job ends; return why it has to be ended before, if it has."""
    shown = _Shown(folder, job.n_tasks)
    while process.poll() is None:
        shown.print_new()
        sizes = written(folder, job.n_tasks)
        if sum(sizes.values()) > MAX_OUTPUT_BYTES:
            silence(folder, MAX_OUTPUT_BYTES)
            loudest, size = max(sizes.items(), key=lambda one: one[1])
            return (
                f"The ranks of {job.name!r} wrote more than {round_memory(MAX_OUTPUT_BYTES)}, rank {loudest} the most "
                f"({round_memory(size)}). Write results into files, and fewer lines."
            )
        if job.timeout_s is not None and time.monotonic() - began > job.timeout_s:
            return still_running(job.name, job.n_tasks, job.timeout_s, folder, cpu_used(folder))
        wait(process, POLL_S)
    shown.print_new(last=True)
    return None
