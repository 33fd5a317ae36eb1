"""How a task's process ended, as the program in its pod tells it through an output parameter."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.failures import Failure

LARGEST_CAUSE = 2_000
"""Characters of a cause: the engine keeps all reports of a run in one object."""


class TaskReport(BaseModel):
    """What a pod's program knows of its task. The engine knows the rest: that a pod was lost, or never started."""

    model_config = ConfigDict(frozen=True)

    began: float | None = None
    seconds: float | None = None
    exit_code: int | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    origin: str | None = None
    stopped: bool = False
    failure: Failure | None = None

    def text(self) -> str:
        """Return it as short JSON."""
        failure = self.failure
        if failure is not None:
            cause = failure.cause[-LARGEST_CAUSE:]
            failure = failure.model_copy(update={"cause": cause, "frames": failure.frames[-5:]})
        return self.model_copy(update={"failure": failure}).model_dump_json(exclude_defaults=True)


def read_report(text: str) -> TaskReport | None:
    """Return what a program told; None: it told nothing, or something else."""
    try:
        return TaskReport.model_validate_json(text) if text else None
    except ValidationError:
        return None
