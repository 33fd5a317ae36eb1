"""What was done or seen this moment, and need not be again."""

from __future__ import annotations

import time
from collections.abc import Callable


class Recently:
    """Remembers names for some seconds. Threads may share it."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._noted: dict[str, float] = {}

    def note(self, name: str) -> None:
        now = self._clock()
        self._noted = {one: at for one, at in self._noted.items() if now - at < self._seconds} | {name: now}

    def __contains__(self, name: str) -> bool:
        at = self._noted.get(name)
        return at is not None and self._clock() - at < self._seconds
