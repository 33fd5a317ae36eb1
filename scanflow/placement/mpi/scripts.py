"""The plan of an MPI job as text for machines without scanflow: for a shell, for Slurm, as a rank file. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from scanflow.app.mpi import MPIWorkload
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.mpi.job_plan import MPIPlan
from scanflow.placement.mpi.task_allocation import format_hostfile


def format_rankfile(plan: MPIPlan) -> str:
    """Return Open MPI's rank file: each rank's node and CPUs, by the kernel's CPU numbers.

    Ranks without numbered CPUs may use all of their node.
    """
    lines = (
        f"rank {rank.rank}={rank.node} slot={format_cpus(rank.cpus) if rank.cpus else '*'}\n" for rank in plan.ranks
    )
    return "".join(lines)


def format_mpirun_script(plan: MPIPlan, argv: Sequence[str]) -> str:
    """Return a shell script that starts the job with Open MPI on the plan's nodes."""
    bound = all(rank.cpus for rank in plan.ranks)
    hosts = format_hostfile(plan.ranks_by_node.items())
    lines = [*_build_header("#!/bin/sh", plan), "set -e", "folder=$(mktemp -d)", "trap 'rm -rf \"$folder\"' EXIT"]
    lines += ["cat >\"$folder/hostfile\" <<'EOF'", hosts.rstrip("\n"), "EOF"]
    options = ["--hostfile", '"$folder/hostfile"']
    if bound and plan.affinity != "any":
        lines += ["cat >\"$folder/rankfile\" <<'EOF'", format_rankfile(plan).rstrip("\n"), "EOF"]
        options += ["--rankfile", '"$folder/rankfile"', "--mca", "rmaps_rank_file_physical", "1"]
    else:
        options += ["--map-by", "node" if plan.granularity.nodes > 1 else "slot", "--bind-to", _choose_binding(plan)]
    if plan.oversubscribed:
        options += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return "\n".join([*lines, f"mpirun -np {len(plan.ranks)} {' '.join(options)} {shlex.join(argv)}", ""])


def format_sbatch_script(plan: MPIPlan, workload: MPIWorkload, argv: Sequence[str]) -> str:
    """Return a Slurm batch file. Slurm chooses the nodes; the plan sets their number and the tasks on each."""
    per_node = max(plan.ranks_by_node.values())
    cores = workload.resources_per_task.cores or 1.0
    memory = workload.resources_per_task.memory_bytes
    options = {
        "job-name": plan.name,
        "nodes": len(plan.ranks_by_node),
        "ntasks": len(plan.ranks),
        "ntasks-per-node": per_node,
        "cpus-per-task": max(1, math.ceil(cores)),
        "mem-per-cpu": None if memory is None else f"{math.ceil(memory / max(1, math.ceil(cores)) / 2**20)}M",
        "time": None if workload.timeout_s is None else _format_clock(workload.timeout_s),
        "overcommit": "" if plan.oversubscribed else None,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    directives = [f"#SBATCH --{name}" + (f"={value}" if value != "" else "") for name, value in chosen.items()]
    bind = {"none": "none", "core": "cores"}[_choose_binding(plan)]
    distribution = "cyclic" if plan.granularity.workers > plan.granularity.nodes else "block"
    run = f"srun --cpu-bind={bind} --distribution={distribution} {shlex.join(argv)}"
    shebang, *comments = _build_header("#!/bin/bash", plan)
    return "\n".join([shebang, *directives, *comments, run, ""])


def _build_header(shebang: str, plan: MPIPlan) -> list[str]:
    return [shebang, *(f"# {reason}" for reason in plan.reasons)]


def _choose_binding(plan: MPIPlan) -> str:
    return "none" if plan.affinity == "any" or plan.oversubscribed else "core"


def _format_clock(seconds: float) -> str:
    """Return Slurm's ``HH:MM:SS``."""
    whole = math.ceil(seconds)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
