"""What is worth saying of a failed step: the user's own frames and the root cause, read from what it wrote."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from scanflow.tracebacks import MAX_FRAMES, read_text

__all__ = ["MAX_FRAMES", "Failure", "failure_from_text"]


class Failure(BaseModel):
    """Why a task failed, short enough to be read at once."""

    model_config = ConfigDict(frozen=True)

    summary: str
    """One line: ``exit 1``, ``timed out after 5 s``, ``ended by signal 9 (SIGKILL)``."""

    frames: tuple[str, ...] = ()
    """The user's own frames, the innermost last: ``train.py:12 in fit: model.fit(x)``."""

    cause: str = ""
    """The exception's own words, or the last thing the program said."""

    def lines(self) -> list[str]:
        """Return it as lines for a person: at most 8."""
        return [*self.frames, *self.cause.splitlines()]


def failure_from_text(text: str, *, summary: str, own_folder: str = "") -> Failure:
    """Return the failure that a program's standard error tells of.

    The innermost of chained exceptions is the root cause. Frames of installed packages, of the standard library and of
    scanflow's own runner are left out. Text without a traceback gives its last lines.
    """
    frames, cause = read_text(text, *([own_folder] if own_folder else []))
    return Failure(summary=summary, frames=frames, cause=cause)
