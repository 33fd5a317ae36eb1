"""Runs driven by background threads of this process. A program that exits waits for them."""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from scanflow.backends.run_records import Event, Observer, RunRecord
from scanflow.errors import UnavailableError


class BackgroundRun:
    """A run driven by its own thread. Its events are queued until the run is awaited.

    It is made once the run has told something; what keeps it from being driven at all is raised.
    """

    def __init__(self, drive: Callable[[Observer], RunRecord]) -> None:
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._outcome: Future[RunRecord] = Future()
        self._told = threading.Event()
        threading.Thread(target=self._drive, args=(drive,), name="scanflow-run").start()
        self._told.wait()
        if self._outcome.done() and (error := self._outcome.exception()) is not None:
            raise error
        atexit.register(self._report_failure)  # after the interpreter has waited for the thread

    @property
    def alive(self) -> bool:
        return not self._outcome.done()

    def wait(self, name: str, *, timeout_s: float | None, observe: Observer) -> RunRecord:
        """Wait until the run ends and return it, or raise the error that prevented it from being driven."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                event = self._events.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise build_still_running_error(name, timeout_s) from None
            if event is None:
                self._events.put(None)  # for whoever waits once more
                atexit.unregister(self._report_failure)
                return self._outcome.result()
            observe(event)

    def _report_failure(self) -> None:
        """Print that the run failed: the program ends, and has not waited for it."""
        if self.alive:  # in a fork of the program, which has no such thread, or after Ctrl-C at its end
            return
        if (error := self._outcome.exception()) is not None:
            sys.stderr.write(f"A run that was not waited for could not be driven: {error}\n")
        elif (record := self._outcome.result()).state == "failed":
            name = record.name
            sys.stderr.write(f"The run {name} failed, and was not waited for. See why: scanflow show {name}\n")

    def _drive(self, drive: Callable[[Observer], RunRecord]) -> None:
        def observe(event: Event) -> None:
            self._events.put(event)
            self._told.set()

        try:
            self._outcome.set_result(drive(observe))
        except BaseException as error:  # noqa: BLE001  it is raised where the run is waited for
            self._outcome.set_exception(error)
        self._events.put(None)
        self._told.set()


def build_still_running_error(name: str, timeout_s: float | None) -> UnavailableError:
    """Build the error for a run that still runs after the timeout."""
    return UnavailableError(
        f"The run {name!r} is still running after {timeout_s:g} s. Wait longer, inspect it: scanflow show {name}, or "
        f"stop it: scanflow stop {name}"
    )
