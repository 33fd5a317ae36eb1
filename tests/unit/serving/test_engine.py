"""Worker threads: order, limits, deadlines, and threads that hang."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow_serving.engine import MAX_ABANDONED, Engine, Job
from scanflow_serving.messages import RUNNING, WAITING
from scanflow_serving.problems import Problem
from tests.unit.serving.harness import PATIENCE_S, until

LONG_S = 3600.0


@asynccontextmanager
async def engine(
    *, threads: int = 1, queue: int = 100, deadline_s: float = LONG_S, on_unhealthy: Callable[[], None] | None = None
) -> AsyncIterator[Engine]:
    made = Engine(
        asyncio.get_running_loop(), threads=threads, queue=queue, deadline_s=deadline_s, on_unhealthy=on_unhealthy
    )
    try:
        yield made
    finally:
        await made.close()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, PATIENCE_S))


def started(
    made: Engine, call: Callable[[], Any], allowed_s: float = LONG_S, holder: Any = None
) -> asyncio.Future[Any]:
    """Start a call, and return what to wait for."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    made.start(call, into(future), allowed_s=allowed_s, holder=holder)
    return future


def into(future: asyncio.Future[Any]) -> Callable[[Any, BaseException | None], None]:
    def done(result: Any, error: BaseException | None) -> None:
        assert not future.done(), "answered twice"
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    return done


def test_calls_are_made_in_order_by_one_thread() -> None:
    async def main() -> None:
        made: list[tuple[int, str]] = []
        async with engine() as here:
            calls = [
                started(here, lambda place=place: made.append((place, threading.current_thread().name)))  # type: ignore[misc]
                for place in range(100)
            ]
            await asyncio.gather(*calls)
        assert [place for place, _ in made] == list(range(100))
        assert {name for _, name in made} == {"scanflow-worker-1"}

    run(main())


def test_as_many_calls_run_at_once_as_there_are_threads() -> None:
    async def main() -> None:
        both = threading.Barrier(2, timeout=PATIENCE_S)
        async with engine(threads=2) as here:
            await asyncio.gather(started(here, both.wait), started(here, both.wait))

    run(main())


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), MemoryError(), RecursionError()]
)
def test_whatever_a_call_raises_is_its_own_answer_and_nobody_elses(error: BaseException) -> None:
    def boom() -> None:
        raise error

    async def main() -> None:
        async with engine() as here:
            bad, good = started(here, boom), started(here, lambda: "well")
            with pytest.raises((type(error), RuntimeError)):
                await bad
            assert await good == "well"

            async def loudly(_job: Job) -> None:
                raise error

            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            here.start_async(loudly, into(future), allowed_s=LONG_S)
            with pytest.raises((type(error), RuntimeError)):
                await future

    run(main())


def test_one_request_too_many_is_told_to_come_again() -> None:
    async def main() -> None:
        release = threading.Event()
        async with engine(queue=2) as here:
            here.admit()
            calls = [started(here, lambda: release.wait(PATIENCE_S)) for _ in range(2)]
            with pytest.raises(Problem) as caught:
                here.admit()
            assert caught.value.status == 429
            assert caught.value.retry_after_s is not None
            assert ("retry-after", "1") in caught.value.response().headers
            release.set()
            await asyncio.gather(*calls)
            here.admit()

    run(main())


def test_the_time_to_come_again_grows_with_what_calls_take() -> None:
    async def main() -> None:
        async with engine(queue=4) as here:
            here._mean_s = 2.5
            release = threading.Event()
            calls = [started(here, lambda: release.wait(PATIENCE_S)) for _ in range(4)]
            with pytest.raises(Problem) as caught:
                here.admit()
            assert caught.value.retry_after_s == pytest.approx(10.0)
            release.set()
            await asyncio.gather(*calls)

    run(main())


def test_a_stopped_engine_admits_nobody() -> None:
    async def main() -> None:
        async with engine() as here:
            pass
        with pytest.raises(Problem) as caught:
            here.admit()
        assert caught.value.status == 503

    run(main())


def test_a_call_that_hangs_is_answered_and_its_thread_replaced() -> None:
    async def main() -> None:
        release = threading.Event()
        async with engine(deadline_s=0.02) as here:
            stuck = here.workers[0]
            with pytest.raises(Problem) as caught:
                await started(here, lambda: release.wait(PATIENCE_S), 0.02)
            assert caught.value.status == 504
            assert "within 0.02 s" in caught.value.detail
            await until(lambda: here.abandoned)
            assert here.abandoned == [stuck]
            assert await started(here, lambda: threading.current_thread().name) == "scanflow-worker-2"
            release.set()
            await until(lambda: not here.abandoned)
            assert not stuck.is_alive() or not here.unhealthy

    run(main())


def test_a_callers_short_patience_costs_no_thread() -> None:
    async def main() -> None:
        release = threading.Event()
        async with engine(deadline_s=LONG_S) as here:
            with pytest.raises(Problem) as caught:
                await started(here, lambda: release.wait(PATIENCE_S), 0.001)
            assert caught.value.status == 504
            assert not here.abandoned
            release.set()
            assert await started(here, lambda: threading.current_thread().name) == "scanflow-worker-1"

    run(main())


