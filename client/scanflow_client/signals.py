"""Signals that end a command: what was started is ended, also where one comes in the middle of a start."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_end_it(say: Callable[[str], None], text: str) -> Iterator[None]:
    """Have what is done inside end on SIGTERM and on a closed terminal as on Ctrl-C, and once only: what was started is
    ended then, whatever comes meanwhile. ``text`` is said at the first."""
    caught: list[int] = []

    def end(number: int, _frame: object) -> None:
        caught.append(number)
        if len(caught) == 1:
            say(text)
            raise KeyboardInterrupt

    with _handled_by(end):
        yield


@contextmanager
def signals_wait() -> Iterator[None]:
    """Put such a signal off until what is done inside is done. A process that is started is then known to whoever ends
    it: ``Popen`` that is interrupted leaves its child running and unknown."""
    caught: list[int] = []
    with _handled_by(lambda number, _frame: caught.append(number)):
        yield
    for number in caught:
        signal.raise_signal(number)


@contextmanager
def _handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    before = {one: signal.signal(one, handler) for one in _ENDING}
    try:
        yield
    finally:
        for one, former in before.items():
            signal.signal(one, former)
