"""From a step and its parameters to a command: pure, but for the files it writes into the attempt's own folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.resources import Resources
from scanflow.app.workflow import Workflow
from scanflow.backends.local.batch.values import as_argument
from scanflow.backends.port import Environment
from scanflow.names import RunName, StepName

# Each library's own variable for the size of its thread pool.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def script_command(mainfile: Path, parameters: Mapping[str, Any], *, python: Path, who: str) -> list[str]:
    """Return ``python <mainfile> --name value ...``; a parameter that is None is left out."""
    words = [str(python), str(mainfile)]
    for name, value in parameters.items():
        if value is not None:
            words += [f"--{name}", as_argument(value, who=f"{who}: the parameter {name!r}")]
    return words


def step_environment(
    app: Application,
    workflow: Workflow,
    node: Executor,
    *,
    run: RunName,
    task: StepName,
    outputs: Path,
    tracking: Environment,
) -> dict[str, str]:
    tags = {"scanflow.workflow": workflow.name, "scanflow.run": run, "scanflow.step": node.name, "scanflow.task": task}
    return {
        **thread_variables(node.resources),
        **tracking(tags),
        "PYTHONUNBUFFERED": "1",  # so that the log shows what was printed, when it was
        "SCANFLOW_APP": app.name,
        "SCANFLOW_TEAM": app.team,
        "SCANFLOW_WORKFLOW": workflow.name,
        "SCANFLOW_RUN": run,
        "SCANFLOW_STEP": node.name,
        "SCANFLOW_TASK": task,
        "SCANFLOW_OUTPUT_DIR": str(outputs),
        **node.env,
    }


def thread_variables(resources: Resources) -> dict[str, str]:
    """Return thread-pool sizes for the cores granted, rounded up; none where the cores are not limited."""
    if resources.cores is None:
        return {}
    return dict.fromkeys(THREAD_VARIABLES, str(math.ceil(resources.cores)))
