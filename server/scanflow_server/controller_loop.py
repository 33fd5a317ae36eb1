"""The loop that runs each controller in a thread of its own until the server ends; errors do not end it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from scanflow.errors import ScanflowError
from scanflow_server.change_notifier import ChangeNotifier

_log = logging.getLogger(__name__)

_BREATH_S = 0.01
"""The pause after a tick that a change triggered, in seconds, so that a burst of changes does not starve others."""

POLL_S = 0.2
"""The pause until the next tick while something is in progress, in seconds."""

RETRY_PAUSE_S = 1.0
"""The pause until the next tick after a failed one, in seconds."""

IDLE_S = 30.0
"""The pause until the next tick while nothing is in progress, in seconds: requests to the server wake it earlier."""

EXTERNAL_POLL_S = 10.0
"""The same for changes made outside the server, which do not wake it."""


class ErrorIsolation:
    def __init__(self) -> None:
        self._reported: dict[str, str] = {}

    @contextmanager
    def isolate(self, what: str) -> Iterator[None]:
        """Catch and log the errors raised inside. ``what`` begins the log line. An error is logged once, until another
        is raised or the block succeeds."""
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001  the edge of a loop that must go on
            # Our own errors are self-explanatory and may be transient; all others may be defects.
            is_expected = isinstance(error, ScanflowError)
            text = str(error) if is_expected else f"{type(error).__name__}: {error}"
            if self._reported.get(what) != text:
                level = logging.WARNING if is_expected else logging.ERROR
                _log.log(
                    level,
                    "%s could not be processed and will be retried: %s",
                    what,
                    text,
                    exc_info=None if is_expected else error,
                )
            self._reported[what] = text
        else:
            self._reported.pop(what, None)


class Controller(Protocol):
    def tick(self) -> float:
        """Do what is due, and return the seconds until the next tick, unless a change comes before."""
        ...


class Loop:
    def __init__(self, controllers: Sequence[Controller], notifier: ChangeNotifier) -> None:
        self._controllers, self._notifier = controllers, notifier
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for controller in self._controllers:
            thread = threading.Thread(target=self._run, args=(controller,), name=type(controller).__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 5.0) -> None:
        self._over.set()
        self._notifier.notify()
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self, controller: Controller) -> None:
        isolation, name, woken = ErrorIsolation(), type(controller).__name__, False
        while not self._over.is_set():
            since, pause_s = self._notifier.changes, RETRY_PAUSE_S
            with isolation.isolate(f"The tick of the {name}"):  # an outage may have passed at the next tick
                pause_s = controller.tick()
            if woken:
                self._over.wait(_BREATH_S)
            self._notifier.wait(since, pause_s)
            woken = self._notifier.changes != since
