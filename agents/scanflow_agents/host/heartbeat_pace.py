"""When an agent sends its next heartbeat: as soon as a sensor has fired, but not too often."""

from __future__ import annotations

import asyncio
from contextlib import suppress

WATCHED_S = 0.5
"""The least time between two heartbeats while somebody looks at the agents on the server's pages, in seconds."""

_GATHER_S = 0.05
"""How long a heartbeat waits for sensors that fire together."""


class HeartbeatPace:
    def __init__(self, interval_s: float) -> None:
        """``interval_s``: the least time between two heartbeats while nobody looks, and between two looks whether one
        is due."""
        self._interval_s = interval_s
        self._fired = asyncio.Event()
        self.last = float("-inf")
        """When the last heartbeat was sent, or tried, by the loop's clock."""

        self.is_watched = False

    def note_firing(self) -> None:
        self._fired.set()

    async def wait(self) -> None:
        """Wait until a sensor has fired, or for the interval, and then until another heartbeat may be sent."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._fired.wait(), self._interval_s)
            least_s = min(WATCHED_S, self._interval_s) if self.is_watched else self._interval_s
            left_s = self.last + least_s - asyncio.get_running_loop().time()
            await asyncio.sleep(max(_GATHER_S, left_s))
        self._fired.clear()
