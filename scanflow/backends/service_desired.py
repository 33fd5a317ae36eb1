"""What is wanted of a service, and what it came from: the document that a backend keeps of each. Pure.

Each change counts the generation up. What served before a change is kept beside it until the change is in effect, so
that whoever finds that it cannot be has something to go back to, however many processes were killed on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.backends.service_spec import ServiceSpec
from scanflow.wire import Revision

_KEPT_KEYS: Final = 31


class Failed(BaseModel):
    """A change that did not come into effect."""

    model_config = ConfigDict(frozen=True)

    generation: int
    reason: str


class DesiredState(BaseModel):
    """One service as its folder keeps it."""

    model_config = ConfigDict(frozen=True)

    name: str
    host: str = "127.0.0.1"
    port: int
    grpc_port: int | None = None
    created: float
    generation: int = 1
    settled: int = 0  # the newest generation that is wholly in effect
    definition: ServiceSpec
    fallback: ServiceSpec | None = None
    """What served when the change was asked for; None once it is in effect, and before anything was."""

    previous: ServiceSpec | None = None  # what to roll back to
    previous_if_settled: ServiceSpec | None = None  # what to roll back to once the change is in effect
    failed: Failed | None = None  # the last change, where it could not be
    deleted: bool = False
    changes: dict[str, int] = Field(default_factory=dict)
    """The generations of the newest changes that were asked for with a key."""

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

    def requested(self, definition: ServiceSpec, *, replaces: bool) -> Self:
        """Return it with a change asked for. ``replaces``: what is there now becomes what to roll back to."""
        served = self.definition if self.in_effect else self.fallback
        previous = served if replaces and served is not None else self.previous_if_settled
        if previous is not None and previous.canary is not None:
            previous = previous.settled_on(previous.current, previous.serves)
        return self.model_copy(
            update={
                "generation": self.generation + 1,
                "definition": definition,
                "fallback": served,
                "previous_if_settled": previous,
                "failed": None,
            }
        )

    def redeployed(self, made: ServiceSpec) -> Self:
        """Return it with another definition asked for; instances stay where they would see no difference."""
        kept = self.definition.with_unseen_of(made)
        return self.requested(kept or made.numbered(self.generation + 1), replaces=kept is None)

    def serving_only(self, revision: Revision, *, replaces: bool) -> Self:
        """Return it with a revision asked for that gets all requests."""
        return self.requested(self.definition.settled_on(revision, self.generation + 1), replaces=replaces)

    def with_key(self, key: str | None) -> Self:
        """Return it with the key noted under which its generation was asked for."""
        if key is None:
            return self
        kept = list(self.changes.items())[-_KEPT_KEYS:]
        return self.model_copy(update={"changes": {**dict(kept), key: self.generation}})

    def wanted_with(self, key: str | None) -> int:
        """Return the generation that was asked for with a key; None: the newest."""
        return self.generation if key is None else self.changes[key]

    def settle(self) -> Self:
        return self.model_copy(
            update={
                "settled": self.generation,
                "fallback": None,
                "previous": self.previous_if_settled or self.previous,
                "previous_if_settled": None,
            }
        )

    def give_up(self, reason: str) -> Self:
        failed = Failed(generation=self.generation, reason=reason)
        undone = self.model_copy(update={"failed": failed, "previous_if_settled": None})
        if self.fallback is None:
            return undone
        back, generation = self.fallback, self.generation + 1
        if back.revisions != self.definition.revisions:
            # Instances take a newer generation only, and some may have taken the one that is given up.
            back = back.changed(serves=generation)
        return undone.model_copy(update={"generation": generation, "definition": back})


def once(
    key: str | None, make: Callable[[DesiredState | None], DesiredState]
) -> Callable[[DesiredState | None], DesiredState]:
    """Return ``make``, which does nothing where its change was asked for with this key before."""

    def made_once(found: DesiredState | None) -> DesiredState:
        return found if found is not None and key in found.changes else make(found).with_key(key)

    return made_once
