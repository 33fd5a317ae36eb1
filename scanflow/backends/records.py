"""What a backend tells of its runs: records to keep and send, and events as they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scanflow.failures import Failure
from scanflow.names import RunName, StepName

__all__ = [
    "EnvironmentReady",
    "Event",
    "Observer",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "RunState",
    "TaskEnded",
    "TaskRecord",
    "TaskStarted",
    "TaskState",
    "Waiting",
]

RunState = Literal["running", "interrupted", "succeeded", "failed", "stopped"]
"""``interrupted``: it should be running, but nobody drives it; ``resume`` goes on with it."""

TaskState = Literal["pending", "running", "succeeded", "failed", "skipped", "stopped"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class TaskRecord(_Record):
    """One task of a run: a step, or one item of a fanned-out step."""

    task: StepName
    """``train``, or ``train.3`` for an item of a fan-out."""

    step: str
    state: TaskState
    attempts: int = 0
    """Attempts begun so far."""

    began: float | None = None
    """Seconds since the epoch, of the last attempt."""

    seconds: float | None = None
    exit_code: int | None = None
    cpu_s: float | None = None
    """User and system time, of the step and what it waited for."""

    max_rss_bytes: int | None = None
    origin: str | None = None
    """The run whose outputs were reused (from the cache, or as a spin's input), if they were."""

    failure: Failure | None = None


class RunRecord(_Record):
    """One run of a workflow."""

    name: RunName
    app: str
    team: str
    workflow: str
    state: RunState
    created: float
    """Seconds since the epoch."""

    seconds: float | None = None
    folder: str
    """Where its outputs and logs are."""

    source: str | None = None
    """The file it was started from."""

    error: str | None = None
    tasks: tuple[TaskRecord, ...] = ()


class RunStarted(_Record):
    """A run is being driven, from its beginning or from where it stood."""

    kind: Literal["run-started"] = "run-started"
    run: RunName
    folder: str
    steps: int
    kept: int = 0
    """Tasks that had finished before, and are not run again."""


class Waiting(_Record):
    """Something the run waits for before a step can start."""

    kind: Literal["waiting"] = "waiting"
    run: RunName
    what: str


class EnvironmentReady(_Record):
    """What was waited for is there."""

    kind: Literal["environment-ready"] = "environment-ready"
    run: RunName
    what: str
    seconds: float


class TaskStarted(_Record):
    """An attempt at a task began, or was adopted from an earlier driver."""

    kind: Literal["task-started"] = "task-started"
    run: RunName
    task: StepName
    step: str
    width: int
    """Tasks that the step fans out to; 1 without a fan-out."""

    attempt: int
    adopted: bool = False


class TaskEnded(_Record):
    """An attempt at a task ended."""

    kind: Literal["task-ended"] = "task-ended"
    run: RunName
    record: TaskRecord
    width: int
    left: int = 0
    """Tasks of the same step that have not ended well yet."""

    retry_in_s: float | None = None
    """Not None: it failed and will be tried again after this long."""


class RunEnded(_Record):
    """A run ended."""

    kind: Literal["run-ended"] = "run-ended"
    run: RunName
    record: RunRecord


Event = RunStarted | Waiting | EnvironmentReady | TaskStarted | TaskEnded | RunEnded
Observer = Callable[[Event], None]
