"""Waiting until a change is in effect, for whoever asked for it: bounded, and reporting what happens meanwhile."""

from __future__ import annotations

import time

from scanflow.backends.local.services.control.start import ensure_supervisor, poke, start_supervisor
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.state.desired import DesiredState, read_desired
from scanflow.backends.local.services.state.observed import is_current, is_supervised, read_observed
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.errors import NotFoundError, UnavailableError, UsageError

_POLL_S = 0.03
_START_S = 5.0
_BACK_S = 30.0  # how long to wait until what served before serves again


class Watcher:
    """Reports to an observer what a supervisor does, each event once, from now on."""

    def __init__(self, folder: ServiceFolder, observe: ServiceObserver) -> None:
        self._folder, self._observe = folder, observe
        state = read_observed(folder)
        self._seen = state.events[-1].number if state and state.events else 0

    def look(self) -> ServiceRecord | None:
        state = read_observed(self._folder)
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
        desired = read_desired(folder)
        if desired is None or desired.deleted:
            raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
        record = watcher.look()
        if desired.failed is not None and desired.failed.generation >= generation:
            failed_at = failed_at or time.monotonic()
            over = desired.in_effect or (desired.hopeless and not is_supervised(folder))
            if over or time.monotonic() - failed_at > _BACK_S:
                watcher.look()
                raise UsageError(_why(desired))
        elif record is not None and min(desired.settled, record.settled) >= generation:
            return record
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The change of {name!r} is not in effect after {timeout_s:.0f} s; it goes on. Watch it: scanflow "
                f"services {name}"
            )
        if not desired.hopeless:
            ensure_supervisor(folder)
        time.sleep(_POLL_S)


def wait_until_reported(folder: ServiceFolder, patience_s: float = 10.0) -> None:
    """Return once a supervisor that has just begun has reported, or after ``patience_s``."""
    give_up = time.monotonic() + patience_s
    while not is_current(folder, read_observed(folder)) and time.monotonic() < give_up:
        time.sleep(_POLL_S)


def wait_until_gone(folder: ServiceFolder, watcher: Watcher, timeout_s: float) -> None:
    """Return once nothing of a deleted service runs any more.

    Raises:
        UnavailableError: it takes too long.
    """
    give_up, next_start = time.monotonic() + timeout_s, 0.0
    poke(folder)
    # A supervisor that has ended everything takes its socket away: then, and only then, nothing is left.
    while (watched := is_supervised(folder)) or folder.socket.exists():
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


def _why(desired: DesiredState) -> str:
    assert desired.failed is not None
    reason = desired.failed.reason.rstrip(".")
    if desired.hopeless:
        return f"The service {desired.name!r} could not be deployed: {reason}. Its logs: scanflow logs {desired.name}"
    return f"The change of {desired.name!r} was undone, and what served before serves on: {reason}."
