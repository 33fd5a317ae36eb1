"""Calls that may hang are bounded, and made again once the one that hung has returned."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scanflow.accelerators.bounded_calls import BoundedCalls, HangingError
from tests.waiting import PATIENCE_S, wait_until

LONG_S = PATIENCE_S


def hang(calls: BoundedCalls[int], released: threading.Event) -> None:
    def wait() -> int:
        assert released.wait(PATIENCE_S)
        return 0

    with pytest.raises(HangingError):
        calls.call(wait)


def test_a_call_returns_or_raises_what_its_function_does() -> None:
    calls = BoundedCalls[int](first_s=LONG_S, later_s=LONG_S)
    assert calls.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0)
    assert calls.call(lambda: 8) == 8


def test_while_one_hangs_no_other_begins_and_nobody_waits() -> None:
    calls, released, begun = BoundedCalls[int](first_s=0.1, later_s=LONG_S), threading.Event(), list[int]()

    def begin() -> int:
        begun.append(1)
        return 1

    hang(calls, released)
    before, threads = time.monotonic(), threading.active_count()
    for _ in range(100):
        with pytest.raises(HangingError, match=r"no answer for 0\.1 s"):
            calls.call(begin)
    assert time.monotonic() - before < 5
    assert (begun, threading.active_count()) == ([], threads)
    released.set()

    def answers() -> bool:
        try:
            return calls.call(lambda: 3) == 3  # not the 0 of the one that hung
        except HangingError:
            return False

    wait_until(answers, "the one that hung has returned")


def test_once_one_has_returned_the_later_bound_holds() -> None:
    calls, released = BoundedCalls[int](first_s=LONG_S, later_s=0.1), threading.Event()
    assert calls.call(lambda: 1) == 1
    before = time.monotonic()
    hang(calls, released)
    assert time.monotonic() - before < LONG_S
    released.set()


def test_those_who_ask_at_once_wait_for_one_bound_together() -> None:
    calls, released = BoundedCalls[int](first_s=1.0, later_s=LONG_S), threading.Event()
    before = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: hang(calls, released), range(20)))
    assert time.monotonic() - before < 10  # not 20 bounds
    released.set()
