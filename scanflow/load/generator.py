"""The process behind :mod:`scanflow.load.load`: it sends what ``plan.json`` says, and leaves beside it what became of
that.

It imports nothing of the project but what puts it onto a CPU in time: it is the instrument. With ``arrivals`` in its
folder the loop is open: each request is due at its time, answered or not, and its latency counts from then.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import ctypes
import errno
import gc
import json
import math
import mmap
import os
import select
import signal
import struct
import sys
import time
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import httptools

from scanflow.cpu_priority import take_short_slices
from scanflow.errors import UnavailableError

SWEEP_S = 0.1
"""How often requests that wait too long are looked for, and the time is compared with the duration."""

PAUSE_S = 0.01
"""Between two tries of a connection that was refused: each is a failed request, and there is no use in thousands."""

PROGRESS = struct.Struct("QQ")
"""How many requests were finished, and how many of them failed: in the file ``progress``, at any time."""


NEVER = math.nan
"""When a request was sent that was not."""

COLUMNS = {"due": "d", "waited": "d", "took": "d", "status": "h", "who": "h"}
"""The files that are left, a column of every request each, and their types."""

ARRIVALS = "arrivals"
"""The file of doubles: when each request is due, in seconds from the beginning, in order."""


class LoadError(UnavailableError):
    """The load could not be made, which says nothing about the requests; the text has the reason."""


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    url: str
    method: str = "POST"
    bodies: Sequence[str] = ("",)
    """In base64, sent in turn."""

    headers: Mapping[str, str] = field(default_factory=dict)
    connections: int = 8
    requests: int | None = None
    duration_s: float | None = None
    timeout_s: float = 30.0
    """Longest that an answer may take, from when the request was sent."""

    queue_s: float = 30.0
    """Longest that a request may wait for a free connection, from when it was due."""

    expect: str | None = None
    """Text that a right answer contains."""

    tally: str | None = None
    """A header of the answers whose value is kept of each: who answered."""

    cpus: Sequence[int] = ()


class _Connection(asyncio.Protocol):
    def __init__(self, run: RequestSender) -> None:
        self._run = run
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self._tally: str | None = None
        self._begun = False
        self.due: float | None = None
        self.number = 0
        """Of the request at hand."""

        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def send(self, due: float, number: int) -> None:
        self.due, self.number, self._sent = due, number, time.monotonic()
        self._begun = False
        self._body.clear()
        self._tally = None
        assert self._transport is not None
        self._transport.write(self._run.message(number))

    def data_received(self, data: bytes) -> None:
        self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        due, self.due = self.due, None
        status = self._parser.get_status_code()
        if due is None:
            return  # an answer that nobody asked for, such as a 408 to an idle connection
        body = b"".join(self._body)
        right = self._run.expect is None or self._run.expect in body
        reason = None
        if not 200 <= status < 300:
            reason = f"{status}: {body[:200].decode(errors='replace')}"
        elif not right:
            reason = f"another answer: {body[:200].decode(errors='replace')}"
        self._run.finished(
            self.number, due, self._sent, status if right or status >= 300 else -status, reason, self._tally
        )
        if not self._parser.should_keep_alive():
            self._close()
            self._run.replace(self)
        else:
            self._run.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self.due is not None:
            how = "cut off in the answer" if self._begun else "closed without an answer"
            due, self.due = self.due, None
            self._run.finished(self.number, due, self._sent, 0, f"{how}: {exc or 'end of file'}", None)
        else:
            self._run.reconnects += 1
        self._run.replace(self)

    @property
    def closed_meanwhile(self) -> bool:
        """Whether the server has closed it while it was idle, which HTTP clients look for before they send."""
        assert self._transport is not None
        return bool(select.select([self._transport.get_extra_info("socket").fileno()], [], [], 0)[0])

    def expire(self, now: float) -> None:
        if self.due is not None and now - self._sent > self._run.plan.timeout_s:
            self._fail("timeout")

    def _fail(self, reason: str) -> None:
        due, self.due = self.due, None
        self._close()
        if due is not None:
            self._run.finished(self.number, due, self._sent, 0, reason, None)
        self._run.replace(self)

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class _TallyingConnection(_Connection):
    """One that keeps a header of each answer: to be called for every header of every answer costs."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == self._run.tally:
            self._tally = value.decode("latin-1")


