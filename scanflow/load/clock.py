"""When an open loop's requests are due: a timer of the kernel, which wakes their sender."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.load.generator import RequestSender


class ArrivalClock:
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
        self._run.send_due([(begin + due[number], number) for number in range(self._next, until)])
        self._next = until
        self._wait()
