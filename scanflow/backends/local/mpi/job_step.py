"""The one step of the batch workflow that an MPI job is run as."""

from __future__ import annotations

from scanflow.app.workflow import Workflow

LAUNCH = "scanflow.backends.local.mpi.launcher:launch"
"""The function of the step."""


def is_job(workflow: Workflow) -> bool:
    """Return whether a batch workflow is that of an MPI job."""
    return any(step.function == LAUNCH for step in workflow.steps)
