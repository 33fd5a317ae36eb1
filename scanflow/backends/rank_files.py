"""The ranks of an MPI job as tasks of its run (``hello.3``), read from the files of its launcher and ranks."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from scanflow.app.quantities import format_duration
from scanflow.backends.run_records import TaskRecord, TaskState
from scanflow.backends.tasks import format_task_name
from scanflow.files.private import create_private_folder, write_private
from scanflow.placement.cpulist import format_numbered
from scanflow.placement.mpi.job_plan import MPIPlan

RANKS: Final = "ranks"
"""In the step's output folder: ``plan.json``, and for each rank ``<rank>.out``, ``<rank>.err`` and, once it has ended,
``<rank>.exit``."""

PLAN: Final = "plan.json"
_ENDINGS: Final = {"stdout": "out", "stderr": "err"}
_LAST_LINES: Final = 5
_MIN_BUSY_S: Final = 0.5
_SIGTERM_STATUS: Final = 128 + signal.SIGTERM
_OPENMPI_PREFIX: Final = re.compile(r"\[[^\]\s]+:\d+\] ")
"""Prefix of the lines that Open MPI's handler of fatal signals writes after a program's own."""


def exit_status(folder: Path, rank: int) -> int | None:
    """Return the exit status of a rank as a shell reports it (above 128: a signal); None: it has not ended."""
    try:
        return int((folder / f"{rank}.exit").read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None


def describe_exit(status: int) -> str:
    """Format the exit status of a rank for people."""
    by_signal = 128 < status < 128 + 65
    return f"was killed by {signal.Signals(status - 128).name}" if by_signal else f"exited with code {status}"


def read_last_lines(folder: Path, rank: int, heading: str = "Its last lines") -> str:
    """Return the last lines of a rank's stderr, else its stdout, as the end of a message."""
    for kind in ("err", "out"):
        file = folder / f"{rank}.{kind}"
        text = file.read_bytes()[-20_000:].decode("utf-8", errors="replace") if file.exists() else ""
        if lines := [line for line in text.splitlines() if line.strip() and not _OPENMPI_PREFIX.match(line)]:
            return f" {heading}:\n" + "\n".join(lines[-_LAST_LINES:])
    return ""


def build_rank_tasks(outputs: Path, job: TaskRecord) -> list[TaskRecord]:
    """Return the ranks of a job as tasks; none before it has started."""
    folder = outputs / RANKS
    try:
        ranks = json.loads((folder / PLAN).read_text(encoding="utf-8"))["ranks"]
    except (FileNotFoundError, ValueError):
        return []
    records: list[TaskRecord] = []
    for rank in ranks:
        status = exit_status(folder, rank["rank"])
        cpus = tuple(rank["cpus"])
        records.append(
            TaskRecord(
                task=format_task_name(job.step, rank["rank"]),
                step=RANKS,
                state=_get_state(status, job.state),
                attempts=job.attempts,
                exit_code=status,
                place=f"{rank['node']}, {format_numbered('CPU', cpus)}" if cpus else rank["node"],
            )
        )
    return records


def get_rank_file(folder: Path, rank: int, stream: str) -> Path:
    """Return the file of a rank's stream."""
    return folder / f"{rank}.{_ENDINGS[stream]}"


def list_rank_logs(outputs: Path, rank: int) -> list[tuple[str, Path]]:
    """Return the log files of a rank, by stream."""
    return [(stream, get_rank_file(outputs / RANKS, rank, stream)) for stream in _ENDINGS]


def create_rank_folder(
    outputs: Path, plan: MPIPlan, *, name: str = RANKS, notes: Mapping[str, str | None] | None = None
) -> Path:
    """Create the folder of a job's ranks, with only their plan and ``notes``."""
    folder = create_private_folder(outputs / name)
    for old in folder.iterdir():
        old.unlink()
    ranks = [asdict(rank) for rank in plan.ranks]
    document = {"granularity": asdict(plan.granularity), "ranks": ranks, **(notes or {})}
    write_private(folder / PLAN, json.dumps(document))
    return folder


def describe_first_failure(name: str, failed: Iterable[tuple[int, int]], code: int | None, folder: Path) -> str | None:
    """Describe the rank because of which ``mpirun`` ended, with its last output; None: it was no rank.

    ``mpirun`` ends with the code of the first rank that failed. The order of the ranks' ends alone does not tell: those
    that ``mpirun`` then ends by SIGTERM may be gone within the same tick of the file system's clock.

    Args:
        name: The job's.
        failed: Rank and exit status of those that have ended, in order.
        code: The exit code of ``mpirun``; None: not known.
        folder: The folder of the ranks' files.
    """
    statuses = {rank: status for rank, status in failed if status}
    causes = [rank for rank, status in statuses.items() if status == code]
    causes = causes or [rank for rank, status in statuses.items() if status != _SIGTERM_STATUS]
    if not causes:
        return None
    rank = causes[0]
    output = read_last_lines(folder, rank)
    return f"Rank {rank} of {name!r} {describe_exit(statuses[rank])}, so mpirun stopped the others.{output}"


def describe_running_ranks(
    name: str, n_tasks: int, timeout_s: float, folder: Path, cpu_s: Mapping[int, float] | None = None
) -> str:
    """Describe the ranks that had not ended within a job's timeout, with the last output of one of them.

    ``cpu_s``: the CPU time of ranks, if known. It identifies a rank that sleeps, as ranks that wait for it in MPI poll.
    """
    subject, why, text = "mpirun", "", ""
    if running := [rank for rank in range(n_tasks) if exit_status(folder, rank) is None]:
        subject, shown_rank = format_numbered("rank", running), running[0]
        if idle := _list_idle_ranks({rank: seconds for rank, seconds in (cpu_s or {}).items() if rank in running}):
            idle_ranks, shown_rank = format_numbered("Rank", idle), idle[0]
            why = f" {idle_ranks} used less than a tenth of the CPU time of the others, which may be waiting for them."
        text = read_last_lines(folder, shown_rank, f"Last lines of rank {shown_rank}")
    return f"{name!r} did not finish within {format_duration(timeout_s)}: {subject} still ran.{why}{text}"


def _list_idle_ranks(cpu_s: Mapping[int, float]) -> list[int]:
    """Return the ranks that were nearly idle while most computed."""
    most = max(cpu_s.values(), default=0.0)
    idle = [rank for rank, seconds in cpu_s.items() if seconds < most / 10]
    return idle if most >= _MIN_BUSY_S and len(idle) <= len(cpu_s) / 2 else []


def _get_state(status: int | None, job: TaskState) -> TaskState:
    if status is not None:
        return "succeeded" if status == 0 else "failed"
    return job if job in {"running", "pending"} else "stopped"
