"""The report of a task's end, which the program in its pod writes to an output parameter."""

from __future__ import annotations

import signal
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.app.quantities import format_duration
from scanflow.backends.kubernetes.batch.pod_process import ProcessEnd
from scanflow.backends.pod_devices import read_pod_devices
from scanflow.backends.run_records import DeviceUse
from scanflow.errors import ScanflowError
from scanflow.text.failures import Failure, parse_failure

MAX_CAUSE_LENGTH = 2_000
"""Characters of a cause: the engine keeps all reports of a run in one object."""

_READ_ONLY = "Read-only file system"
_READ_ONLY_HINT = (
    "In a pod the application's folder is read-only, and what a step wrote there would not reach later ones. Write "
    "files to the folder in $SCANFLOW_OUTPUT_DIR, where later steps find them at /workflow/<step>/..., or temporary "
    "ones to /tmp."
)

_OWN_FOLDER = str(Path(__file__).parents[3])  # the library's: its frames are not the user's


class TaskReport(BaseModel):
    """A task's end as its pod's program observed it. The engine reports lost pods, and pods that never started."""

    model_config = ConfigDict(frozen=True)

    began: float | None = None
    seconds: float | None = None
    exit_code: int | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    origin: str | None = None
    cache_note: str | None = None
    stopped: bool = False
    files: tuple[tuple[str, int], ...] | None = None
    """The names and bytes of the files that it left; None: they are too many to be reported."""

    devices: tuple[DeviceUse, ...] = ()
    failure: Failure | None = None

    def to_json(self) -> str:
        """Return the report as JSON, with a bounded cause."""
        failure = self.failure
        if failure is not None:
            cause = failure.cause[-MAX_CAUSE_LENGTH:]
            failure = failure.model_copy(update={"cause": cause, "frames": failure.frames[-5:]})
        return self.model_copy(update={"failure": failure}).model_dump_json(exclude_defaults=True)


def read_report(text: str) -> TaskReport | None:
    """Return the report in a text; None: it is empty or not a report."""
    try:
        return TaskReport.model_validate_json(text) if text else None
    except ValidationError:
        return None


POD_DELETED = TaskReport(
    failure=Failure(
        summary="its pod was deleted",
        cause="Its pod was deleted right after it started, and Argo created another one. The step has no retries, so "
        "it is not run twice. If a second run is harmless: retries=1.",
    )
)
"""The report of a task that had already started in another pod."""


def build_process_report(end: ProcessEnd) -> TaskReport:
    """Return the report of a task whose process has ended."""
    return TaskReport(
        began=end.began,
        seconds=end.seconds,
        exit_code=end.exit_code,
        cpu_s=end.cpu_s,
        max_rss_bytes=end.max_rss_bytes,
        stopped=end.cause == "stopped",
        files=None if end.files is None else tuple(end.files),
        devices=read_pod_devices(),
        failure=None if end.succeeded else _describe_failure(end),
    )


def build_error_report(error: Exception) -> TaskReport:
    """Return the report of a task that could not be started."""
    cause = str(error) if isinstance(error, ScanflowError) else f"{type(error).__name__}: {error}"
    return TaskReport(failure=Failure(summary="could not start", cause=cause))


def _describe_failure(end: ProcessEnd) -> Failure:
    if end.cause == "timeout":
        summary = f"timed out after {format_duration(end.timeout_s or 0)}"
    elif end.cause == "stopped":
        summary = "stopped"
    elif end.cause == "ended":
        summary = "its pod was terminated: evicted, drained or deleted"
    elif end.code < 0:
        hint = ", as the kernel does when memory runs out: raise resources.memory"
        summary = f"killed by {signal.Signals(-end.code).name}{hint if end.code == -signal.SIGKILL else ''}"
    else:
        summary = f"exit code {end.code}"
    failure = parse_failure(end.stderr, summary=summary, own_folder=_OWN_FOLDER)
    if _READ_ONLY in end.stderr and not end.cause:
        return failure.model_copy(update={"cause": f"{failure.cause}\n{_READ_ONLY_HINT}".lstrip()})
    return failure
