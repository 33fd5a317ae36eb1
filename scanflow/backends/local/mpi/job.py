"""Conversion of an MPI workflow to a batch workflow of one step."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.mpi import MPIWorkload
from scanflow.app.plan import Plan
from scanflow.app.resources import Resources
from scanflow.app.workflow import Workflow
from scanflow.backends.local.mpi.claims import list_neighbours
from scanflow.backends.local.mpi.containers import build_container_command, get_runtime
from scanflow.backends.local.mpi.job_step import LAUNCH
from scanflow.backends.local.mpi.mpirun import get_launcher
from scanflow.backends.mpi_program import build_one_step_plan, check_affinity, load_mpi_program
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.placement.mpi.local_plan import plan_local_job
from scanflow.placement.sysfs import read_topology

if TYPE_CHECKING:
    from scanflow.backends.local.mpi.profiling.classify import Profile


def as_batch(definition: RunDefinition, home: Path) -> RunDefinition:
    """Convert the definition of an MPI job to that of a batch workflow.

    ``home``: its services and jobs are the job's neighbours.

    Raises:
        UsageError: it cannot run here.
    """
    workflow = definition.workflow
    workload, argv = resolve_job(definition.app, workflow)
    plan = plan_local_job(workload)
    get_launcher(workload.flavor, Path(argv[0]), name=workload.name)
    step = Executor(
        name=workload.name,
        function=LAUNCH,
        parameters={
            "workload": workload.model_dump(mode="json", exclude_defaults=True),
            "argv": argv,
            "home": str(home),
        },
        resources=Resources(
            cpu=max(1.0, sum(worker.cores for worker in plan.workers)),
            memory=workload.memory_bytes,
            gpu=workload.resources_per_task.gpu,
            gpu_memory=workload.resources_per_task.gpu_memory,
        ),
    )
    return replace(definition, workflow=Workflow(name=workflow.name, nodes=(step,), output_dir=workflow.output_dir))


def _check_supported(workload: MPIWorkload) -> MPIWorkload:
    if workload.image is not None and workload.runtime is None:
        raise UnsupportedError(
            f"MPIWorkload {workload.name!r}: the embedded backend does not support image without a runtime: ranks are "
            "processes of this machine. Write runtime='podman' or 'apptainer', remove it, or run on Kubernetes."
        )
    check_affinity(workload)
    if workload.resources_per_task.gpu and workload.runtime is not None:
        raise UnsupportedError(
            f"MPIWorkload {workload.name!r}: the embedded backend does not support resources_per_task.gpu in "
            f"containers of {workload.runtime!r}. Remove runtime, or gpu."
        )
    return workload


def resolve_job(app: Application, workflow: Workflow) -> tuple[MPIWorkload, list[str]]:
    """Return an MPI workflow's workload, and the command of a rank.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: it cannot be executed.
    """
    mpi_program = load_mpi_program(app, workflow)
    workload, file = _check_supported(mpi_program.workload), str(mpi_program.file)
    if workload.runtime is not None and workload.image is not None:
        runtime = get_runtime(workload.runtime, name=workload.name)
        inside = [
            *(["python3"] if workload.mainfile.endswith(".py") else []),
            workload.mainfile,
            *mpi_program.arguments,
        ]
        folder = str(Path(app.app_dir).resolve())
        return workload, build_container_command(workload.runtime, runtime, workload.image, inside, folder)
    if file.endswith(".py"):
        return workload, [sys.executable, file, *mpi_program.arguments]
    if not os.access(file, os.X_OK):
        raise InvalidError(
            f"MPIWorkload {workload.name!r}: {file!r} is not executable. Compile it, or make it executable: chmod +x "
            f"{file}"
        )
    return workload, [file, *mpi_program.arguments]


def measure_here(app: Application, workflow: Workflow, folder: Path) -> Profile:
    """Profile an MPI workflow's program by a short run; its output goes to ``folder``."""
    from scanflow.backends.local.mpi.profiling.profile import measure

    workload, argv = resolve_job(app, workflow)
    launcher, topology = get_launcher(workload.flavor, Path(argv[0]), name=workload.name), read_topology()
    plan = plan_local_job(workload, topology)
    return measure(workload, plan, argv, launcher=launcher, topology=topology, folder=folder)


def plan_workload(app: Application, workflow: Workflow, *, home: Path, machine_memory_bytes: int) -> Plan:
    """Return the plan of a job for ``scanflow plan``: one step, with the map of ranks in its notes."""
    workload, argv = resolve_job(app, workflow)
    plan = plan_local_job(workload, neighbours=list_neighbours(home))
    machine = (read_topology().effective_count, machine_memory_bytes)
    return build_one_step_plan(workflow, workload, plan, argv, (*plan.reasons, *plan.lines()), machine)
