"""The bounded thread pool in which components run, which replaces threads that hang.

Everything here runs on the loop's thread, except what a worker does between taking a job and finishing it. The loop is
woken once for all jobs that finish before it collects them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final

from msgspec import Struct

from scanflow_serving.inference_problems import ProblemError

MAX_ABANDONED: Final = 4
"""How many threads may hang before the instance is unhealthy."""

_SMOOTHING: Final = 0.1
_log = logging.getLogger(__name__)


class ThreadCall(Struct, eq=False):
    call: Callable[[], Any]
    future: asyncio.Future[Any]
    began: float = 0.0
    abandoned: bool = False
    result: Any = None
    error: BaseException | None = None


class Worker(threading.Thread):
    """A thread that runs jobs. If it hangs, it is abandoned and replaced."""

    job: ThreadCall | None = None
    abandoned = False


class Engine:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        threads: int,
        queue: int,
        deadline_s: float,
        name: str = "worker",
        on_unhealthy: Callable[[], None] | None = None,
    ) -> None:
        """``queue``: the most requests at a time; ``deadline_s``: the longest call before its thread is abandoned."""
        self.loop = loop
        self._name = name
        self.deadline_s = deadline_s
        self._most = queue
        self._queue: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._finished: deque[ThreadCall] = deque()
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._mean_s = 0.0
        self._number = 0
        self._closed = False
        self._on_unhealthy = on_unhealthy
        self._gone: asyncio.Future[None] | None = None
        self.in_flight = 0
        """Requests that wait or run, counted by the caller."""

        self.busy = 0
        """Jobs of workers that have not finished. While there are any, the loop calls no component itself: components
        are not called concurrently."""

        self.broken = ""
        """Why no later call will succeed."""

        self.threads = 0
        self.workers: list[Worker] = []
        self.abandoned: list[Worker] = []
        self.grow(threads)

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def unhealthy(self) -> bool:
        return len(self.abandoned) >= MAX_ABANDONED or bool(self.broken)

    def report_broken(self, reason: str) -> None:
        """Note that no later call will succeed, so that this process is to be replaced."""
        if not self.broken:
            self.broken = reason
            if self._on_unhealthy is not None:
                self._on_unhealthy()

    def grow(self, threads: int) -> None:
        self.threads += threads
        for _ in range(threads):
            self._start_worker()

    def admit(self) -> None:
        if self.in_flight >= self._most:
            raise ProblemError(
                429,
                f"{self.in_flight} requests are already waiting or running, the maximum of this instance.",
                retry_after_s=max(self._mean_s * self.in_flight / max(1, self.threads), 0.1),
            )
        if self._closed:
            raise ProblemError(503, "This instance is shutting down.", retry_after_s=1.0)

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Submit a call to a worker and return its future. A call that is cancelled before it begins is skipped."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self.busy += 1
        self._queue.put(ThreadCall(call, future))
        return future

    def check_workers(self) -> None:
        """Check for hanging workers after a request timed out, now and until all calls have finished."""
        if self._timer is None:
            self._check()

    async def close(self, timeout_s: float = 2.0) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.workers:
            return
        self._gone = self.loop.create_future()
        for _ in self.workers:
            self._queue.put(None)
        try:
            await asyncio.wait_for(self._gone, timeout_s)
        except TimeoutError:
            _log.warning("%d worker threads did not end", len(self.workers))

    def _start_worker(self) -> None:
        self._number += 1
        name = f"scanflow-{self._name}-{self._number}"
        worker = Worker(name=name, target=lambda: self._serve(worker), daemon=True)
        self.workers.append(worker)
        worker.start()

    def _serve(self, worker: Worker) -> None:
        take, finished, wake = self._queue.get, self._finished, self.loop.call_soon_threadsafe
        while not worker.abandoned:
            job = take()
            if job is None:
                break
            if not job.future.done():  # it was not cancelled
                job.began = monotonic()
                worker.job = job
                try:
                    job.result = job.call()
                except BaseException as error:  # noqa: BLE001 - a component may raise anything, and must not end the thread
                    job.error = error
                worker.job = None
            finished.append(job)
            del job  # release its objects before waiting for the next job
            if not self._woken:
                self._woken = True
                try:
                    wake(self._collect)
                except RuntimeError:  # the loop has ended
                    return
        try:
            wake(self._remove_worker, worker)
        except RuntimeError:
            pass

    def _remove_worker(self, worker: Worker) -> None:
        if worker in self.abandoned:
            self.abandoned.remove(worker)
        if worker in self.workers:
            self.workers.remove(worker)
        if not self.workers and self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _collect(self) -> None:
        self._woken = False  # first, so that jobs which finish from here on wake the loop again
        finished = self._finished
        now = monotonic()
        while finished:
            job = finished.popleft()
            self.busy -= not job.abandoned
            if job.began:
                self._mean_s += _SMOOTHING * (now - job.began - self._mean_s)
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            elif isinstance(job.error, Exception) and not isinstance(job.error, StopIteration):
                job.future.set_exception(job.error)
            else:  # a future takes no StopIteration, and SystemExit would end the loop
                job.future.set_exception(RuntimeError(f"{type(job.error).__name__}: {job.error}"))

    def _check(self) -> None:
        """Abandon and replace the workers whose call exceeds the deadline; check again while one runs."""
        self._timer = None
        now = monotonic()
        running = [(worker, job) for worker in self.workers if (job := worker.job) is not None]
        stuck = [(worker, job) for worker, job in running if now - job.began >= self.deadline_s]
        for worker, job in stuck:
            worker.abandoned = True
            self.workers.remove(worker)
            self.abandoned.append(worker)
            job.abandoned = True
            self.busy -= 1
            _log.warning("%s has hung for %.1f s and is replaced", worker.name, now - job.began)
            self._start_worker()
            if not job.future.done():
                job.future.set_exception(
                    ProblemError(504, f"The call of a component took longer than {self.deadline_s:g} s.")
                )
        if stuck and self.unhealthy and self._on_unhealthy is not None:
            self._on_unhealthy()
        if not self._closed and len(running) > len(stuck):
            due = min(job.began for worker, job in running if not worker.abandoned) + self.deadline_s
            self._timer = self.loop.call_later(max(0.001, due - now), self._check)
