"""Notify threads and coroutines of changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from scanflow_server.stream_limits import compute_next_tick


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
        with self._watch(since) as changed:
            timer = asyncio.get_running_loop().call_later(timeout_s, changed.set)  # cheaper than a timeout's exception
            try:
                await changed.wait()
            finally:
                timer.cancel()

    async def wait_or_look(
        self, since: int, read: Callable[[], Hashable], value: Hashable, *, every_s: float, timeout_s: float
    ) -> None:
        """Wait for a change, or until ``read()`` is another value, of which nobody notifies.

        A timer reads it, and resumes the coroutine only then: that costs a third as much.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle
        with self._watch(since) as changed:

            def look() -> None:
                nonlocal timer
                if read() != value:
                    changed.set()
                else:
                    timer = loop.call_at(compute_next_tick(every_s), look)

            end = loop.call_later(timeout_s, changed.set)  # also where a look fails, as the next one does then
            timer = loop.call_at(compute_next_tick(every_s), look)
            try:
                await changed.wait()
            finally:
                end.cancel()
                timer.cancel()

    @contextmanager
    def _watch(self, since: int) -> Iterator[asyncio.Event]:
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
