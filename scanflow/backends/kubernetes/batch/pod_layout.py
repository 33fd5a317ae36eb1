"""Names of a run's objects and annotations, and the paths in a step's pod."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from scanflow.backends.kubernetes.object_labels import append_hash
from scanflow.names import MAX_NAME

OUTPUTS: Final = PurePosixPath("/scanflow/outputs")
"""The claim: ``<run>/<step>[/<index>]`` is a task's output folder, as in a run's folder on a laptop."""

RUN_FILES: Final = PurePosixPath("/scanflow/run")
"""The run's ConfigMap: its document, and the functions that no file defines."""

KEYS: Final = PurePosixPath("/scanflow/keys")
"""The Secret that pickles are signed with."""

APP: Final = PurePosixPath("/app")
REPORTED_FOLDER: Final = PurePosixPath("/tmp/scanflow-reported")  # noqa: S108  an empty folder of the pod's own
"""The output parameters of a step's program: a file each, which Argo reads."""

STORE_SECRET: Final = PurePosixPath("/scanflow/store")
"""The Secret that an object store of outputs is reached with, if there is one: a file for each variable."""

STORE_VARIABLE: Final = "SCANFLOW_OUTPUTS_STORE"
"""The variable with the address of an environment's outputs in an object store; unset: they are on the claim."""

LOGS: Final = ".logs"
CACHE: Final = ".cache"

DOCUMENT: Final = "run.json"
PACKED_FILE: Final = "run.json.gz"
"""The same document, compressed, for a run with many steps."""

LAUNCHES: Final = "launches.json"
"""The launches of steps that need not read the application."""

PACKED_LAUNCHES: Final = "launches.json.gz"

KEY: Final = "pickle.key"
KEY_SECRET: Final = "scanflow-pickles"  # noqa: S105  its name

REPORT: Final = "report"
"""The output parameter with the report of a task's process."""

OUTPUTS_PARAMETER: Final = "outputs"
"""The output parameter with a task's named outputs, where they are small."""

EXIT_STOPPED: Final = 130
"""The exit code of a task that was asked to stop, which is not retried."""

ATTEMPTS: Final = "scanflow.dev/attempts"
"""An annotation: earlier attempts of tasks that are to run."""

ASKED_TO_STOP: Final = "scanflow.dev/stopped"
"""An annotation: the tasks that were asked to stop."""

GIVEN_UP_ANNOTATION: Final = "scanflow.dev/given-up"
"""An annotation: tasks whose pods did not start, each with the reason and the seconds waited."""

DRIVE: Final = "scanflow.dev/drive"
"""An annotation: the number of a Workflow or job of its run."""


CREATED: Final = "scanflow.dev/created"
"""An annotation of a run's ConfigMap: when the run was entered, in seconds since the epoch."""

DRIVER: Final = "scanflow.dev/driver"
"""An annotation of a run's ConfigMap: the token of whoever began its last drive."""

ENDED: Final = "scanflow.dev/ended"
"""An annotation of a run's ConfigMap: the number of the last drive whose end is in it."""

STOP_REQUEST: Final = "scanflow.dev/stop-request"
"""An annotation of a run's ConfigMap: the last request to stop the run before it has a Workflow or job."""

OUTPUTS_CLAIM: Final = "scanflow.dev/outputs-claim"
"""An annotation of a run's ConfigMap: the uid of the claim that its outputs are on."""

CODE: Final = "code.json"
"""In a run's ConfigMap: the volume of its application's files, where its image lacks them."""

PROGRESS: Final = "progress.json.gz"
"""In a run's ConfigMap: the state of the run and its tasks, at the start of a drive and at its end."""


def format_config_map_name(run: str) -> str:
    """Return the name of a run's ConfigMap."""
    return _shorten(f"run-{run}")


def format_workflow_name(run: str, drive: int) -> str:
    """Return the name of the Workflow of a run's first, second, ... drive."""
    return _shorten(run if drive == 1 else f"{run}-{drive}")


def locate_run_outputs(outputs: Path, run: str) -> Path:
    """Return the folder of a run on the claim."""
    return outputs / run


def locate_attempt_logs(outputs: Path, run: str, task: str, attempt: int) -> Path:
    """Return the folder of an attempt's logs on the claim."""
    return outputs / LOGS / run / task / str(attempt)


def _shorten(name: str) -> str:
    return name if len(name) <= MAX_NAME else append_hash(name, name)
