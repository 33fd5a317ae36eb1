"""Where a run's things are: its objects, and the folders inside a step's pod. Names only."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from scanflow.backends.kubernetes.labels import hashed
from scanflow.names import MAX_NAME

OUTPUTS: Final = PurePosixPath("/scanflow/outputs")
"""The claim: ``<run>/<step>[/<index>]`` is a task's output folder, as in a run's folder on a laptop."""

RUN_FILES: Final = PurePosixPath("/scanflow/run")
"""The run's ConfigMap: its document, and the functions that no file holds."""

KEYS: Final = PurePosixPath("/scanflow/keys")
"""The Secret that pickles are signed with."""

APP: Final = PurePosixPath("/app")
REPORTED: Final = PurePosixPath("/tmp/scanflow-reported")  # noqa: S108  an empty folder of the pod's own
"""What a step's program tells Argo: a file for each output parameter."""

DOCUMENT: Final = "run.json"
PACKED: Final = "run.json.gz"
"""The same, of a run of many steps."""

LAUNCHES: Final = "launches.json"
"""How those of its steps are run that need not read the application."""

PACKED_LAUNCHES: Final = "launches.json.gz"

KEY: Final = "pickle.key"
KEY_SECRET: Final = "scanflow-pickles"  # noqa: S105  its name

REPORT: Final = "report"
"""The output parameter that says how a task's process ended."""

LEFT: Final = "outputs"
"""The output parameter that holds a task's named outputs, where they are few and plain."""

STOPPED: Final = 130
"""The exit code of a task that was asked to stop: it is not retried."""

ATTEMPTS: Final = "scanflow.dev/attempts"
"""An annotation: attempts that were made before, of tasks that are to run."""

ASKED_TO_STOP: Final = "scanflow.dev/stopped"
"""An annotation: the tasks that were asked to stop."""

GIVEN_UP: Final = "scanflow.dev/given-up"
"""An annotation: tasks whose pods did not start, each with the reason and after how many seconds."""

DRIVE: Final = "scanflow.dev/drive"
"""An annotation: the how-manieth Workflow of its run it is."""


def run_object(run: str) -> str:
    """Return the name of a run's ConfigMap."""
    return _short(f"run-{run}")


def workflow_object(run: str, drive: int) -> str:
    """Return the name of the Workflow of a run's first, second, ... drive."""
    return _short(run if drive == 1 else f"{run}-{drive}")


def outputs_of(outputs: Path, run: str) -> Path:
    """Return the folder of a run on the claim."""
    return outputs / run


def attempt_folder(outputs: Path, run: str, task: str, attempt: int) -> Path:
    """Return where the claim keeps what an attempt wrote."""
    return outputs / ".logs" / run / task / str(attempt)


def kept_function(target: str) -> str:
    """Return the key of the ConfigMap that holds a function which no file does."""
    module, _, name = target.partition(":")
    return f"{name}.pickle" if module == "__main__" else module


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else hashed(name, name)
