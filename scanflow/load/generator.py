"""The process behind :mod:`scanflow.load.load_process`: it sends the requests of ``plan.json``, and writes their
results beside it.

It imports nothing of the project but what it sends by and what puts it onto a CPU in time: it is the instrument. With
``arrivals`` in its folder the loop is open: each request is due at its time, answered or not, and its latency counts
from then.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import errno
import gc
import json
import mmap
import os
import signal
import struct
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scanflow.load import http_connection
from scanflow.load.clock import ArrivalClock
from scanflow.load.load_plan import NEVER, PAUSE_S, LoadConnection, LoadError, LoadPlan
from scanflow.processes.cpu_priority import take_short_slices

SWEEP_S = 0.1
"""Interval at which waiting requests are checked for timeouts, and the time is compared with the duration."""

CONNECT_S = 10.0
"""Longest time to open a connection."""

PROGRESS = struct.Struct("QQ")
"""The numbers of finished and of failed requests: in the file ``progress``, at any time."""

COLUMNS = {"due": "d", "waited": "d", "took": "d", "status": "h", "who": "h"}
"""The result files, one column of all requests each, and their types."""

ARRIVALS = "arrivals"
"""The file of doubles: when each request is due, in seconds from the beginning, in order."""


class RequestSender:
    def __init__(self, plan: LoadPlan, folder: Path, *, requests: int | None, closed: bool) -> None:
        """``requests``: the load ends after this many; ``closed``: whether free connections send the next request."""
        url = urlsplit(plan.url)
        if url.scheme not in {"http", "https", "grpc", "grpcs"} or url.hostname is None:
            raise LoadError(f"{plan.url} is not an http://, https://, grpc:// or grpcs:// address.")
        self._protocol = _import_protocol(url.scheme)
        self.plan, self._requests, self._closed = plan, requests, closed
        self.tally = plan.tally.lower().encode() if plan.tally else None
        self.expect = plan.expect.encode() if plan.expect else None
        self._messages: list[bytes] = [
            self._protocol.encode_request(plan, body) for body in map(base64.b64decode, plan.bodies)
        ]
        self.reconnects = 0
        self.names: dict[str, int] = {}
        self.reasons: Counter[str] = Counter()
        self.due, self.waited, self.took = array("d"), array("d"), array("d")
        self.status, self.who = array("h"), array("h")
        self.failed = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, int]] = deque()
        self._idle: list[LoadConnection] = []
        self._open: set[LoadConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = 0
        self._stopping = False
        self._parent = os.getppid()
        self.began = 0.0
        self.over = self._loop.create_future()
        with (folder / "progress").open("r+b") as file:
            self._progress = mmap.mmap(file.fileno(), PROGRESS.size)

    async def connect(self) -> None:
        """Open a connection.

        Raises:
            OSError: it was refused, or not taken within :data:`CONNECT_S`.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self._protocol.connect(self)
        except TimeoutError:
            # asyncio's has no errno, which the reason of a failed request is told by.
            raise OSError(errno.ETIMEDOUT, f"no connection to {self.plan.url} within {CONNECT_S:g} s") from None
        self._open.add(connection)
        self.release(connection)

    def start(self) -> None:
        """Signal the start of the load, and start it."""
        gc.freeze()
        gc.disable()  # a pause of the one who measures is none of the server's
        sys.stdout.write("go\n")
        sys.stdout.flush()
        self.began = time.monotonic()
        for connection in [self._idle.pop() for _ in range(len(self._idle))]:
            self.release(connection)

    def build_message(self, number: int) -> bytes:
        return self._messages[number % len(self._messages)]

    def send_due(self, requests: Sequence[tuple[float, int]], *, late: bool) -> None:
        """Send what is due, as connections are free.

        Args:
            requests: Of each when it was due, by ``time.monotonic``, and its number.
            late: Whether a connection may have been closed since the event loop last read of it. To look is a system
                call, which an event loop that is on time does not need.
        """
        if self._stopping:
            return
        self._waiting.extend(requests)
        self._begun += len(requests)
        while self._waiting and self._idle:
            connection = self._idle.pop()
            if not late or not connection.closed_meanwhile:  # else another replaces it, once the loop has read of it
                connection.send(*self._waiting.popleft())

    def release(self, connection: LoadConnection) -> None:
        if not self.began:
            self._idle.append(connection)
        elif self._waiting:
            if not connection.closed_meanwhile:  # else another replaces it, as in send_due
                connection.send(*self._waiting.popleft())
        elif self._closed and not self._is_finished():
            self._begun += 1
            connection.send(time.monotonic(), self._begun - 1)
        else:
            self._idle.append(connection)
            self._end_if_over()

    def replace(self, connection: LoadConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        task = self._loop.create_task(self._reconnect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._end_if_over()

    async def _reconnect(self) -> None:
        while not self.over.done():
            try:
                await self.connect()
            except OSError as error:
                self._record_refusal(error)
                await asyncio.sleep(PAUSE_S)
            else:
                return

    def _record_refusal(self, error: OSError) -> None:
        reason = f"no connection: {errno.errorcode.get(error.errno or 0, error)}"
        if self._waiting:
            due, number = self._waiting.popleft()
            self.record_result(number, due, NEVER, 0, reason, None)
        elif self._closed and self.began and not self._is_finished():
            self._begun += 1
            self.record_result(self._begun - 1, time.monotonic(), NEVER, 0, reason, None)
        self._end_if_over()

    def record_result(
        self, number: int, due: float, sent: float, status: int, reason: str | None, tally: str | None
    ) -> None:
        """Record the result of a request; ``number`` is for subclasses that assign their own."""
        del number
        self.waited.append(sent - due)
        self.due.append(due)
        self.took.append(time.monotonic() - due)
        self.status.append(status)
        if reason is not None:
            self.failed += 1
            if reason in self.reasons or len(self.reasons) < 20:
                self.reasons[reason] += 1
        self.who.append(-1 if tally is None else self.names.setdefault(tally, len(self.names)))
        PROGRESS.pack_into(self._progress, 0, len(self.due), self.failed)

    def sweep(self) -> None:
        if os.getppid() != self._parent:  # whoever wanted the load was killed, and nobody else would end it
            os._exit(1)
        now = time.monotonic()
        for connection in list(self._open):
            connection.expire(now)
        while self._waiting and now - self._waiting[0][0] > self.plan.queue_s:
            due, number = self._waiting.popleft()
            self.record_result(number, due, NEVER, 0, "timeout before a connection was free", None)
        if self.plan.duration_s is not None and now - self.began >= self.plan.duration_s:
            self.stop()
        self._end_if_over()

    async def sweep_until_over(self) -> None:
        while not self.over.done():
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def stop(self) -> None:
        self._stopping = True
        self._begun -= len(self._waiting)
        self._waiting.clear()
        self._end_if_over()

    async def disconnect(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            await connection.close()

    def write(self, folder: Path) -> None:
        for name in COLUMNS:
            (folder / name).write_bytes(getattr(self, name).tobytes())
        rest = {"reasons": self.reasons, "names": list(self.names), "reconnects": self.reconnects}
        (folder / "rest.json").write_text(json.dumps(rest))

    def _is_finished(self) -> bool:
        return self._stopping or (self._requests is not None and self._begun >= self._requests)

    def _end_if_over(self) -> None:
        if self._is_finished() and len(self.due) >= self._begun and not self.over.done():
            self.over.set_result(None)


def _import_protocol(scheme: str) -> Any:
    """Return the module that connects over a protocol; gRPC's is imported only where it is used."""
    if scheme in {"http", "https"}:
        return http_connection
    from scanflow.load import grpc_connection

    return grpc_connection


async def _make(plan: LoadPlan, folder: Path) -> None:
    arrivals = _read_arrivals(folder / ARRIVALS)
    requests = plan.requests if arrivals is None else len(arrivals)
    run = RequestSender(plan, folder, requests=requests, closed=arrivals is None)
    await asyncio.gather(*(run.connect() for _ in range(plan.connections)))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, run.stop)
    run.start()
    if arrivals is not None:
        ArrivalClock(run, arrivals).start()
    sweeping = loop.create_task(run.sweep_until_over())
    await run.over
    sweeping.cancel()
    run.write(folder)
    await run.disconnect()


def _read_arrivals(file: Path) -> array[float] | None:
    if not file.exists():
        return None
    times = array("d")
    times.frombytes(file.read_bytes())
    return times


def _run_loop(load: Coroutine[Any, Any, None]) -> None:
    """Run a load to its end, on uvloop's event loop where it is installed."""
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        runner.run(load)


def run_plan(make: Callable[[LoadPlan, Path], Coroutine[Any, Any, None]]) -> int:
    """Run the load of the folder on the command line, and return the exit status."""
    parser = argparse.ArgumentParser(description="Run a load; started by scanflow.load.load_process.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    plan = LoadPlan(**json.loads((folder / "plan.json").read_text()))
    take_short_slices(inherited=True)
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    try:
        _run_loop(make(plan, folder))
    except (LoadError, OSError, ModuleNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_plan(_make))
