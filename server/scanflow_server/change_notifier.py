"""Notify threads and coroutines of changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
        with self.watch(since) as changed:
            timer = asyncio.get_running_loop().call_later(timeout_s, changed.set)  # cheaper than a timeout's exception
            try:
                await changed.wait()
            finally:
                timer.cancel()

    @contextmanager
    def watch(self, since: int) -> Iterator[asyncio.Event]:
        """Yield an event of the running loop that the next change sets; it is set already if there was one."""
        _, changed = entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._condition:
            if self._changes == since:
                self._waiting.add(entry)
            else:
                changed.set()
        try:
            yield changed
        finally:
            with self._condition:
                self._waiting.discard(entry)
