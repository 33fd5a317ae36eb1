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


def count_ranks(step: Executor) -> int | None:
    """Return how many ranks the job of a step has, each of which needs what the step asks of GPUs; None: no job's."""
    workload = step.parameters.get("workload")
    if step.function != LAUNCH or not isinstance(workload, Mapping):
        return None
    return int(workload["n_tasks"])
