"""The loop that lets controllers look, each in a thread of its own, until the server ends; errors end nothing."""

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
"""After a look at a change: however many there are, others have a turn."""

LOOK_S = 0.2
"""Until a controller looks again at what goes on."""

FAILED_S = 1.0
"""Until a controller looks again that failed."""

IDLE_S = 30.0
"""Until a controller looks again where nothing goes on: what the server is asked for wakes it before."""

OUTSIDE_S = 10.0
"""The same of what others do without the server: nobody wakes it."""


class ErrorIsolation:
    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Look inside at ``what``, which begins a line of the log. What is raised there ends nothing else, and is told
        once, until it is something else or all went well in between."""
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001  the edge of a loop that has to go on
            # What we raise on purpose says all that is to be known, and may pass; all else may be a defect.
            known = isinstance(error, ScanflowError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            if self._told.get(what) != text:
                level = logging.WARNING if known else logging.ERROR
                _log.log(level, "%s is looked at again later: %s", what, text, exc_info=None if known else error)
            self._told[what] = text
        else:
            self._told.pop(what, None)


class Controller(Protocol):
    def tick(self) -> float:
        """Look, and return after how many seconds to look again where nothing wakes it before."""
        ...


class Loop:
    def __init__(self, controllers: Sequence[Controller], notifier: ChangeNotifier) -> None:
        self._controllers, self._notifier = controllers, notifier
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for one in self._controllers:
            thread = threading.Thread(target=self._look, args=(one,), name=type(one).__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 5.0) -> None:
        self._over.set()
        self._notifier.notify()
        for thread in self._threads:
            thread.join(timeout_s)

    def _look(self, controller: Controller) -> None:
        isolation, name, woken = ErrorIsolation(), type(controller).__name__, False
        while not self._over.is_set():
            since, pause_s = self._notifier.changes, FAILED_S
            with isolation.of(f"What the {name} does"):  # what does not answer now may answer at the next look
                pause_s = controller.tick()
            if woken:
                self._over.wait(_BREATH_S)
            self._notifier.wait(since, pause_s)
            woken = self._notifier.changes != since
