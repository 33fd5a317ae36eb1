"""What is done again and again beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeat_step(step: Callable[[], object], every_s: float) -> Iterator[None]:
    """Do a step all the time, in one thread, until the end of the block. One that raises ends it: catch what may."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            step()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
