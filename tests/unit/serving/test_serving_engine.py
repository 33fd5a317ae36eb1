"""Worker threads: order, limits, and threads that hang."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow_serving.component_threads import MAX_ABANDONED, Engine
from scanflow_serving.inference_problems import ProblemError
from tests.unit.serving.serving_harness import wait_in_loop
from tests.waiting import PATIENCE_S

LONG_S = 3600.0


@asynccontextmanager
async def engine(
    *, threads: int = 1, deadline_s: float = LONG_S, on_unhealthy: Callable[[], None] | None = None
) -> AsyncIterator[Engine]:
    engine = Engine(
        asyncio.get_running_loop(), threads=threads, queue=100, deadline_s=deadline_s, on_unhealthy=on_unhealthy
    )
    try:
        yield engine
    finally:
        await engine.close()


def name() -> str:
    return threading.current_thread().name


async def run_within(engine: Engine, call: Callable[[], Any], allowed_s: float) -> Any:
    try:
        async with asyncio.timeout(allowed_s):
            return await engine.run(call)
    except TimeoutError:
        engine.check_workers()
        raise


async def test_calls_are_made_in_order_by_one_thread() -> None:
    results: list[tuple[int, str]] = []
    async with engine() as here:
        await asyncio.gather(*(here.run(lambda place=place: results.append((place, name()))) for place in range(100)))  # type: ignore[misc]
    assert results == [(place, "scanflow-worker-1") for place in range(100)]


async def test_as_many_calls_run_at_once_as_there_are_threads() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    async with engine(threads=2) as here:
        await asyncio.gather(here.run(both.wait), here.run(both.wait))


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), MemoryError(), StopIteration(), RecursionError()]
)
async def test_whatever_a_call_raises_fails_its_own_request_only(error: BaseException) -> None:
    def boom() -> None:
        raise error

    async with engine() as here:
        bad, good = here.run(boom), here.run(lambda: "well")
        with pytest.raises((type(error), RuntimeError)):
            await bad
        assert await good == "well"


class Hanging:
    """A call that ends only when it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.released.wait(PATIENCE_S)

    async def wait_until_abandoned(self, by: Engine) -> None:
        """Have a worker hang in it, until the engine has abandoned that."""
        self.begun.clear()
        call = by.run(self)
        await wait_in_loop(self.begun.is_set)
        by.check_workers()
        with pytest.raises(ProblemError, match="The call of a component took longer"):
            await call


async def test_a_thread_that_hangs_is_replaced() -> None:
    hanging = Hanging()
    async with engine(deadline_s=0.05) as here:
        stuck = here.workers[0]
        await hanging.wait_until_abandoned(here)
        assert here.abandoned == [stuck]
        assert here.busy == 0
        assert await here.run(name) == "scanflow-worker-2"
        hanging.released.set()
        await wait_in_loop(lambda: not here.abandoned)
        assert here.busy == 0


async def test_a_clients_short_timeout_costs_no_thread() -> None:
    hanging, ran = Hanging(), list[int]()
    async with engine() as here:
        while not hanging.begun.is_set():  # where it timed out before a thread took it
            with pytest.raises(TimeoutError):
                await run_within(here, hanging, 0.001)
        with pytest.raises(TimeoutError):
            await run_within(here, lambda: ran.append(1), 0.001)
        assert not here.abandoned
        hanging.released.set()
        assert await here.run(name) == "scanflow-worker-1"
        assert not ran, "nobody waited for it any more"
        assert here.busy == 0


async def test_many_threads_that_hang_make_the_instance_unhealthy() -> None:
    hanging, reports = Hanging(), list[int]()
    async with engine(deadline_s=0.01, on_unhealthy=lambda: reports.append(1)) as here:
        for _ in range(MAX_ABANDONED):
            assert not here.unhealthy
            await hanging.wait_until_abandoned(here)
        assert here.unhealthy
        assert reports == [1]
        hanging.released.set()
        await wait_in_loop(lambda: not here.abandoned)


async def test_nothing_of_a_call_is_kept_when_it_is_over() -> None:
    class Large:
        pass

    async with engine() as here:
        large = Large()
        gone = weakref.ref(large)
        await here.run(lambda large=large: None)  # type: ignore[misc]
        del large
        gc.collect(1)
        assert gone() is None


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["well", "raise", "late"]), max_size=30), st.integers(1, 3))
async def test_every_call_ends_once(kinds: list[str], threads: int) -> None:
    def boom() -> None:
        raise ValueError

    release = threading.Event()
    async with engine(threads=threads) as here:
        calls = {"well": lambda: 1, "raise": boom, "late": lambda: release.wait(PATIENCE_S)}
        allowed = {"late": 0.001}
        waiting = [run_within(here, calls[kind], allowed.get(kind, LONG_S)) for kind in kinds]
        asyncio.get_running_loop().call_later(0.01, release.set)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert len(ends) == len(kinds)
        await wait_in_loop(lambda: here.busy == 0)
