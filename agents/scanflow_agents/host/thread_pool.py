"""A thread pool for plain functions, which replaces threads that hang.

Results are passed to the loop in groups: it is woken once for all functions that end while it is busy.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from scanflow.errors import UnavailableError


class _Job:
    __slots__ = ("abandoned", "begun", "context", "ended", "finished", "function", "future", "given_up")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] = loop.create_future()
        self.ended: asyncio.Future[None] | None = None
        self.begun = False
        self.finished = False
        self.given_up = False
        self.abandoned = False


class ThreadPool:
    """A bounded pool. An abandoned function keeps its thread until it ends, and another thread replaces it.

    The threads are daemons: the program's exit does not wait for them.
    """

    def __init__(self, count: int = 8, *, most_abandoned: int = 32) -> None:
        """``most_abandoned``: how many threads may hang before no more functions are started."""
        self._count, self._most_abandoned = count, most_abandoned
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[tuple[_Job, Any, BaseException | None]] = deque()
        self._lock = threading.Lock()
        self._woken = False
        self._started = 0
        self.abandoned = 0
        """The number of threads that hang in abandoned functions."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in a thread, with the contextvars of the caller, and return its result.

        Cancelled before the function ends, it returns only when the function has, so that a running function is not
        started again. Cancelled once more, it returns at once."""
        if self.abandoned >= self._most_abandoned:
            raise UnavailableError(
                f"{self.abandoned} functions of this agent hang, so no more are started. Add a timeout to what they "
                "wait for, such as a request; then restart the agent."
            )
        loop = asyncio.get_running_loop()
        job = _Job(function, loop)
        self._submit(job, loop)
        try:
            return await job.future
        except asyncio.CancelledError:
            await self._give_up(job, loop)
            raise

    def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)

    def _submit(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        if self._started < self._count:
            self._start(loop)
        self._jobs.put(job)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._started += 1
        threading.Thread(target=self._run_jobs, args=(loop,), name="scanflow-agent-worker", daemon=True).start()

    async def _give_up(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            job.given_up = True
            if not job.begun or job.finished:
                return
            job.abandoned = True
            job.ended = loop.create_future()
        self.abandoned += 1
        if self._started - self.abandoned < self._count:
            self._start(loop)
        await job.ended

    def _run_jobs(self, loop: asyncio.AbstractEventLoop) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                if job.given_up:
                    continue
                job.begun = True
            try:
                result, error = job.context.run(job.function), None
            except BaseException as raised:  # noqa: BLE001 - any error is raised by the awaiting call
                result, error = None, raised
            with self._lock:
                job.finished = True
                self._done.append((job, result, error))
                wake, self._woken = not self._woken, True
                ends = job.abandoned
            if wake:
                try:
                    loop.call_soon_threadsafe(self._resolve_futures)
                except RuntimeError:  # the loop is closed
                    return
            if ends:
                return

    def _resolve_futures(self) -> None:
        with self._lock:
            done, self._done, self._woken = self._done, deque(), False
        for job, result, error in done:
            if job.ended is not None:
                self.abandoned -= 1
                self._started -= 1
                if not job.ended.done():
                    job.ended.set_result(None)
            elif not job.future.done():
                if error is None:
                    job.future.set_result(result)
                elif isinstance(error, StopIteration):  # which a future cannot carry
                    job.future.set_exception(RuntimeError(f"StopIteration: {error}"))
                else:
                    job.future.set_exception(error)