class RequestSender:
    def __init__(self, plan: LoadPlan, folder: Path, *, requests: int | None, closed: bool) -> None:
        """``requests``: it ends after so many; ``closed``: whether connections that are free send the next."""
        url = urlsplit(plan.url)
        if url.scheme != "http" or url.hostname is None:
            raise LoadError(f"{plan.url} is no http:// address.")
        self.plan, self._requests, self._closed = plan, requests, closed
        self.tally = plan.tally.lower().encode() if plan.tally else None
        self.expect = plan.expect.encode() if plan.expect else None
        self._messages = [_message(plan, body) for body in map(base64.b64decode, plan.bodies)]
        self.reconnects = 0
        self.names: dict[str, int] = {}
        self.reasons: Counter[str] = Counter()
        self.due, self.waited, self.took = array("d"), array("d"), array("d")
        self.status, self.who = array("h"), array("h")
        self.failed = 0
        self._host, self._port = url.hostname, url.port or 80
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, int]] = deque()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = 0
        self._stopping = False
        self._parent = os.getppid()
        self.began = 0.0
        self.over = self._loop.create_future()
        with (folder / "progress").open("r+b") as file:
            self._progress = mmap.mmap(file.fileno(), PROGRESS.size)

    async def connect(self) -> None:
        kind = _Connection if self.tally is None else _TallyingConnection
        _, connection = await self._loop.create_connection(lambda: kind(self), self._host, self._port)
        self._open.add(connection)
        self.free(connection)

    def start(self) -> None:
        """Tell whoever wanted the load that it begins, and begin."""
        gc.freeze()
        gc.disable()  # a pause of the one who measures is none of the server's
        sys.stdout.write("go\n")
        sys.stdout.flush()
        self.began = time.monotonic()
        for connection in [self._idle.pop() for _ in range(len(self._idle))]:
            self.free(connection)

    def message(self, number: int) -> bytes:
        return self._messages[number % len(self._messages)]

    def due_now(self, requests: Sequence[tuple[float, int]]) -> None:
        """Send what is due, each at a time and with a number, as connections are free."""
        if self._stopping:
            return
        self._waiting.extend(requests)
        self._begun += len(requests)
        while self._waiting and self._idle:
            connection = self._idle.pop()
            if not connection.closed_meanwhile:  # else another replaces it, once the loop has read of it
                connection.send(*self._waiting.popleft())

    def free(self, connection: _Connection) -> None:
        if not self.began:
            self._idle.append(connection)
        elif self._waiting:
            if not connection.closed_meanwhile:  # else another replaces it, as in due_now
                connection.send(*self._waiting.popleft())
        elif self._closed and not self._enough():
            self._begun += 1
            connection.send(time.monotonic(), self._begun - 1)
        else:
            self._idle.append(connection)
            self._maybe_over()

    def replace(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        task = self._loop.create_task(self._reconnect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._maybe_over()

    async def _reconnect(self) -> None:
        while not self.over.done():
            try:
                await self.connect()
            except OSError as error:
                self._refused(error)
                await asyncio.sleep(PAUSE_S)
            else:
                return

    def _refused(self, error: OSError) -> None:
        reason = f"no connection: {errno.errorcode.get(error.errno or 0, error)}"
        if self._waiting:
            due, number = self._waiting.popleft()
            self.finished(number, due, NEVER, 0, reason, None)
        elif self._closed and self.began and not self._enough():
            self._begun += 1
            self.finished(self._begun - 1, time.monotonic(), NEVER, 0, reason, None)
        self._maybe_over()

    def finished(
        self, number: int, due: float, sent: float, status: int, reason: str | None, tally: str | None
    ) -> None:
        """Note what became of a request; ``number`` is for those who give their own."""
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
            self.finished(number, due, NEVER, 0, "timeout before a connection was free", None)
        if self.plan.duration_s is not None and now - self.began >= self.plan.duration_s:
            self.stop()
        self._maybe_over()

    async def sweep_until_over(self) -> None:
        while not self.over.done():
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def stop(self) -> None:
        self._stopping = True
        self._begun -= len(self._waiting)
        self._waiting.clear()
        self._maybe_over()

    def write(self, folder: Path) -> None:
        for name in COLUMNS:
            (folder / name).write_bytes(getattr(self, name).tobytes())
        rest = {"reasons": self.reasons, "names": list(self.names), "reconnects": self.reconnects}
        (folder / "rest.json").write_text(json.dumps(rest))

    def _enough(self) -> bool:
        return self._stopping or (self._requests is not None and self._begun >= self._requests)

    def _maybe_over(self) -> None:
        if self._enough() and len(self.due) >= self._begun and not self.over.done():
            self.over.set_result(None)


def _message(plan: LoadPlan, body: bytes) -> bytes:
    url = urlsplit(plan.url)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = [f"{plan.method} {path} HTTP/1.1", f"host: {url.netloc}"]
    lines += [f"{name}: {value}" for name, value in plan.headers.items()]
    if body or plan.method not in {"GET", "HEAD"}:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Clock:
    """Ticks of a timer of the kernel: the event loop's own are a millisecond coarse, which is many a latency.

    See timerfd_create(2); Python has it from 3.13 on. Where there is none, the event loop's has to do.
    """

    def __init__(self, run: RequestSender, arrivals: Sequence[float]) -> None:
        self._run, self._arrivals, self._next = run, arrivals, 0
        self._loop = asyncio.get_running_loop()
        if sys.platform != "linux":
            self._timer = -1
            return
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._time = (ctypes.c_long * 4)()  # an interval of 0: once; and seconds and nanoseconds

    def start(self) -> None:
        if self._timer >= 0:
            self._loop.add_reader(self._timer, self._tick)
        self._wait()

    def _wait(self) -> None:
        if self._next == len(self._arrivals):
            return
        due = self._run.began + self._arrivals[self._next]
        if self._timer < 0:
            self._loop.call_later(max(0.0, due - time.monotonic()), self._send)
            return
        seconds, part = divmod(due, 1)
        self._time[2], self._time[3] = int(seconds), int(part * 1e9)
        if self._libc.timerfd_settime(self._timer, 1, self._time, None) != 0:  # 1: the time is no distance but a point
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _tick(self) -> None:
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            return
        self._send()

    def _send(self) -> None:
        until = bisect_right(self._arrivals, time.monotonic() - self._run.began, self._next)
        begin, due = self._run.began, self._arrivals
        self._run.due_now([(begin + due[number], number) for number in range(self._next, until)])
        self._next = until
        self._wait()


async def _make(plan: LoadPlan, folder: Path) -> None:
    arrivals = _arrivals(folder / ARRIVALS)
    requests = plan.requests if arrivals is None else len(arrivals)
    run = RequestSender(plan, folder, requests=requests, closed=arrivals is None)
    await asyncio.gather(*(run.connect() for _ in range(plan.connections)))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, run.stop)
    run.start()
    if arrivals is not None:
        _Clock(run, arrivals).start()
    sweeping = loop.create_task(run.sweep_until_over())
    await run.over
    sweeping.cancel()
    run.write(folder)


def _arrivals(file: Path) -> array[float] | None:
    if not file.exists():
        return None
    found = array("d")
    found.frombytes(file.read_bytes())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a load; started by scanflow.load.load.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    plan = LoadPlan(**json.loads((folder / "plan.json").read_text()))
    take_short_slices(inherited=True)
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    try:
        with runner:
            runner.run(_make(plan, folder))
    except (LoadError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
