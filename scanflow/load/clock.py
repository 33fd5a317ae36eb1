"""A kernel timer that wakes the sender of an open loop when requests are due."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.load.load_plan import Sender


_MAX_LATENESS_S = 0.001
"""Requests that are later than this are counted as late: other events that the loop has not handled yet may be older
than the tick."""


class ArrivalClock:
    """Ticks of a kernel timer: the event loop's own timers have a resolution of a millisecond, the size of many
    latencies.

    See timerfd_create(2); Python has it from 3.13 on. Where there is none, the event loop's has to do.
    """

    def __init__(self, run: Sender, arrivals: Sequence[float]) -> None:
        self._run, self._arrivals, self._next = run, arrivals, 0
        self._loop = asyncio.get_running_loop()
        if sys.platform != "linux":
            self._timer = -1
            return
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._set_time = self._libc.timerfd_settime
        self._time = (ctypes.c_long * 4)()  # an interval of 0: once; and seconds and nanoseconds

    def start(self) -> None:
        """Wake the sender at each arrival, from now on."""
        if self._timer >= 0:
            self._loop.add_reader(self._timer, self._send)
        self._wait()

    def _wait(self) -> None:
        if self._next == len(self._arrivals):
            if self._timer >= 0:
                self._loop.remove_reader(self._timer)
            return
        due = self._run.began + self._arrivals[self._next]
        if self._timer < 0:
            self._loop.call_later(max(0.0, due - time.monotonic()), self._send)
            return
        seconds = int(due)
        self._time[2], self._time[3] = seconds, int((due - seconds) * 1e9)
        # The 1: the time is no distance but a point. A timer that is set again need not be read before.
        if self._set_time(self._timer, 1, self._time, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _send(self) -> None:
        begin, due, first = self._run.began, self._arrivals, self._next
        now, end = time.monotonic() - begin, first
        while end < len(due) and due[end] <= now:
            end += 1
        if end > first:
            self._next = end
            requests = [(begin + due[number], number) for number in range(first, end)]
            self._run.send_due(requests, late=now - due[first] > _MAX_LATENESS_S)
        self._wait()
