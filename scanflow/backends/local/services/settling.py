"""Waiting until a change is in effect, for whoever asked for it: bounded, and telling what happens meanwhile."""

from __future__ import annotations

import time

from scanflow.backends.local.locks import is_held
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.start import ensure_supervisor, poke, start_supervisor
from scanflow.backends.local.services.state import is_current, read_state
from scanflow.backends.local.services.stored import Stored, read_stored
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.errors import NotFoundError, UnavailableError, UsageError

__all__ = ["Watcher", "wait_until_gone", "wait_until_settled", "wait_until_told"]

_POLL_S = 0.03
_START_S = 5.0
_BACK_S = 30.0
"""How long to wait until what served before serves again."""


class Watcher:
    """Tells an observer what a supervisor does, each thing once, from now on."""

    def __init__(self, folder: ServiceFolder, observe: ServiceObserver) -> None:
        self._folder, self._observe = folder, observe
        state = read_state(folder)
        self._seen = state.events[-1].number if state and state.events else 0

    def look(self) -> ServiceRecord | None:
        """Tell what is new; return how the service stands."""
        state = read_state(self._folder)
        for event in state.events if state else ():
            if event.number > self._seen:
                self._seen = event.number
                self._observe(Progress(service=self._folder.path.name, text=event.text))
        return state.record if state else None


def wait_until_settled(folder: ServiceFolder, generation: int, watcher: Watcher, timeout_s: float) -> ServiceRecord:
    """Return the service once a change is in effect, or a newer one is.

    Raises:
        UsageError: it could not be; what served before serves on.
        UnavailableError: it takes too long; it is not given up by that.
        NotFoundError: the service was deleted meanwhile.
    """
    name, give_up = folder.path.name, time.monotonic() + timeout_s
    failed_at: float | None = None
    poke(folder)
    while True:
        stored = read_stored(folder)
        if stored is None or stored.deleted:
            raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
        record = watcher.look()
        if stored.failed is not None and stored.failed.generation >= generation:
            failed_at = failed_at or time.monotonic()
            over = stored.in_effect or (stored.hopeless and not is_held(folder.supervised))
            if over or time.monotonic() - failed_at > _BACK_S:
                watcher.look()
                raise UsageError(_why(stored))
        elif record is not None and min(stored.settled, record.settled) >= generation:
            return record
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The change of {name!r} is not in effect after {timeout_s:.0f} s; it goes on. Watch it: scanflow "
                f"services {name}"
            )
        if not stored.hopeless:
            ensure_supervisor(folder)
        time.sleep(_POLL_S)


def wait_until_told(folder: ServiceFolder, patience_s: float = 10.0) -> None:
    """Return once a supervisor that has just begun has told how things stand, or after a while."""
    give_up = time.monotonic() + patience_s
    while not is_current(folder, read_state(folder)) and time.monotonic() < give_up:
        time.sleep(_POLL_S)


def wait_until_gone(folder: ServiceFolder, watcher: Watcher, timeout_s: float) -> None:
    """Return once nothing of a deleted service runs any more.

    Raises:
        UnavailableError: it takes too long.
    """
    give_up, next_start = time.monotonic() + timeout_s, 0.0
    poke(folder)
    # A supervisor that has ended everything takes its socket away: then, and only then, nothing is left.
    while (watched := is_held(folder.supervised)) or folder.socket.exists():
        watcher.look()
        now = time.monotonic()
        if now > give_up:
            raise UnavailableError(
                f"The service {folder.path.name!r} did not end within {timeout_s:.0f} s. Try again: scanflow delete "
                f"{folder.path.name}"
            )
        if not watched and now >= next_start:
            start_supervisor(folder)  # which ends what there is, and then itself
            next_start = now + _START_S
        time.sleep(_POLL_S)
    watcher.look()


def _why(stored: Stored) -> str:
    assert stored.failed is not None
    reason = stored.failed.reason.rstrip(".")
    if stored.hopeless:
        return f"The service {stored.name!r} could not be deployed: {reason}. Its logs: scanflow logs {stored.name}"
    return f"The change of {stored.name!r} was undone, and what served before serves on: {reason}."
