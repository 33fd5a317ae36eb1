"""How a service stands, as its supervisor saw it last: ``state.json``, for commands to read."""

from __future__ import annotations

from functools import lru_cache

from pydantic import BaseModel, ConfigDict

from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.service_records import Explanation, ServiceRecord
from scanflow.processes.files import is_locked, write_atomically

EVENTS_KEPT = 100


class ServiceEvent(BaseModel):
    model_config = ConfigDict(frozen=True)

    number: int  # counts up, also over supervisors
    at: float  # seconds since the epoch
    text: str


class ObservedState(BaseModel):
    """All that a supervisor reports."""

    model_config = ConfigDict(frozen=True)

    record: ServiceRecord
    events: tuple[ServiceEvent, ...] = ()
    explanation: Explanation | None = None
    by: int = 0  # the process id of the supervisor that saw it so


def read_observed(folder: ServiceFolder) -> ObservedState | None:
    try:
        return _parsed(folder.state.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


@lru_cache(maxsize=64)  # it is read each second, and seldom changes
def _parsed(text: bytes) -> ObservedState:
    return ObservedState.model_validate_json(text)


def write_observed(folder: ServiceFolder, state: ObservedState) -> None:
    write_atomically(folder.state, state.model_dump_json().encode())


def tell_the_same(one: ObservedState, other: ObservedState) -> bool:
    """Say whether nothing but time has passed between two."""

    def timeless(state: ObservedState) -> ObservedState:
        if state.explanation is None:
            return state
        return state.model_copy(update={"explanation": state.explanation.model_copy(update={"at": 0.0})})

    return timeless(one) == timeless(other)


def is_supervised(folder: ServiceFolder) -> bool:
    """Say whether a supervisor lives, or a shim that starts it again."""
    return is_locked(folder.supervised) or is_locked(folder.shim)


def is_current(folder: ServiceFolder, state: ObservedState | None) -> bool:
    """Say whether this was reported by the supervisor that lives."""
    if state is None or not is_locked(folder.supervised):
        return False
    try:
        return folder.supervised.read_text(encoding="ascii") == str(state.by)
    except (OSError, ValueError):
        return False
