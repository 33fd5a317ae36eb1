"""The failure of a step: the user's own frames and the root cause."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from scanflow.text.tracebacks import MAX_FRAMES, TAIL_BYTES, read_text

__all__ = ["MAX_FRAMES", "TAIL_BYTES", "Failure", "parse_failure"]


class Failure(BaseModel):
    model_config = ConfigDict(frozen=True)

    summary: str
    """``exit 1``, ``timed out after 5 s``, ``killed by signal 9 (SIGKILL)``."""

    frames: tuple[str, ...] = ()
    """The user's own frames, the innermost last: ``train.py:12 in fit: model.fit(x)``."""

    cause: str = ""

    def lines(self) -> list[str]:
        """Return it as lines for a person: at most 8."""
        return [*self.frames, *self.cause.splitlines()]


def parse_failure(text: str, *, summary: str, own_folder: str = "") -> Failure:
    """Parse the failure from a program's standard error: see :func:`scanflow.text.tracebacks.read_text`."""
    text = text.encode(errors="backslashreplace").decode()  # a name of a file that is no UTF-8, which JSON cannot hold
    frames, cause = read_text(text, *([own_folder] if own_folder else []))
    return Failure(summary=summary, frames=frames, cause=cause)
