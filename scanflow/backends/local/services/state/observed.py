"""The observed state of a service, written by its supervisor: ``state.json``."""

from __future__ import annotations

from functools import lru_cache

from pydantic import BaseModel, ConfigDict

from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.service_records import Explanation, ServiceRecord
from scanflow.processes.shared_files import is_locked, write_atomically

EVENTS_KEPT = 100


class ServiceEvent(BaseModel):
    model_config = ConfigDict(frozen=True)

    number: int  # consecutive, also across supervisors
    at: float  # seconds since the epoch
    text: str


class ObservedState(BaseModel):
    """The report of a supervisor."""

    model_config = ConfigDict(frozen=True)

    record: ServiceRecord
    events: tuple[ServiceEvent, ...] = ()
    explanation: Explanation | None = None
    by: int = 0  # the process id of the reporting supervisor


def read_observed(folder: ServiceFolder) -> ObservedState | None:
    try:
        return _parse(folder.state.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


@lru_cache(maxsize=64)  # it is read each second, and seldom changes
def _parse(text: bytes) -> ObservedState:
    return ObservedState.model_validate_json(text)


def write_observed(folder: ServiceFolder, state: ObservedState) -> None:
    write_atomically(folder.state, state.model_dump_json().encode())


def is_equal_ignoring_time(first: ObservedState, second: ObservedState) -> bool:
    """Return whether two states differ only in the time of their explanation."""

    def drop_time(state: ObservedState) -> ObservedState:
        if state.explanation is None:
            return state
        return state.model_copy(update={"explanation": state.explanation.model_copy(update={"at": 0.0})})

    return drop_time(first) == drop_time(second)


def is_supervised(folder: ServiceFolder) -> bool:
    """Return whether a supervisor runs, or a shim that restarts it."""
    return is_locked(folder.supervised) or is_locked(folder.shim)


def is_current(folder: ServiceFolder, state: ObservedState | None) -> bool:
    """Return whether the state was reported by the running supervisor."""
    if state is None or not is_locked(folder.supervised):
        return False
    try:
        return folder.supervised.read_text(encoding="ascii") == str(state.by)
    except (OSError, ValueError):
        return False
