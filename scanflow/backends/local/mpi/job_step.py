"""The one step of the batch workflow that an MPI job is run as."""

from __future__ import annotations

from collections.abc import Mapping

from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow

LAUNCH = "scanflow.backends.local.mpi.launcher:launch"
"""The function of the step."""


def is_job(workflow: Workflow) -> bool:
    """Return whether a batch workflow is that of an MPI job."""
    return any(step.function == LAUNCH for step in workflow.steps)


def count_shares(step: Executor) -> int:
    """Return how often a step needs its share or part of a GPU: a job's step once for each rank."""
    workload = step.parameters.get("workload")
    if step.function != LAUNCH or not isinstance(workload, Mapping) or isinstance(step.resources.gpu, int):
        return 1
    return int(workload["n_tasks"])
