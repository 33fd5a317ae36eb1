"""How a service stands, as its supervisor saw it last: ``state.json``, for commands to read."""

from __future__ import annotations

from collections import deque

from pydantic import BaseModel, ConfigDict

from scanflow.backends.local.locks import is_held
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.stored import write_atomically
from scanflow.backends.service_records import Explanation, ServiceRecord

__all__ = ["Event", "News", "State", "is_current", "read_state", "write_state"]

KEPT = 100


class Event(BaseModel):
    """Something that happened."""

    model_config = ConfigDict(frozen=True)

    number: int
    """Counts up, also over supervisors."""

    at: float
    """Seconds since the epoch."""

    text: str


class State(BaseModel):
    """All that a supervisor tells."""

    model_config = ConfigDict(frozen=True)

    record: ServiceRecord
    events: tuple[Event, ...] = ()
    explanation: Explanation | None = None
    by: int = 0
    """The process id of the supervisor that saw it so."""


class News:
    """What happened lately, numbered."""

    def __init__(self, before: State | None) -> None:
        kept = before.events if before else ()
        self.events: deque[Event] = deque(kept, maxlen=KEPT)
        self._number = kept[-1].number if kept else 0

    def add(self, text: str, wall: float) -> None:
        """Note that something happened."""
        self._number += 1
        self.events.append(Event(number=self._number, at=wall, text=text))


def read_state(folder: ServiceFolder) -> State | None:
    """Return what was told last; None: nothing yet."""
    try:
        return State.model_validate_json(folder.state.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_state(folder: ServiceFolder, state: State) -> None:
    """Replace what was told."""
    write_atomically(folder.state, state.model_dump_json().encode())


def is_current(folder: ServiceFolder, state: State | None) -> bool:
    """Say whether this was told by a supervisor that lives."""
    if state is None or not is_held(folder.supervised):
        return False
    try:
        return folder.supervised.read_text(encoding="ascii") == str(state.by)
    except (FileNotFoundError, ValueError):
        return False
