"""Notify threads and coroutines of changes."""

from __future__ import annotations

import asyncio
import threading


class ChangeNotifier:
    """Counts changes, so that a waiter misses none between its check and its wait."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._changes = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def changes(self) -> int:
        """The number of changes so far: read it before a check, and pass it to the wait after that."""
        return self._changes

    def notify(self) -> None:
        with self._condition:
            self._changes += 1
            self._condition.notify_all()
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def wait(self, since: int, timeout_s: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._changes != since, timeout_s)

    async def wait_async(self, since: int, timeout_s: float) -> None:
        await self.wait_until(since, asyncio.get_running_loop().time() + timeout_s)

    async def wait_until(self, since: int, deadline: float) -> None:
        """Wait for a change, until a time of the event loop's clock."""
        loop, event = entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._condition:
            if self._changes != since:
                return
            self._waiting.add(entry)
        timer = loop.call_at(deadline, event.set)  # cheaper than a timeout, which ends by an exception
        try:
            await event.wait()
        finally:
            timer.cancel()
            with self._condition:
                self._waiting.discard(entry)
