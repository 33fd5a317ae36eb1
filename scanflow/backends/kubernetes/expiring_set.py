"""A set of names whose entries expire."""

from __future__ import annotations

import time
from collections.abc import Callable


class ExpiringSet:
    """Names that expire after some seconds. Threads may share it."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._noted: dict[str, float] = {}

    def add(self, name: str) -> None:
        now = self._clock()
        recent = {noted: noted_at for noted, noted_at in self._noted.items() if now - noted_at < self._seconds}
        self._noted = recent | {name: now}

    def __contains__(self, name: str) -> bool:
        noted_at = self._noted.get(name)
        return noted_at is not None and self._clock() - noted_at < self._seconds
