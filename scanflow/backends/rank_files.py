"""The ranks of an MPI job, read from what its launcher and they wrote: each is a task of the run, ``hello.3``."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from scanflow.app.quantities import format_duration
from scanflow.backends.records import TaskRecord, TaskState
from scanflow.backends.tasks import task_name
from scanflow.placement.cpulist import numbered
from scanflow.placement.mpi.plan import MPIPlan
from scanflow.private import private_folder, write_private

RANKS: Final = "ranks"
"""In the step's output folder: ``plan.json``, and for each rank ``<rank>.out``, ``<rank>.err`` and, once it has ended,
``<rank>.exit``."""

PLAN: Final = "plan.json"
_ENDINGS: Final = {"stdout": "out", "stderr": "err"}
_LAST_LINES: Final = 5
_COMPUTED_S: Final = 0.5
_OF_OPENMPI: Final = re.compile(r"\[[^\]\s]+:\d+\] ")
"""Begins the lines that Open MPI's handler of fatal signals writes after a program's own."""


def exit_status(folder: Path, rank: int) -> int | None:
    """Return how a rank ended, as a shell has it (above 128: by a signal); None: it has not."""
    try:
        return int((folder / f"{rank}.exit").read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None


def describe_exit(status: int) -> str:
    """Return how a rank ended, in words."""
    by_signal = 128 < status < 128 + 65
    return f"was ended by {signal.Signals(status - 128).name}" if by_signal else f"ended with code {status}"


def last_lines(folder: Path, rank: int, heading: str = "Its last lines") -> str:
    """Return the last lines that a rank wrote, its errors before its output, as the end of a message."""
    for kind in ("err", "out"):
        file = folder / f"{rank}.{kind}"
        text = file.read_bytes()[-20_000:].decode("utf-8", errors="replace") if file.exists() else ""
        if lines := [line for line in text.splitlines() if line.strip() and not _OF_OPENMPI.match(line)]:
            return f" {heading}:\n" + "\n".join(lines[-_LAST_LINES:])
    return ""


def rank_tasks(outputs: Path, job: TaskRecord) -> list[TaskRecord]:
    """Return the ranks of a job as tasks; none before it has begun."""
    folder = outputs / RANKS
    try:
        planned = json.loads((folder / PLAN).read_text(encoding="utf-8"))["ranks"]
    except (FileNotFoundError, ValueError):
        return []
    found: list[TaskRecord] = []
    for one in planned:
        status = exit_status(folder, one["rank"])
        cpus = tuple(one["cpus"])
        found.append(
            TaskRecord(
                task=task_name(job.step, one["rank"]),
                step=RANKS,
                state=_state(status, job.state),
                attempts=job.attempts,
                exit_code=status,
                place=f"{one['node']}, {numbered('CPU', cpus)}" if cpus else one["node"],
            )
        )
    return found


def rank_file(folder: Path, rank: int, stream: str) -> Path:
    """Return the file with what a rank wrote to a stream."""
    return folder / f"{rank}.{_ENDINGS[stream]}"


def rank_logs(outputs: Path, rank: int) -> list[tuple[str, Path]]:
    """Return the files that a rank writes, by stream."""
    return [(stream, rank_file(outputs / RANKS, rank, stream)) for stream in _ENDINGS]


def new_folder(
    outputs: Path, plan: MPIPlan, *, name: str = RANKS, notes: Mapping[str, str | None] | None = None
) -> Path:
    """Return the folder of a job's ranks, empty but for their plan, with ``notes`` in it."""
    folder = private_folder(outputs / name)
    for old in folder.iterdir():
        old.unlink()
    ranks = [asdict(rank) for rank in plan.ranks]
    document = {"granularity": asdict(plan.granularity), "ranks": ranks, **(notes or {})}
    write_private(folder / PLAN, json.dumps(document))
    return folder


def first_failure(name: str, failed: Iterable[tuple[int, int]], folder: Path) -> str | None:
    """Return which rank failed first, how, and the last that it wrote; None: none did.

    Args:
        name: The job's.
        failed: Rank and code of those that have ended, the first one first.
        folder: Of the ranks' files.
    """
    for rank, status in failed:
        if status:
            said = last_lines(folder, rank)
            return f"Rank {rank} of {name!r} {describe_exit(status)}, so mpirun ended the others.{said}"
    return None


def still_running(
    name: str, n_tasks: int, timeout_s: float, folder: Path, cpu_s: Mapping[int, float] | None = None
) -> str:
    """Return which ranks had not ended within a job's timeout, and the last that one of them wrote.

    ``cpu_s``: the CPU time of ranks, where it is known. One that sleeps is told by it: others that wait for it in MPI
    do so by asking again and again.
    """
    which, why, text = "mpirun", "", ""
    if left := [rank for rank in range(n_tasks) if exit_status(folder, rank) is None]:
        which, of = numbered("rank", left), left[0]
        if idle := _idle({rank: used for rank, used in (cpu_s or {}).items() if rank in left}):
            who, of = numbered("Rank", idle), idle[0]
            why = f" {who} used less than a tenth of the CPU time that others did, who may wait for it."
        text = last_lines(folder, of, f"Last lines of rank {of}")
    return f"{name!r} did not end within {format_duration(timeout_s)}: {which} still ran.{why}{text}"


def _idle(cpu_s: Mapping[int, float]) -> list[int]:
    """Return the ranks that did next to nothing while most computed."""
    most = max(cpu_s.values(), default=0.0)
    idle = [rank for rank, used in cpu_s.items() if used < most / 10]
    return idle if most >= _COMPUTED_S and len(idle) <= len(cpu_s) / 2 else []


def _state(status: int | None, job: TaskState) -> TaskState:
    if status is not None:
        return "succeeded" if status == 0 else "failed"
    return job if job in {"running", "pending"} else "stopped"
