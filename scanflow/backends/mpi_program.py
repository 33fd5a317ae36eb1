"""The workload and program of an MPI job, read from its ``mainfile``. Shared by the backends that run jobs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from scanflow.app.application import Application
from scanflow.app.mpi import MPIWorkload
from scanflow.app.plan import Plan, PlannedStep
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.backends.step_process import iterate_options
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError, did_you_mean
from scanflow.placement.device_grants import build_demand
from scanflow.placement.mpi.job_plan import MPIPlan


class MPIProgram(NamedTuple):
    """The program of each rank."""

    workload: MPIWorkload
    """The workload, with the fields of its YAML file; its ``mainfile`` is the program."""

    file: Path | None
    """The local program; None: ``mainfile`` is a path in the job's image."""

    arguments: list[str]


def get_mpi_workload(workflow: Workflow) -> MPIWorkload:
    """Return the workload of an MPI workflow, its only node."""
    [node] = workflow.nodes
    if not isinstance(node, MPIWorkload):
        raise InvalidError(f"Workflow {workflow.name!r} is of type 'mpi', but its node is a {type(node).__name__}.")
    return node


def load_mpi_program(app: Application, workflow: Workflow) -> MPIProgram:
    """Return the program of an MPI workflow.

    ``mainfile`` is a program, a Python script, or a YAML file with ``program``, ``args`` and fields of the workload.
    Where the workload has an image, the program may be in it only.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: the YAML file cannot be used.
    """
    workload, files = get_mpi_workload(workflow), AppFiles(app, workflow)
    if workload.mainfile.endswith((".yaml", ".yml")):
        workload = _from_yaml(files.find(workload.mainfile, workload.name), workload)
    try:
        file = files.find(workload.mainfile, workload.name).resolve()
    except NotFoundError as error:
        if workload.image is None:
            installed = shutil.which(workload.mainfile)
            hint = f" A program of that name is installed here: mainfile={installed!r}." if installed else ""
            raise NotFoundError(f"MPIWorkload {workload.name!r}: {error}{hint}") from error
        file = None
    arguments = iterate_options(workload.parameters, who=f"MPIWorkload {workload.name!r}")
    return MPIProgram(workload, file, [*workload.args, *arguments])


def check_affinity(workload: MPIWorkload, *fields: str) -> None:
    """Reject fields of an MPI job's ``affinity`` beyond its mode and ``fields``, which would be ignored.

    Raises:
        UnsupportedError: names the field.
    """
    for field in ("node_selector", "near", "apart_from", "avoid_services"):
        if field not in fields and getattr(workload.affinity, field, None):
            raise UnsupportedError(
                f"MPIWorkload {workload.name!r}: affinity.{field} is not supported here: profile=... decides which "
                "jobs share a node. Remove it."
            )


def build_one_step_plan(
    workflow: Workflow,
    workload: MPIWorkload,
    plan: MPIPlan,
    argv: Sequence[str],
    notes: Sequence[str],
    machine: tuple[float, int],
) -> Plan:
    """Return the plan of a job for ``scanflow plan``; ``machine``: cores and bytes of memory of the machine."""
    machine_cores, machine_memory_bytes = machine
    cores = sum(worker.cores for worker in plan.workers)
    demand, gpu = build_demand(workload.resources_per_task), workload.resources_per_task.gpu
    devices = [] if demand is None else [str(replace(demand, copies=workload.n_tasks))]
    step = PlannedStep(
        name=workload.name,
        wave=0,
        runs=" ".join(argv),
        after=(),
        cores=cores,
        memory_bytes=workload.memory_bytes,
        notes=(*devices, *notes),
    )
    return Plan(
        workflow=workflow.name,
        steps=(step,),
        waves=1,
        machine_cores=machine_cores,
        machine_memory_bytes=machine_memory_bytes,
        peak_cores=cores,
        peak_memory_bytes=workload.memory_bytes or 0,
        unsized=int(workload.memory_bytes is None),
        peak_gpus=0.0 if isinstance(gpu, str) else float(workload.n_tasks * gpu),
    )


def _from_yaml(file: Path, workload: MPIWorkload) -> MPIWorkload:
    who = f"MPIWorkload {workload.name!r}: {file.name!r}"
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidError(f"{who} cannot be read as YAML: {error}") from error
    if isinstance(document, Mapping) and "kind" in document:
        raise UnsupportedError(
            f"{who} describes a Kubernetes {document['kind']}. Scanflow creates that object itself. Write a YAML "
            "file with 'program', 'args' and, where it runs in pods, 'image'."
        )
    if not isinstance(document, Mapping) or not isinstance(document.get("program"), str):
        raise InvalidError(f"{who} needs 'program' (a path), and accepts 'args' (a list) and fields of the workload.")
    fields = dict(document)
    program, args = fields.pop("program"), fields.pop("args", [])
    if not isinstance(args, list):
        raise InvalidError(f"{who}: 'args' is {args!r:.60}, not a list.")
    field_names = set(MPIWorkload.model_fields) - {"kind", "name", "mainfile"}
    if unknown := sorted(set(fields) - field_names):
        hint = did_you_mean(unknown[0], field_names)
        raise InvalidError(f"{who}: {unknown[0]!r} is not a field of a workload.{hint}")
    return workload.replace(**fields, mainfile=program, args=[str(argument) for argument in args])
