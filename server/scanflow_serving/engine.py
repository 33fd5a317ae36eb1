"""Where components run: worker threads behind a bounded queue, deadlines, and what is done about threads that hang.

Everything here belongs to the loop's thread, except what a worker does between taking a piece of work and putting it
among the finished. The loop is woken once for all pieces that finish before it looks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol

from scanflow_serving.messages import RUNNING, WAITING, Slot
from scanflow_serving.problems import Problem

__all__ = ["MAX_ABANDONED", "Engine", "Job", "Worker"]

MAX_ABANDONED: Final = 4
"""So many threads may hang before the instance asks to be replaced."""

_SMOOTHING: Final = 0.1
_NEVER: Final = float("inf")
_log = logging.getLogger(__name__)

Done = Callable[[Any, "BaseException | None"], None]


class Holder(Protocol):
    """A request, which has its connection's slot until it is answered."""

    slot: Slot | None


class Job:
    """A request on its way, or a part of one that a worker does."""

    __slots__ = (
        "allowed_s",
        "answered",
        "began",
        "call",
        "deadline",
        "deliver",
        "error",
        "holder",
        "owner",
        "result",
        "task",
    )

    def __init__(self, call: Callable[[], Any] | None, deliver: Callable[[Job], None], holder: Holder | None) -> None:
        self.call = call
        self.deliver = deliver
        """Called on the loop once a worker is through with it."""

        self.holder = holder
        self.answered = False
        self.allowed_s = 0.0
        self.deadline = _NEVER
        self.began = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.owner: Job | None = None
        """The request that it is a part of."""

        self.task: asyncio.Task[None] | None = None

    def stale(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.answered or (self.owner is not None and self.owner.answered)

    def running(self) -> Slot | None:
        """Tell, from any thread, that a component has begun on it; return where that is noted."""
        slot = self.holder.slot if self.holder is not None else None
        if slot is not None:
            slot.phase = RUNNING
        return slot


class Worker(threading.Thread):
    """A thread that does one piece of work after the other. One that hangs is left alone and another replaces it."""

    def __init__(self, name: str, serve: Callable[[Worker], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.job: Job | None = None
        self.began = 0.0
        self.abandoned = False
        self._serve = serve

    def run(self) -> None:
        """Work until told to stop."""
        self._serve(self)


class Engine:
    """Worker threads, and the requests in their care."""

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
        """``queue``: most requests at a time; ``deadline_s``: longest that a call may take before its thread is given
        up."""
        self._loop = loop
        self._name = name
        self._deadline_s = deadline_s
        self._most = queue
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._finished: deque[Job] = deque()
        self._woken = False
        self._jobs: dict[Job, Done] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = _NEVER
        self._mean_s = 0.0
        self._number = 0
        self._closed = False
        self._on_unhealthy = on_unhealthy
        self._gone: asyncio.Future[None] | None = None
        self.threads = 0
        self.workers: list[Worker] = []
        self.abandoned: list[Worker] = []
        self.grow(threads)

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return len(self._jobs)

    @property
    def waiting(self) -> int:
        """Pieces of work that no worker has taken yet."""
        return self._queue.qsize()

    @property
    def unhealthy(self) -> bool:
        """Whether so many threads hang that the process had better be replaced."""
        return len(self.abandoned) >= MAX_ABANDONED

    def grow(self, threads: int) -> None:
        """Hire so many workers more than there are."""
        self.threads += threads
        for _ in range(threads):
            self._hire()

    def admit(self) -> None:
        """Check that there is room for one more request.

        Raises:
            Problem: 429, the queue is full; 503, the engine has stopped.
        """
        if len(self._jobs) >= self._most:
            raise Problem(
                429,
                f"{len(self._jobs)} requests wait or run already, which is the most that this instance takes.",
                retry_after_s=max(self._mean_s * len(self._jobs) / max(1, self.threads), 0.1),
            )
        if self._closed:
            raise Problem(503, "This instance is about to end.", retry_after_s=1.0)

    def start(self, call: Callable[[], Any], done: Done, *, allowed_s: float, holder: Holder | None = None) -> Job:
        """Let a worker make the call; ``done`` gets its result or error on the loop, or a 504 when
        ``allowed_s`` seconds are over."""
        job = Job(call, self._deliver, holder)
        self._add(job, done, allowed_s)
        self._queue.put(job)
        return job

    def start_async(
        self,
        walk: Callable[[Job], Coroutine[Any, Any, Any]],
        done: Done,
        *,
        allowed_s: float,
        holder: Holder | None = None,
    ) -> Job:
        """Run a coroutine on the loop, which may :meth:`hop` to workers; it is cancelled when its time is up."""
        job = Job(None, self._deliver, holder)
        self._add(job, done, allowed_s)
        job.task = self._loop.create_task(self._drive(job, walk))
        return job

    def hop(
        self, call: Callable[[], Any], owner: Job | None = None, *, holder: Holder | None = None
    ) -> asyncio.Future[Any]:
        """Let a worker make a call on behalf of a request that runs on the loop; return what to wait for."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def deliver(job: Job) -> None:
            if future.done():
                return
            if job.error is None:
                future.set_result(job.result)
            else:
                future.set_exception(job.error)

        job = Job(call, deliver, holder)
        job.owner = owner
        self._arm(monotonic() + self._deadline_s)
        self._queue.put(job)
        return future

    async def close(self, timeout_s: float = 2.0) -> None:
        """Stop the workers once they have done what waits; those that hang are left behind."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.workers:
            return
        self._gone = self._loop.create_future()
        for _ in self.workers:
            self._queue.put(None)
        try:
            await asyncio.wait_for(self._gone, timeout_s)
        except TimeoutError:
            _log.warning("%d worker threads did not end", len(self.workers))

    def _add(self, job: Job, done: Done, allowed_s: float) -> None:
        job.allowed_s = allowed_s
        job.deadline = deadline = monotonic() + allowed_s
        self._jobs[job] = done
        if deadline < self._due:
            self._arm(deadline)

    def _deliver(self, job: Job) -> None:
        done = self._jobs.pop(job, None)
        if done is not None:
            _tell(done, job)

    async def _drive(self, job: Job, walk: Callable[[Job], Coroutine[Any, Any, Any]]) -> None:
        try:
            job.result = await walk(job)
        except asyncio.CancelledError as error:
            if job.answered:
                return
            job.error = error
        except BaseException as error:  # noqa: BLE001 - a component may raise anything, and must not end the loop
            job.error = error
        self._deliver(job)

    def _hire(self) -> None:
        self._number += 1
        worker = Worker(f"scanflow-{self._name}-{self._number}", self._serve)
        self.workers.append(worker)
        worker.start()

    def _serve(self, worker: Worker) -> None:
        """Do one piece of work after the other, in a thread of their own."""
        take, finished, wake = self._queue.get, self._finished, self._loop.call_soon_threadsafe
        before: Slot | None = None
        while not worker.abandoned:
            job = take()
            if job is None:
                break
            if job.stale():
                continue
            worker.began = job.began = monotonic()
            worker.job = job
            # The one before is done, if not answered yet: should the process die from here on, it is not the cause. Not
            # said any sooner, since a component that signals its own process may return before that takes effect.
            if before is not None and before.phase == RUNNING:
                before.phase = WAITING
            before = job.running()
            try:
                assert job.call is not None
                job.result = job.call()
            except BaseException as error:  # noqa: BLE001 - a component may raise anything, and must not end the thread
                job.error = error
            worker.job = None
            finished.append(job)
            del job  # what it holds must not wait for the next one
            if not self._woken:
                self._woken = True
                try:
                    wake(self._collect)
                except RuntimeError:  # the loop has ended
                    return
        try:
            wake(self._leave, worker)
        except RuntimeError:
            pass

    def _leave(self, worker: Worker) -> None:
        if worker in self.abandoned:
            self.abandoned.remove(worker)
        if worker in self.workers:
            self.workers.remove(worker)
        if not self.workers and self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _collect(self) -> None:
        self._woken = False  # before looking: who finishes from here on wakes the loop again
        finished = self._finished
        now = monotonic()
        while finished:
            job = finished.popleft()
            self._mean_s += _SMOOTHING * (now - job.began - self._mean_s)
            job.deliver(job)

    def _arm(self, due: float) -> None:
        """Look at deadlines at that time, unless it is done before."""
        if due >= self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(max(0.0, due - monotonic()), self._expire)

    def _expire(self) -> None:
        """Answer the requests whose time is up, and give up the threads that hang; then set the next alarm."""
        self._timer = None
        self._due = _NEVER
        now = monotonic()
        for job in [job for job in self._jobs if job.deadline <= now]:
            self._time_out(job)
        self._give_up(now)
        due = _NEVER
        for job in self._jobs:
            due = min(due, job.deadline)
        for worker in self.workers:
            if worker.job is not None:
                due = min(due, worker.began + self._deadline_s)
        if due < _NEVER:
            self._arm(due)

    def _time_out(self, job: Job) -> None:
        done = self._jobs.pop(job)
        job.answered = True
        where = "it ran when time was up" if job.began or job.task else "it was still waiting for others"
        job.error = Problem(504, f"The request was not answered within {job.allowed_s:g} s: {where}.")
        _tell(done, job)
        if job.task is not None:
            job.task.cancel()

    def _give_up(self, now: float) -> None:
        """Replace the workers whose call takes longer than any request may."""
        stuck = [worker for worker in self.workers if worker.job is not None and now - worker.began >= self._deadline_s]
        for worker in stuck:
            worker.abandoned = True
            self.workers.remove(worker)
            self.abandoned.append(worker)
            _log.warning("%s hangs since %.1f s and is replaced", worker.name, now - worker.began)
            self._hire()
            if (job := worker.job) is not None:
                job.answered = True
                job.error = Problem(504, f"The call of a component took longer than {self._deadline_s:g} s.")
                job.deliver(job)
        if stuck and self.unhealthy and self._on_unhealthy is not None:
            self._on_unhealthy()


def _tell(done: Done, job: Job) -> None:
    """Call back, whatever that raises: the requests after it are to be answered all the same."""
    try:
        done(job.result, job.error)
    except Exception:  # noqa: BLE001 - the loop's edge
        _log.exception("a request could not be answered")