def test_who_waits_too_long_is_answered_and_never_runs() -> None:
    async def main() -> None:
        release, ran = threading.Event(), []
        async with engine() as here:
            first = started(here, lambda: release.wait(PATIENCE_S))
            with pytest.raises(Problem, match="still waiting"):
                await started(here, lambda: ran.append(1), 0.001)
            release.set()
            await first
            await started(here, lambda: None)
            assert not ran

    run(main())


def test_many_threads_that_hang_make_the_instance_unhealthy() -> None:
    async def main() -> None:
        release, told = threading.Event(), []
        async with engine(deadline_s=0.01, on_unhealthy=lambda: told.append(1)) as here:
            for _ in range(MAX_ABANDONED):
                assert not here.unhealthy
                before = len(here.abandoned)
                with pytest.raises(Problem):
                    await started(here, lambda: release.wait(PATIENCE_S), 0.01)
                await until(lambda: len(here.abandoned) > before)  # noqa: B023
            assert here.unhealthy
            assert told == [1]
            release.set()
            await until(lambda: not here.abandoned)

    run(main())


class Holder:
    """A request whose connection has a slot."""

    def __init__(self) -> None:
        self.slot: Any = self
        self.phase = WAITING


def test_the_slot_is_told_when_the_call_begins() -> None:
    async def main() -> None:
        holder, release = Holder(), threading.Event()
        async with engine() as here:
            first = started(here, lambda: release.wait(PATIENCE_S))
            second = started(here, lambda: holder.phase, holder=holder)
            assert holder.phase == WAITING
            release.set()
            assert await second == RUNNING
            await first
            answered = Holder()
            answered.slot = None
            await started(here, lambda: None, holder=answered)

    run(main())


def test_a_coroutine_hops_to_a_thread_and_back() -> None:
    async def main() -> None:
        async with engine() as here:

            async def walk(job: Job) -> list[str]:
                name = await here.hop(lambda: threading.current_thread().name, job)
                return [name, threading.current_thread().name]

            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            here.start_async(walk, into(future), allowed_s=LONG_S)
            assert await future == ["scanflow-worker-1", "MainThread"]

    run(main())


def test_a_coroutine_is_cancelled_when_its_time_is_up() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()
        async with engine() as here:

            async def walk(_job: Job) -> None:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.set()
                    raise

            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            here.start_async(walk, into(future), allowed_s=0.001)
            with pytest.raises(Problem) as caught:
                await future
            assert caught.value.status == 504
            await cancelled.wait()
            assert here.in_flight == 0

    run(main())


def test_a_hop_that_hangs_costs_its_thread_too() -> None:
    async def main() -> None:
        release = threading.Event()
        async with engine(deadline_s=0.01) as here:
            with pytest.raises(Problem, match="took longer than"):
                await here.hop(lambda: release.wait(PATIENCE_S))
            await until(lambda: here.abandoned)
            release.set()
            await until(lambda: not here.abandoned)

    run(main())


def test_a_caller_that_cannot_be_answered_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with engine() as here:

            def cannot(_result: Any, _error: BaseException | None) -> None:
                raise OSError("gone")

            here.start(lambda: 1, cannot, allowed_s=LONG_S)
            assert await started(here, lambda: 2) == 2

    run(main())
    assert "could not be answered" in caplog.text


def test_nothing_of_a_call_is_kept_when_it_is_over() -> None:
    class Large:
        pass

    async def main() -> None:
        async with engine() as here:
            large = Large()
            gone = weakref.ref(large)
            await started(here, lambda large=large: None)  # type: ignore[misc]
            del large
            gc.collect()
            assert gone() is None

    run(main())


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["well", "raise", "walk", "hop", "late"])), max_size=30),
    st.integers(1, 3),
)
def test_every_request_is_answered_once(kinds: list[tuple[str]], threads: int) -> None:
    def boom() -> None:
        raise ValueError

    async def main() -> None:
        release = threading.Event()
        async with engine(threads=threads) as here:

            async def walk(_job: Job) -> str:
                await asyncio.sleep(0)
                return "walked"

            async def hop(job: Job) -> Any:
                return await here.hop(lambda: "hopped", job)

            waiting: list[Awaitable[Any]] = []
            for (kind,) in kinds:
                if kind in {"walk", "hop"}:
                    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                    here.start_async(walk if kind == "walk" else hop, into(future), allowed_s=LONG_S)
                    waiting.append(future)
                elif kind == "late":
                    waiting.append(started(here, lambda: release.wait(PATIENCE_S), 0.001))
                else:
                    waiting.append(started(here, boom if kind == "raise" else lambda: "well"))
            asyncio.get_running_loop().call_later(0.01, release.set)
            await asyncio.gather(*waiting, return_exceptions=True)
            assert here.in_flight == 0

    run(main())
