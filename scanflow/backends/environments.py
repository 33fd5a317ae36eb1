"""The port for backends with environments of applications, separate from their runs, and its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from scanflow.app.application import Application

_MAX_LENGTH = 120


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field before and after; None: it is absent."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path} = {_shorten(self.after)}"
        if self.after is None:
            return f"- {self.path} = {_shorten(self.before)}"
        return f"~ {self.path}: {_shorten(self.before)} -> {_shorten(self.after)}"


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """The planned change of one object."""

    kind: str
    name: str
    namespace: str | None
    change: Literal["create", "change", "none", "conflict", "refused"]
    fields: tuple[FieldChange, ...] = ()
    """The changes of an existing object."""

    why: str = ""
    """The reason for a conflict or refusal."""


@dataclass(frozen=True, slots=True)
class EnsuredEnvironment:
    """An environment that exists."""

    namespace: str
    tracker_uri: str | None
    """The tracker of its runs. None: MLflow's default."""

    changed: tuple[str, ...] = ()
    """The objects created or repaired: ``Role scanflow-step: created``."""

    kept: tuple[str, ...] = ()
    """The fields that another manager set and that are left as they are, with that manager."""

    uid: str = ""
    """Distinguishes it from an earlier environment of that name, whose objects were deleted with it."""


@dataclass(frozen=True, slots=True)
class EnvironmentDeletion:
    """The result of deleting an environment."""

    namespace: str
    namespace_removed: bool
    removed: tuple[str, ...]
    """The objects scanflow had created: ``Role scanflow-step``."""

    left: tuple[str, ...]
    """What remains: data volumes, outputs in an object store, and what others created."""


class EnvironmentBackend(Protocol):
    """Manages environments explicitly; runs, services and agents create theirs on demand."""

    def read_tracker_token(self, app: Application) -> str | None:
        """Return the token with which an environment's pods use its tracker; None: they need none."""
        ...

    def ensure(self, app: Application, *, force: bool = False) -> EnsuredEnvironment:
        """Create or update an application's environment. Idempotent.

        Args:
            app: The application.
            force: Overwrite changes of others, too.

        Raises:
            UsageError: it is another application's, or a change of others conflicts with the new description.
        """
        ...

    def plan(self, app: Application) -> list[ObjectChange]:
        """Return the changes ``ensure`` would make, in order. Changes nothing."""
        ...

    def delete(self, app: Application, *, tell: Callable[[str], object] | None = None) -> EnvironmentDeletion:
        """Delete everything scanflow created for an application, its runs and services included, and nothing else.

        ``tell`` gets a sentence for what takes longer, and why.

        Raises:
            UnavailableError: it was not deleted in time.
        """
        ...


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
