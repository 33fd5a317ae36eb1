"""From a step and its parameters to a command: pure, but for the files it writes into the attempt's own folder."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor, Target
from scanflow.app.resources import Resources
from scanflow.app.workflow import Workflow
from scanflow.backends.local import call
from scanflow.backends.local.values import as_argument, encode
from scanflow.loading import find_file
from scanflow.names import RunName, StepName

__all__ = ["Places", "Tracking", "script_command", "step_environment", "thread_variables", "write_request"]

Tracking = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the tags that a step's tracked runs should carry to the variables that make them so; none without a tracker."""

# Each library's own variable for the size of its thread pool.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class Places:
    """Where an application's files are found."""

    def __init__(self, app: Application, workflow: Workflow) -> None:
        self.app_dir = Path(app.app_dir)
        self._workflow = workflow.name

    def folders(self, node: str) -> list[Path]:
        """Where a node's files may lie: the application's folder, then the prototype's ``workflows/<node>`` layouts."""
        below = self.app_dir / "workflows"
        names = dict.fromkeys([node, node.replace("-", "_")])
        return [
            self.app_dir,
            *(below / name for name in names),
            *(below / self._workflow / name for name in names),
            below / self._workflow,
        ]

    def find(self, name: str, node: str) -> Path:
        """Return a node's file.

        Raises:
            NotFoundError: it is in none of the folders.
        """
        return find_file(name, self.folders(node))

    def function_file(self, target: Target, node: str) -> Path | None:
        """Return the file that a function is loaded from; None if it is found by module, or has no file."""
        module = target.partition(":")[0]
        if not module.endswith(".py"):
            return None
        plain = getattr(target.call, "function", target.call)
        own = getattr(plain, "__globals__", {}).get("__file__")
        return Path(own).resolve() if own else self.find(module, node)


def script_command(mainfile: Path, parameters: Mapping[str, Any], *, python: Path, who: str) -> list[str]:
    """Return ``python <mainfile> --name value ...``; a parameter that is None is left out."""
    words = [str(python), str(mainfile)]
    for name, value in parameters.items():
        if value is not None:
            words += [f"--{name}", as_argument(value, who=f"{who}: the parameter {name!r}")]
    return words


def write_request(
    target: Target,
    parameters: Mapping[str, Any],
    *,
    file: Path | None,
    by_value: Path | None,
    folder: Path,
    isolated: bool,
    who: str,
) -> Path:
    """Write into ``folder`` which function to call with what, for ``call.py``, and return that file.

    ``isolated``: the interpreter belongs to an environment of the step's own, so this one's packages are not its path.
    """
    request = folder / "request.json"
    call.Request(
        name=str(target),
        who=who,
        file=str(file) if file else None,
        by_value=str(by_value) if by_value else None,
        path=None if isolated else [entry or str(Path.cwd()) for entry in sys.path],
        parameters=encode(dict(parameters), folder),
    ).write(request)
    return request


def step_environment(
    app: Application,
    workflow: Workflow,
    node: Executor,
    *,
    run: RunName,
    task: StepName,
    outputs: Path,
    tracking: Tracking,
) -> dict[str, str]:
    """Return the variables a step is given beside its runner's own."""
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
