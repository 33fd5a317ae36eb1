"""Environments of applications, where a place has them apart from runs: what is said of them, and who keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from scanflow.app.application import Application

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field before and after; None: it is not there."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path} = {_short(self.after)}"
        if self.after is None:
            return f"- {self.path} = {_short(self.before)}"
        return f"~ {self.path}: {_short(self.before)} -> {_short(self.after)}"


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """What would become of one object of a place."""

    kind: str
    name: str
    namespace: str | None
    change: Literal["create", "change", "none", "conflict", "refused"]
    fields: tuple[FieldChange, ...] = ()
    """What changes in an object that is there."""

    why: str = ""
    """Of a conflict or a refusal."""


@dataclass(frozen=True, slots=True)
class EnsuredEnvironment:
    """An environment that is there."""

    namespace: str
    tracker_uri: str | None
    """Where what runs in it logs. None: wherever MLflow itself would."""

    changed: tuple[str, ...] = ()
    """What was made or put right: ``Role scanflow-step: made``."""

    kept: tuple[str, ...] = ()
    """What differs from its description, since somebody else set it: it is left, and named with who it was."""

    uid: str = ""
    """What tells it from one of that name that was there before: what was made in that went with it."""


@dataclass(frozen=True, slots=True)
class EnvironmentDeletion:
    """What became of an environment."""

    namespace: str
    namespace_removed: bool
    removed: tuple[str, ...]
    """What scanflow had made there: ``Role scanflow-step``."""

    left: tuple[str, ...]
    """What is there still: data that is kept, and what others made."""


class EnvironmentBackend(Protocol):
    """Keeps environments. Runs, services and agents make theirs themselves; this is for who wants it before."""

    def ensure(self, app: Application, *, force: bool = False) -> EnsuredEnvironment:
        """Make an application's environment, or bring it to what is described now. Safe to repeat.

        Args:
            app: The application.
            force: Set back what others changed, too.

        Raises:
            UsageError: it is another application's, or somebody's change is at odds with a new description.
        """
        ...

    def plan(self, app: Application) -> list[ObjectChange]:
        """Return what ``ensure`` would change, in the order in which it would. Changes nothing."""
        ...

    def delete(self, app: Application) -> EnvironmentDeletion:
        """Remove what scanflow made for an application, its runs and services with it, and nothing else.

        Raises:
            UnavailableError: it is not gone in time.
        """
        ...


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
