"""What is wanted of a service, as kept in its folder: ``service.json``, replaced as a whole under a lock.

Each change counts the generation up. What served before a change is kept beside it until the change is in effect, so
that whoever finds that it cannot be has something to go back to, however many processes were killed on the way.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from scanflow.backends.local.locks import try_lock
from scanflow.backends.local.services.definition import Definition
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.errors import InternalError, UnavailableError

__all__ = ["Failed", "Stored", "change", "held", "read_stored", "write_atomically"]

PATIENCE_S = 10.0
_POLL_S = 0.01


class Failed(BaseModel):
    """A change that did not come into effect."""

    model_config = ConfigDict(frozen=True)

    generation: int
    reason: str


class Stored(BaseModel):
    """One service as its folder keeps it."""

    model_config = ConfigDict(frozen=True)

    name: str
    host: str = "127.0.0.1"
    port: int
    grpc_port: int | None = None
    created: float
    generation: int = 1
    settled: int = 0
    """The newest generation that is wholly in effect."""

    definition: Definition
    """What is wanted now."""

    fallback: Definition | None = None
    """What served when the change was asked for; None once it is in effect, and before anything was."""

    previous: Definition | None = None
    """What to roll back to."""

    previous_if_settled: Definition | None = None
    """What to roll back to once the change is in effect."""

    failed: Failed | None = None
    """The last change, where it could not be."""

    deleted: bool = False
    recorder: tuple[str, ...] = ()
    """The command that takes recorded predictions to the tracker; none: nothing is recorded."""

    program: tuple[str, ...] = ("-m", "scanflow_serving")
    """What its instances run, with their interpreter and their folder around it."""

    @property
    def in_effect(self) -> bool:
        """Whether there is no change on its way."""
        return self.settled >= self.generation

    @property
    def hopeless(self) -> bool:
        """Whether its first deployment failed, so that there is nothing to serve."""
        return self.failed is not None and self.failed.generation >= self.generation

    def asked(self, definition: Definition, *, replaces: bool) -> Self:
        """Return it with a change asked for. ``replaces``: what is there now becomes what to roll back to."""
        served = self.definition if self.in_effect else self.fallback
        previous = served if replaces and served is not None else self.previous_if_settled
        return self.model_copy(
            update={
                "generation": self.generation + 1,
                "definition": definition,
                "fallback": served,
                "previous_if_settled": None if previous is None else _without_trial(previous),
                "failed": None,
            }
        )

    def settle(self) -> Self:
        """Return it with the change in effect."""
        return self.model_copy(
            update={
                "settled": self.generation,
                "fallback": None,
                "previous": self.previous_if_settled or self.previous,
                "previous_if_settled": None,
            }
        )

    def give_up(self, reason: str) -> Self:
        """Return it with the change undone; where nothing served before, it only says why."""
        failed = Failed(generation=self.generation, reason=reason)
        if self.fallback is None:
            return self.model_copy(update={"failed": failed, "previous_if_settled": None})
        back, generation = self.fallback, self.generation + 1
        if back.revisions != self.definition.revisions:
            # Instances take a newer generation only, and some may have taken the one that is given up.
            back = back.changed(serves=generation)
        return self.model_copy(
            update={"generation": generation, "definition": back, "previous_if_settled": None, "failed": failed}
        )


def _without_trial(definition: Definition) -> Definition:
    return definition.settled_on(definition.current, definition.serves) if definition.trial else definition


def read_stored(folder: ServiceFolder) -> Stored | None:
    """Return what is wanted; None where there is no such service."""
    try:
        return Stored.model_validate_json(folder.stored.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InternalError(f"{str(folder.stored)!r} cannot be read: {error}") from error


def change(folder: ServiceFolder, make: Callable[[Stored | None], Stored | None]) -> Stored | None:
    """Replace what is wanted by what ``make`` returns for it; None from it: leave it. Returns what it then is.

    Raises:
        UnavailableError: another process holds the lock for too long, or the disk cannot be written.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with held(folder.lock):
        before = read_stored(folder)
        after = make(before)
        if after is None:
            return before
        write_atomically(folder.stored, after.model_dump_json(indent=1).encode(), safely=True)
        return after


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock while inside.

    Raises:
        UnavailableError: another process holds it for too long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + PATIENCE_S
    with path.open("a") as file:
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise UnavailableError(f"{str(path)!r} is locked by another process. Try again.")
            time.sleep(_POLL_S)
        yield


def write_atomically(path: Path, content: bytes, *, safely: bool = False) -> None:
    """Replace a file: readers see the old or the new one. ``safely``: also after a power cut."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            if safely:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise UnavailableError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
