"""Threads for plain functions: bounded, and replaced when one hangs."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from scanflow.errors import UnavailableError
from scanflow_agents.host.thread_pool import ThreadPool
from tests.waiting import PATIENCE_S


async def test_functions_run_in_a_bounded_number_of_threads() -> None:
    workers = ThreadPool(3)
    names = await asyncio.gather(*(workers.run(lambda: threading.current_thread().ident) for _ in range(200)))
    assert 1 <= len(set(names)) <= 3
    assert threading.get_ident() not in names
    workers.close()


async def test_what_a_function_raises_reaches_its_caller() -> None:
    workers = ThreadPool(1)
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await workers.run(lambda: next(iter(())))
    assert await workers.run(lambda: 7) == 7
    workers.close()


async def test_functions_see_the_context_of_their_caller() -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word")
    word.set("hello")
    workers = ThreadPool(1)
    assert await workers.run(word.get) == "hello"
    workers.close()


async def test_a_function_given_up_ends_when_it_ends_and_others_go_on_meanwhile() -> None:
    workers, begun, go_on = ThreadPool(1), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    task = asyncio.create_task(workers.run(hang))
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    assert await workers.run(lambda: 1) == 1
    assert (task.done(), workers.abandoned) == (False, 1)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert workers.abandoned == 0
    assert await workers.run(lambda: 2) == 2
    workers.close()


async def test_a_function_given_up_before_it_began_is_never_called() -> None:
    workers, begun, go_on, called = ThreadPool(1), threading.Event(), threading.Event(), list[int]()

    def hold() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    first = asyncio.create_task(workers.run(hold))
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    second = asyncio.create_task(workers.run(lambda: called.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()
    await first
    assert await workers.run(lambda: list(called)) == []
    workers.close()


async def test_when_too_many_hang_the_reason_is_reported() -> None:
    workers, begun, go_on = ThreadPool(1, most_abandoned=1), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    task = asyncio.create_task(workers.run(hang))
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="1 functions of this agent hang"):
        await workers.run(lambda: 1)
    go_on.set()
    await asyncio.wait([task])
    workers.close()
