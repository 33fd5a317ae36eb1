"""The desired state of a service, and the states before it: the document a backend stores for each. Pure.

Each change increments the generation. The definition that served before is stored as the fallback until the change is
in effect, so that a change that fails can be reverted, however many processes were killed on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.backends.service_spec import ServiceSpec
from scanflow.instance_messages import Revision

_KEPT_KEYS: Final = 31


class FailedChange(BaseModel):
    """A change that did not take effect."""

    model_config = ConfigDict(frozen=True)

    generation: int
    reason: str


class DesiredState(BaseModel):
    """One service as stored."""

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
    """The definition that served when the change was requested; None: the change is in effect, or nothing served."""

    previous: ServiceSpec | None = None  # what to roll back to
    previous_if_settled: ServiceSpec | None = None  # what to roll back to once the change is in effect
    failed: FailedChange | None = None  # the last change, if it failed
    deleted: bool = False
    changes: dict[str, int] = Field(default_factory=dict)
    """The generations of the newest changes by their idempotency keys."""

    recorder: tuple[str, ...] = ()
    """The command that uploads recorded predictions to the tracker; none: nothing is recorded."""

    program: tuple[str, ...] = ("-m", "scanflow_serving")
    """The arguments between the interpreter and the folder in the command of its instances."""

    @property
    def address(self) -> str:
        """``host:port`` of HTTP, as clients call it."""
        return f"{self._name_host()}:{self.port}"

    @property
    def grpc_address(self) -> str | None:
        return f"{self._name_host()}:{self.grpc_port}" if self.grpc_port else None

    @property
    def url(self) -> str:
        return f"{'http' if self.definition.tls is None else 'https'}://{self.address}"

    def _name_host(self) -> str:
        tls = self.definition.tls
        return self.host if tls is None else tls.name or self.host

    @property
    def in_effect(self) -> bool:
        """Whether no change is in progress."""
        return self.settled >= self.generation

    @property
    def hopeless(self) -> bool:
        """Whether its first deployment failed, so that there is nothing to serve."""
        return self.failed is not None and self.failed.generation >= self.generation

    def request_definition(self, definition: ServiceSpec, *, replaces: bool) -> Self:
        """Return the state with a definition requested. ``replaces``: the current one becomes the rollback target."""
        served = self.definition if self.in_effect else self.fallback
        previous = served if replaces and served is not None else self.previous_if_settled
        if previous is not None and previous.canary is not None:
            previous = previous.keep_only_revision(previous.current, previous.serves)
        return self.model_copy(
            update={
                "generation": self.generation + 1,
                "definition": definition,
                "fallback": served,
                "previous_if_settled": previous,
                "failed": None,
            }
        )

    def redeploy(self, spec: ServiceSpec) -> Self:
        """Return the state with a new deployment requested; instances stay if they would see no difference."""
        merged = self.definition.merge_unseen_fields(spec)
        return self.request_definition(merged or spec.with_generation(self.generation + 1), replaces=merged is None)

    def describe_dropped_canary(self, after: Self) -> str | None:
        """Return what the deployment ``after`` says of the canary or shadow that it ends; None: it ends none."""
        if (canary := self.definition.canary) is None or after.definition.canary is not None:
            return None
        kind = "shadow" if canary.shadow else "canary"
        return f"the {kind} {canary.id} is removed: a deployment serves what the application says, to all requests"

    def serve_only(self, revision: Revision, *, replaces: bool) -> Self:
        """Return the state with a revision requested that gets all requests."""
        return self.request_definition(
            self.definition.keep_only_revision(revision, self.generation + 1), replaces=replaces
        )

    def with_key(self, key: str | None) -> Self:
        """Return the state with the idempotency key of its generation recorded."""
        if key is None:
            return self
        newest = list(self.changes.items())[-_KEPT_KEYS:]
        return self.model_copy(update={"changes": {**dict(newest), key: self.generation}})

    def get_generation(self, key: str | None) -> int:
        """Return the generation requested with a key; None: the newest."""
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
        failed = FailedChange(generation=self.generation, reason=reason)
        state = self.model_copy(update={"failed": failed, "previous_if_settled": None})
        if self.fallback is None:
            return state
        restored, generation = self.fallback, self.generation + 1
        if restored.revisions != self.definition.revisions:
            # Instances accept newer generations only, and some may have accepted the one that failed.
            restored = restored.with_changes(serves=generation)
        return state.model_copy(update={"generation": generation, "definition": restored})


def make_idempotent(
    key: str | None, make: Callable[[DesiredState | None], DesiredState]
) -> Callable[[DesiredState | None], DesiredState]:
    """Return ``make``, which changes nothing if its change was requested with this key before."""

    def make_once(before: DesiredState | None) -> DesiredState:
        return before if before is not None and key in before.changes else make(before).with_key(key)

    return make_once
