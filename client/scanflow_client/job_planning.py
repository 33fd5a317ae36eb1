"""Plans of MPI jobs that are not run: of ``scanflow mpi plan`` and of a client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scanflow.app.mpi import MPIWorkload
from scanflow.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow
    from scanflow.placement.mpi.job_plan import MPIPlan
    from scanflow.settings import Settings

NODE_CORES = 32.0
"""The cores of each node, where a plan is for a number of equal nodes."""


def plan_workflow_job(
    settings: Settings,
    application: Application,
    name: str | None,
    *,
    nodes: int | None = None,
    cores: float = NODE_CORES,
    measure: bool = False,
) -> tuple[MPIWorkload, MPIPlan]:
    """Return the job of a workflow and its plan: on ``nodes`` equal nodes; None: on the backend that would run it.

    ``name`` None: the only workflow of type ``mpi``. ``measure``: a job with ``profile="auto"`` is run for a while.

    Raises:
        UsageError: the workflow is of another type, or the backend does not plan or measure jobs.
    """
    from scanflow.placement.mpi.groups import ClusterNode
    from scanflow.placement.mpi.job_plan import plan_job

    jobs = [workflow for workflow in application.workflows if workflow.type == "mpi"]
    workflow = jobs[0] if name is None and len(jobs) == 1 else application.workflow(name)
    workload, measured = workflow.nodes[0], list[str]()
    if not isinstance(workload, MPIWorkload):
        raise UsageError(f"The workflow {workflow.name!r} is of type {workflow.type!r}, not 'mpi'. See: scanflow plan")
    if workload.profile == "auto" and measure:
        workload, reason = _measure_profile(settings, application, workflow, workload)
        measured = [f"profile='auto': {reason}"]
    if nodes is None:
        plan = _plan_on_backend(settings, application, workflow, workload)
    else:
        plan = plan_job(workload, [ClusterNode(name=f"node{place}", cores=cores) for place in range(nodes)])
    return workload, replace(plan, reasons=(*measured, *plan.reasons))


def _plan_on_backend(
    settings: Settings, application: Application, workflow: Workflow, workload: MPIWorkload
) -> MPIPlan:
    """Return the plan of a job on the backend that would run it; on this machine, as if nothing else ran there."""
    from scanflow.backends.backend_port import JobPlanner
    from scanflow.deployer.embedded import DEFAULT, open_backend
    from scanflow.placement.mpi.local_plan import plan_local_job

    name = settings.backend or application.backend or DEFAULT
    if name == DEFAULT:
        return plan_local_job(workload)
    backend = open_backend(settings, name).mpi()
    if not isinstance(backend, JobPlanner):
        raise UnsupportedError(f"The backend {name!r} does not plan MPI jobs. Set: SCANFLOW_BACKEND=local")
    return backend.job_plan(application, workflow)


def _measure_profile(
    settings: Settings, application: Application, workflow: Workflow, workload: MPIWorkload
) -> tuple[MPIWorkload, str]:
    """Return a job with the profile that its program has, and why it is that."""
    from scanflow.backends.backend_port import JobProfiler
    from scanflow.deployer.embedded import open_backend

    backend = open_backend(settings).mpi()
    if not isinstance(backend, JobProfiler):
        raise UnsupportedError("Programs are measured on this machine only. Set: SCANFLOW_BACKEND=local")
    profile, reason = backend.measure_job(application, workflow)
    return workload.replace(profile=profile), reason
