"""A bell: whoever changes something rings it, and whoever waits for news, in a thread or a coroutine, looks again."""

from __future__ import annotations

import asyncio
import threading

__all__ = ["Bell"]


class Bell:
    """Counts how often it rang, so that nobody sleeps through a ring between two looks."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rang = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def rang(self) -> int:
        """How often it rang so far: take it before a look, and hand it to the wait after it."""
        return self._rang

    def ring(self) -> None:
        """Wake all who wait. May be called from any thread."""
        with self._condition:
            self._rang += 1
            self._condition.notify_all()
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def wait(self, since: int, timeout_s: float) -> None:
        """Return when it has rung since it had rung ``since`` times, at the latest after the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: self._rang != since, timeout_s)

    async def heard(self, since: int, timeout_s: float) -> None:
        """Do the same as :meth:`wait`, in a coroutine."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._condition:
            if self._rang != since:
                return
            self._waiting.add(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await entry[1].wait()
        except TimeoutError:
            pass
        finally:
            with self._condition:
                self._waiting.discard(entry)
