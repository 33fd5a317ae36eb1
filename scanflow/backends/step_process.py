"""Command-line options and environment variables of a step's process, on every backend. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.resources import Resources
from scanflow.backends.port import Environment
from scanflow.backends.values import format_argument
from scanflow.names import StepName

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse of every version takes for a number, as other parsers do."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
"""Each library's own variable for the size of its thread pool."""


def build_step_env(
    app: Application, workflow: str, run: str, node: Executor, task: StepName, outputs: Path, *, tracking: Environment
) -> dict[str, str]:
    """Return the environment variables of one task; ``tracking`` makes it log to the tracker."""
    return {
        **build_thread_variables(node.resources),
        **tracking(build_task_tags(workflow, run, node.name, task)),
        "PYTHONUNBUFFERED": "1",  # so that the log shows what was printed, when it was
        "SCANFLOW_APP": app.name,
        "SCANFLOW_TEAM": app.team,
        "SCANFLOW_WORKFLOW": workflow,
        "SCANFLOW_RUN": run,
        "SCANFLOW_STEP": node.name,
        "SCANFLOW_TASK": task,
        "SCANFLOW_OUTPUT_DIR": str(outputs),
        **node.env,
    }


def build_task_tags(workflow: str, run: str, step: str, task: StepName) -> dict[str, str]:
    """Return the tracker's tags of a task."""
    return {"scanflow.workflow": workflow, "scanflow.run": run, "scanflow.step": step, "scanflow.task": task}


def build_thread_variables(resources: Resources) -> dict[str, str]:
    """Return thread-pool sizes for the cores granted, rounded up; none if the cores are not limited."""
    return {} if resources.cores is None else dict.fromkeys(THREAD_VARIABLES, str(math.ceil(resources.cores)))


def iterate_options(parameters: Mapping[str, Any], *, who: str) -> Iterator[str]:
    """Yield ``--name value ...``; a parameter that is None is left out.

    A value that a parser would take for an option (``--fast``, ``-1e-5``) is part of its name's word: ``--name=value``.
    """
    for name, value in parameters.items():
        if value is not None:
            text = format_argument(value, who=f"{who}: the parameter {name!r}")
            if text.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(text):
                yield f"--{name}={text}"
            else:
                yield f"--{name}"
                yield text
