"""Records of runs, which are stored and sent, and events of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.names import RunName, StepName
from scanflow.text.failures import Failure

RunState = Literal["running", "interrupted", "succeeded", "failed", "stopped"]
"""``interrupted``: it should be running, but no process drives it; ``resume`` continues it."""

FINAL_STATES: Final = frozenset({"succeeded", "failed", "stopped"})
"""The states of a run, or of an MPI job, that has ended."""

TaskState = Literal["pending", "running", "succeeded", "failed", "skipped", "stopped", "empty"]
"""``empty``: the one record of a fan-out over no items, which has no tasks and whose output is an empty list."""

FINISHED_STATES: Final = frozenset({"succeeded", "skipped", "empty"})
"""The states of tasks that later steps do not wait for any more."""


class Record(BaseModel):
    """A record or event of a backend: stored, sent and compared as it is."""

    model_config = ConfigDict(frozen=True)

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - set(dir(BaseModel)) | set(type(self).model_fields))

    def with_details(self, **details: Any) -> Self:
        """Return a copy with backend-specific details, as JSON values."""
        return self.model_copy(update=details)


class DeviceUse(Record):
    """A GPU, or part of one, that was granted to a task, and what was seen of its use."""

    number: int
    """The device's number in the driver's list."""

    uuid: str
    """Of the device, or of its part: what the process sees."""

    name: str = ""
    sharing: str
    """``exclusive``, ``mig``, ``mps`` or ``time slicing``."""

    share: float = 1.0
    memory_bytes: int | None = None
    """Of a share, the most that the task may use; else what the device or part has."""

    peak_bytes: int | None = None
    """The most memory that its processes were seen to hold, read twice a second. None: they were not seen."""

    others: tuple[str, ...] = ()
    """The other processes that were seen on it last: ``python 4711 (12Gi)``."""

    used_bytes: int | None = None
    """The memory that was held of it when it was seen last. None: the driver does not say, or who holds it is not
    seen."""

    busy_share: float | None = None
    """The share of the last minute in which the whole device computed, of that before its task ended; of a pod's, of
    the last moment. None: it does not say, or this is a share or a part."""

    power_w: float | None = None
    """What the whole device took over the same time."""

    fault: str = ""
    """Why it cannot be used any more, in the driver's words; then nothing is read of it."""

    @property
    def memory_share(self) -> float | None:
        """The share of its memory that is held. None: not known."""
        if self.used_bytes is None or not self.memory_bytes:
            return None
        return round(self.used_bytes / self.memory_bytes, 4)


class TaskRecord(Record):
    """One task of a run: a step, or one item of a fanned-out step."""

    task: StepName
    """``train``, or ``train.3`` for an item of a fan-out."""

    step: str
    state: TaskState
    attempts: int = 0
    """Attempts started so far."""

    began: float | None = None
    """Start of the last attempt, in seconds since the epoch."""

    seconds: float | None = None
    exit_code: int | None = None
    place: str | None = None
    """Its placement, if there is one: a rank's node and CPUs, a pod's node."""

    cpu_s: float | None = None
    """User and system time of the step and its children."""

    max_rss_bytes: int | None = None
    devices: tuple[DeviceUse, ...] = ()
    """The GPUs that its last attempt was granted."""

    waits_for: str | None = None
    """What keeps it from starting, where that is known: ``a GPU: GPU 0 is granted to calm-otter-417/train``."""

    origin: str | None = None
    """The run whose outputs were reused (from the cache, or as a spin's input)."""

    cache_note: str | None = None
    """Why a cached step was run: what differs from the outputs in the cache, or why it cannot be cached."""

    failure: Failure | None = None


class StepFile(Record):
    """A file that a step left in its output folder."""

    task: StepName
    name: str
    """Its path below the task's output folder, with ``/``."""

    size_bytes: int
    path: str
    """Where it is, on the machine of the backend."""


class RunRecord(Record):
    """One run of a workflow. A backend may add details of its own."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: RunName
    app: str
    team: str
    workflow: str
    state: RunState
    created: float
    """Seconds since the epoch."""

    seconds: float | None = None
    source: str | None = None
    """The file of its application."""

    error: str | None = None
    tasks: tuple[TaskRecord, ...] = ()
    parents: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """The steps that each step of its workflow depends on. Like ``tasks``, only if a single run was requested."""

    @property
    def folder(self) -> str:
        """The folder of its outputs and logs, if the backend has one; else empty."""
        return str((self.model_extra or {}).get("folder", ""))


class RunStarted(Record):
    """A run was started or resumed. A backend may add details of its own."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Literal["run-started"] = "run-started"
    run: RunName
    steps: int
    kept: int = 0
    """Tasks that finished earlier and are not run again."""

    gone: tuple[StepName, ...] = ()
    """Tasks that finished earlier, but run again, as their outputs are gone."""

    changed: tuple[StepName, ...] = ()
    """Tasks that finished earlier, but run again, as their item or their step's condition is another now."""

    edited: tuple[str, ...] = ()
    """Steps whose outputs are kept although something was changed after they finished, each with what it is."""

    ignored: tuple[str, ...] = ()
    """Fields that this backend ignores, each with its step and the reason."""


class Waiting(Record):
    """A step must wait before it can start."""

    kind: Literal["waiting"] = "waiting"
    run: RunName
    what: str
    why: str = ""


class EnvironmentReady(Record):
    """The environment that steps waited for is ready."""

    kind: Literal["environment-ready"] = "environment-ready"
    run: RunName
    what: str
    seconds: float


class TaskStarted(Record):
    """An attempt of a task started, or was adopted from an earlier driver."""

    kind: Literal["task-started"] = "task-started"
    run: RunName
    task: StepName
    step: str
    width: int
    """The step's number of tasks; 1 without a fan-out."""

    attempt: int
    adopted: bool = False


class TaskEnded(Record):
    kind: Literal["task-ended"] = "task-ended"
    run: RunName
    record: TaskRecord
    width: int
    left: int = 0
    """Tasks of the same step that have not succeeded yet."""

    retry_in_s: float | None = None
    """Not None: it failed and will be retried after this time."""


class RunEnded(Record):
    kind: Literal["run-ended"] = "run-ended"
    run: RunName
    record: RunRecord


Event = RunStarted | Waiting | EnvironmentReady | TaskStarted | TaskEnded | RunEnded
Observer = Callable[[Event], None]
