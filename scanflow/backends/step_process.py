"""Command-line options and environment variables of a step's process, on every backend. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.parameters import select_texts
from scanflow.app.resources import Resources
from scanflow.backends.backend_port import Environment
from scanflow.backends.parameter_secrets import take_secrets
from scanflow.backends.script_process import format_option
from scanflow.backends.values import format_argument
from scanflow.names import StepName

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
        **select_texts(node.env),
    }


def build_task_tags(workflow: str, run: str, step: str, task: StepName) -> dict[str, str]:
    """Return the tracker's tags of a task."""
    return {"scanflow.workflow": workflow, "scanflow.run": run, "scanflow.step": step, "scanflow.task": task}


def build_thread_variables(resources: Resources) -> dict[str, str]:
    """Return thread-pool sizes for the cores granted, rounded up; none if the cores are not limited."""
    return {} if resources.cores is None else dict.fromkeys(THREAD_VARIABLES, str(math.ceil(resources.cores)))


def list_secret_sources(node: Executor, inherited: Iterable[str]) -> list[str]:
    """Return the references to what is masked in a step's output: its secrets, and what it may inherit and print."""
    return sorted({secret.source for secret in node.secrets} | set(inherited))


def list_options_with_secrets(parameters: Mapping[str, Any], *, who: str) -> list[Any]:
    """Return the options of a script, as ``secret_process.SecretRequest`` has them."""
    options: list[Any] = []
    for name, value in parameters.items():
        rest, places = take_secrets(value)
        if not places:
            options += iterate_options({name: value}, who=who)
        else:  # JSON, or it is refused
            text = format_argument(rest, who=f"{who}: the parameter {name!r}")
            options.append([name, json.loads(text), places])
    return options


def iterate_options(parameters: Mapping[str, Any], *, who: str) -> Iterator[str]:
    """Yield ``--name value ...``; a parameter that is None is left out."""
    for name, value in parameters.items():
        if value is not None:
            text = format_argument(value, who=f"{who}: the parameter {name!r}")
            yield from format_option(name, text)
