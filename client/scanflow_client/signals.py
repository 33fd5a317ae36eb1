"""Handling of the signals that end a command, so that what it started is cleaned up, also in the middle of a start."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def end_on_signals(say: Callable[[str], None], text: str) -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` inside on the first of SIGINT, SIGTERM and SIGHUP, and ignore later ones, so that the
    cleanup is not interrupted. ``text`` is printed at the first signal."""
    caught: list[int] = []

    def end(number: int, _frame: object) -> None:
        caught.append(number)
        if len(caught) == 1:
            say(text)
            raise KeyboardInterrupt

    with _install_handler(end):
        yield


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer these signals until the end of the block: an interrupted ``Popen`` would leave its child running and
    unrecorded."""
    caught: list[int] = []
    with _install_handler(lambda number, _frame: caught.append(number)):
        yield
    for number in caught:
        signal.raise_signal(number)


@contextmanager
def _install_handler(handler: Callable[[int, object], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
