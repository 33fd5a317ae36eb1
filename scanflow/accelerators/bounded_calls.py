"""Calls of a library that may hang, as one of a driver does whose device is broken: made in a thread, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

_T = TypeVar("_T")


class BoundedCalls(Generic[_T]):
    """Calls functions one at a time, and waits for each no longer than a bound.

    While one hangs, no other begins and nobody waits. When it returns at last, its result is dropped, and calls are
    made again. A thread that hangs does not keep the interpreter from ending.
    """

    def __init__(self, *, first_s: float, later_s: float) -> None:
        """``first_s``: the bound until one has returned; ``later_s``: after that."""
        self._lock = threading.Lock()
        self._bound_s, self._later_s = first_s, later_s
        self._hanging: Future[_T] | None = None

    def call(self, function: Callable[[], _T]) -> _T:
        """Return what the function returns, or raise what it raises.

        Raises:
            HangingError: it does not return, or one before it has not yet.
        """
        with self._lock:
            if self._hanging is not None and not self._hanging.done():
                raise HangingError(self._bound_s)
            future = self._hanging = Future[_T]()
            threading.Thread(target=_fill, args=(future, function), daemon=True).start()
            try:
                future.exception(self._bound_s)
            except TimeoutError as error:
                raise HangingError(self._bound_s) from error
            self._bound_s = self._later_s
            return future.result()


class HangingError(Exception):
    """A call does not return."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"no answer for {waited_s:g} s")
        self.waited_s = waited_s


def _fill(future: Future[_T], function: Callable[[], _T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
        future.set_exception(error)
