"""Commands on MPI jobs: mpi plan, script, logs, list and gantt."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from scanflow.errors import UsageError
from scanflow_client.cli.command_help import DocumentedCommand
from scanflow_client.cli.command_options import (
    JsonOption,
    LimitOption,
    RunArgument,
    TargetArgument,
    check_choice,
    load_settings,
    open_deployer,
)
from scanflow_client.cli.command_output import respond, say, write_blocks
from scanflow_client.cli.plugin_commands import PluginGroup

if TYPE_CHECKING:
    from scanflow.app.mpi import MPIWorkload
    from scanflow.backends.job_times import JobTimes
    from scanflow.placement.mpi.job_plan import MPIPlan

mpi = typer.Typer(name="mpi", cls=PluginGroup, help="Plan, simulate and inspect MPI jobs.", no_args_is_help=True)

NodesOption = Annotated[
    int | None, Option("--nodes", min=1, help="Plan for this many equal nodes instead of the backend's.")
]
CoresOption = Annotated[float, Option("--cores", min=0.01, help="Cores of each node.")]


@mpi.command(cls=DocumentedCommand)
def plan(
    target: TargetArgument = None,
    nodes: NodesOption = None,
    cores: CoresOption = 32,
    measure: Annotated[
        bool,
        Option("--measure", help="With profile='auto': run the program first, 30 s at most, to find its bottleneck."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a job's workers, and each rank's node and CPUs, without running it.

    Examples:
        scanflow mpi plan app.py
        scanflow mpi plan app.py --nodes 2 --cores 16
    """
    _, job_plan = _plan_job(target, nodes, cores, measure=measure)
    respond(asdict(job_plan), as_json, lambda: [*job_plan.reasons, *job_plan.lines()])


@mpi.command(cls=DocumentedCommand)
def script(
    target: TargetArgument = None,
    nodes: NodesOption = None,
    cores: CoresOption = 32,
    kind: Annotated[str, Option("--kind", help="mpirun, sbatch or rankfile.")] = "mpirun",
) -> None:
    """Print the plan as a script for machines without scanflow.

    Examples:
        scanflow mpi script app.py --nodes 2 --cores 16 --kind sbatch
    """
    from scanflow.backends.step_process import iterate_options
    from scanflow.placement.mpi.scripts import format_mpirun_script, format_rankfile, format_sbatch_script

    check_choice(kind, ("mpirun", "sbatch", "rankfile"), "--kind")
    workload, job_plan = _plan_job(target, nodes, cores)
    argv = [workload.mainfile, *iterate_options(workload.parameters, who=f"MPIWorkload {workload.name!r}")]
    if kind == "rankfile":
        text = format_rankfile(job_plan)
    else:
        text = (
            format_mpirun_script(job_plan, argv) if kind == "mpirun" else format_sbatch_script(job_plan, workload, argv)
        )
    say(text.rstrip("\n"))


@mpi.command(cls=DocumentedCommand)
def logs(
    run: RunArgument = "@latest",
    rank: Annotated[int | None, Option("--rank", min=0, help="Print only the output of this rank.")] = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
) -> None:
    """Print the output of a job's ranks, each line after its rank; or of one rank.

    Examples:
        scanflow mpi logs
        scanflow mpi logs keen-otter-417 --rank 0 --follow
    """
    from scanflow.backends.job_times import is_job
    from scanflow.deployer import TaskLog

    deployer = open_deployer()
    record = deployer.show(run)
    if not is_job(record):
        raise UsageError(f"The run {record.name!r} is not of an MPI job. See: scanflow logs {record.name}")
    ranks = [task.task for task in record.tasks if task.step == "ranks"]
    if not ranks:
        raise UsageError(f"No rank of the run {record.name!r} has started. See: scanflow show {record.name}")
    job = ranks[0].partition(".")[0]
    task = job if rank is None else f"{job}.{rank}"
    write_blocks((part.data for part in deployer.logs(TaskLog(record.name, task, "both"), follow=follow)), raw=False)


@mpi.command(name="list", cls=DocumentedCommand)
def list_jobs(limit: LimitOption = 20, as_json: JsonOption = False) -> None:
    """List the MPI jobs among the newest runs: how long each waited and ran, and the makespan of all.

    Examples:
        scanflow mpi list
        scanflow mpi list -n 50 --json
    """
    from scanflow_client.formatting.job_text import format_jobs

    jobs = _list_jobs(limit)
    respond([_build_job_json(job) for job in jobs], as_json, lambda: format_jobs(jobs))


@mpi.command(cls=DocumentedCommand)
def gantt(
    limit: LimitOption = 20,
    svg: Annotated[Path | None, Option("--svg", metavar="FILE", help="Write the chart as an SVG file.")] = None,
) -> None:
    """Chart the MPI jobs among the newest runs over time: when each waited, and when it ran.

    Examples:
        scanflow mpi gantt
        scanflow mpi gantt -n 50 --svg jobs.svg
    """
    from scanflow_client.formatting.job_text import draw_jobs

    jobs = _list_jobs(limit)
    if svg is None:
        say(*draw_jobs(jobs, shutil.get_terminal_size().columns))
        return
    from scanflow.reports.job_drawings import draw_gantt as chart

    if not jobs:
        raise UsageError("No MPI job has run yet, so there is nothing to chart. Run one: scanflow run app.py")
    svg.write_text(chart(jobs), encoding="utf-8")
    say(f"Wrote {svg}.")


def _list_jobs(limit: int) -> list[JobTimes]:
    """Return the times of the jobs among the newest runs, the newest first."""
    from scanflow.backends.job_times import compute_job_times, is_job

    deployer, now = open_deployer(), time.time()
    shown = (deployer.show(record.name) for record in deployer.runs(limit=limit))
    return [compute_job_times(record, now) for record in shown if is_job(record)]


def _build_job_json(job: JobTimes) -> dict[str, Any]:
    derived = {"waiting_s": job.waiting_s, "running_s": job.running_s, "response_s": job.response_s}
    return {**asdict(job), **derived}


def _plan_job(
    target: str | None, nodes: int | None, cores: float, *, measure: bool = False
) -> tuple[MPIWorkload, MPIPlan]:
    from scanflow.application_loading import load_application
    from scanflow_client.job_planning import plan_workflow_job

    application, _, name = load_application(target)
    return plan_workflow_job(load_settings(), application, name, nodes=nodes, cores=cores, measure=measure)
