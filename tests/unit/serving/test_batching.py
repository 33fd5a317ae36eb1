"""Batches: who goes with whom, how long anybody waits, and what happens to one bad request among good ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.instance_messages import BatchingOptions, ModelFiles, Node
from scanflow_serving.batching import QUIET, Batcher, Traffic, compute_pause_s, update_traffic
from scanflow_serving.component_graph import GraphStep, GraphTraversal
from scanflow_serving.component_threads import Engine
from scanflow_serving.components import Call, Component
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.rows import join_rows, measure_rows, split_rows
from tests.unit.serving.serving_harness import wait_in_loop
from tests.waiting import PATIENCE_S

seconds = st.floats(0, 10, allow_nan=False)
traffics = st.builds(Traffic, company=st.floats(0, 1), gap_s=seconds)
batchings = st.builds(BatchingOptions, max_size=st.integers(1, 64), max_delay_s=seconds)


@given(traffics, batchings, st.integers(1, 100), seconds, seconds)
def test_nobody_waits_longer_than_is_allowed(
    traffic: Traffic, batching: BatchingOptions, rows: int, oldest_s: float, newest_s: float
) -> None:
    wait = compute_pause_s(traffic, batching, rows=rows, oldest_s=oldest_s, newest_s=newest_s, free=True)
    assert wait is not None
    assert 0 <= wait <= max(0.0, batching.max_delay_s - oldest_s)


@given(traffics, batchings, seconds)
def test_a_full_batch_does_not_wait(traffic: Traffic, batching: BatchingOptions, oldest_s: float) -> None:
    assert compute_pause_s(traffic, batching, rows=batching.max_size, oldest_s=oldest_s, newest_s=0, free=True) == 0


@given(batchings, st.integers(1, 64))
def test_who_is_alone_does_not_wait(batching: BatchingOptions, before: int) -> None:
    traffic = QUIET
    for _ in range(before):
        traffic = update_traffic(traffic, None, max_delay_s=batching.max_delay_s)
    assert compute_pause_s(traffic, batching, rows=1, oldest_s=0, newest_s=0, free=True) == 0


@given(traffics, batchings, st.integers(1, 64), seconds)
def test_nothing_is_called_without_a_free_thread(
    traffic: Traffic, batching: BatchingOptions, rows: int, oldest_s: float
) -> None:
    assert compute_pause_s(traffic, batching, rows=rows, oldest_s=oldest_s, newest_s=0, free=False) is None


def test_where_requests_come_together_the_first_waits_for_the_others_and_not_longer() -> None:
    batching, traffic = BatchingOptions(max_size=8, max_delay_s=0.1), QUIET
    for _ in range(20):
        traffic = update_traffic(traffic, 0.002, max_delay_s=0.1)
    wait = compute_pause_s(traffic, batching, rows=1, oldest_s=0, newest_s=0, free=True)
    assert wait == pytest.approx(0.006, rel=0.2)
    assert compute_pause_s(traffic, batching, rows=3, oldest_s=0.01, newest_s=0.02, free=True) == 0


arrays = st.integers(0, 5).map(lambda rows: np.arange(rows * 2, dtype="f4").reshape(rows, 2))


@given(st.lists(arrays, min_size=1, max_size=6))
def test_what_is_stacked_is_dealt_out_again(values: list[Any]) -> None:
    counts = [len(value) for value in values]
    for first, again in zip(values, split_rows(join_rows(values), counts), strict=True):
        np.testing.assert_array_equal(first, again)
    named = [{"a": value, "b": value[:, 0]} for value in values]
    for first, again in zip(named, split_rows(join_rows(named), counts), strict=True):
        np.testing.assert_array_equal(first["b"], again["b"])
    pairs = split_rows((join_rows(values), join_rows(values).tolist()), counts)
    assert [list(map(list, pair[1])) for pair in pairs] == [value.tolist() for value in values] or len(values) == 1


@pytest.mark.parametrize("result", [5, "text", b"bytes", None, [1], np.ones(1), {"a": [1]}, ([1],)])
def test_a_result_without_a_row_for_each_cannot_be_dealt_out(result: Any) -> None:
    with pytest.raises(ValueError, match="a different number came out"):
        split_rows(result, [1, 2])


@pytest.mark.parametrize(
    ("item", "other", "alike"),
    [
        (np.ones((1, 2)), np.ones((3, 2)), True),
        (np.ones((1, 2)), np.ones((1, 3)), False),
        (np.ones(1), np.ones(1, "f4"), False),
        ({"a": np.ones(1)}, {"a": np.ones(2)}, True),
        ({"a": np.ones(1)}, {"b": np.ones(1)}, False),
    ],
)
def test_only_like_goes_with_like(item: Any, other: Any, alike: bool) -> None:
    first, second = measure_rows(item), measure_rows(other)
    assert first is not None
    assert second is not None
    assert (first[1] == second[1]) is alike


@pytest.mark.parametrize("value", ["text", b"", {"a": [1]}, np.array(1), {"a": np.ones(1), "b": np.ones(2)}, {}, None])
def test_what_has_no_rows_goes_alone(value: Any) -> None:
    assert measure_rows(value) is None


class Waiting:
    def __init__(
        self,
        engine: Engine,
        call: Call,
        batching: BatchingOptions,
        *,
        is_async: bool,
        row_wise: bool | None,
        traffic: Traffic,
    ) -> None:
        node = Node(name="n", implementation="a.py:A", batching=batching)
        component = Component(node, call, is_async=is_async, subject=SimpleNamespace(row_wise=row_wise))
        self.engine, self.others = engine, asyncio.all_tasks()
        self.sizes: list[int] = []
        self.step = GraphStep(0, node, component)
        self.batcher = Batcher(self.step, engine, called=self.sizes.append, traffic=traffic)

    async def end_tasks(self) -> None:
        """Wait for the tasks that were begun here: trials, and calls."""
        if tasks := asyncio.all_tasks() - self.others:
            await asyncio.wait(tasks, timeout=PATIENCE_S)

    def ask(self, value: Any, *, names: Any = (), allowed_s: float = 3600) -> asyncio.Future[Any]:
        async def wait() -> Any:
            async with asyncio.timeout(allowed_s):
                return await self.batcher.call(value, names, GraphTraversal({"m": 1}))

        return asyncio.ensure_future(wait())


@asynccontextmanager
async def waiting(
    call: Callable[..., Any],
    *,
    max_size: int = 100,
    max_delay_s: float = 0.0,
    is_async: bool = False,
    row_wise: bool | None = True,
    traffic: Traffic = QUIET,
) -> AsyncIterator[Waiting]:
    engine = Engine(asyncio.get_running_loop(), threads=1, queue=1000, deadline_s=3600)
    try:
        options = BatchingOptions(max_size=max_size, max_delay_s=max_delay_s)
        yield Waiting(engine, call, options, is_async=is_async, row_wise=row_wise, traffic=traffic)
    finally:
        await engine.close()


class Gate:
    def __init__(self, answer: Callable[[Any], Any] = lambda value: value * 2) -> None:
        self.open = threading.Event()
        self.inside = threading.Event()
        self.calls: list[Any] = []
        self.metas: list[Any] = []
        self._answer = answer

    def __call__(self, value: Any, _names: Any, meta: Any) -> Any:
        self.calls.append(value)
        self.metas.append(meta)
        self.inside.set()
        assert self.open.wait(PATIENCE_S)
        return self._answer(value)


BUSY = Traffic(company=1.0, gap_s=10.0)


def row(*numbers: float) -> Any:
    return np.array([numbers])


async def test_those_that_come_while_a_call_runs_go_together_in_the_next() -> None:
    gate = Gate()
    async with waiting(gate) as here:
        first = here.ask(row(1))
        await wait_in_loop(gate.inside.is_set)
        others = [here.ask(np.array([[float(place)]] * 2)) for place in range(3)]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        assert (await first).tolist() == [[2]]
        assert [future_result.tolist() for future_result in await asyncio.gather(*others)] == [
            [[0], [0]],
            [[2], [2]],
            [[4], [4]],
        ]
        assert here.sizes == [1, 6]
        assert gate.metas == [{"m": 1}, {}]


async def test_a_batch_is_no_larger_than_allowed() -> None:
    gate = Gate()
    async with waiting(gate, max_size=4) as here:
        first = here.ask(row(1))
        await wait_in_loop(gate.inside.is_set)
        others = [here.ask(np.ones((rows, 1))) for rows in (2, 1, 2, 3)]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        await asyncio.gather(first, *others)
        assert here.sizes == [1, 3, 2, 3]


async def test_those_that_do_not_fit_together_do_not_go_together() -> None:
    gate = Gate()
    async with waiting(gate) as here:
        first = here.ask(row(0))
        await wait_in_loop(gate.inside.is_set)
        others = [here.ask(row(1)), here.ask(row(1, 2)), here.ask(row(3)), here.ask(row(4), names=["a"])]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        await asyncio.gather(first, *others)
        assert [call.shape for call in gate.calls] == [(1, 1), (2, 1), (1, 2), (1, 1)]


def fussy(value: Any) -> Any:
    if (value < 0).any():
        raise ValueError("negative")
    return value * 2


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_bad_request_does_not_fail_its_neighbours(is_async: bool) -> None:
    gate, calls = asyncio.Event(), []
    held = Gate(fussy)

    async def later(value: Any, names: Any, meta: Any) -> Any:
        calls.append(value)
        held.inside.set()
        await gate.wait()
        return fussy(value)

    async with waiting(later if is_async else held, is_async=is_async) as here:
        first = here.ask(row(0))
        await wait_in_loop(held.inside.is_set)
        others = [here.ask(row(number)) for number in (1, -1, 2)]
        await asyncio.sleep(0)  # they wait
        gate.set()
        held.open.set()
        results: list[Any] = list(await asyncio.gather(first, *others, return_exceptions=True))
        assert [results[place].tolist() for place in (0, 1, 3)] == [[[0]], [[2]], [[4]]]
        assert isinstance(results[2], ProblemError)
        assert results[2].detail == "The node 'n' raised ValueError: negative"


async def test_results_without_a_row_for_each_end_the_batching(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(lambda value: np.array([value.sum()]))
    async with waiting(gate) as here:
        first = here.ask(np.ones((2, 1)))
        await wait_in_loop(gate.inside.is_set)
        others = [here.ask(np.full((2, 1), number)) for number in (1.0, 2.0)]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        results = await asyncio.gather(first, *others)
        assert [result.tolist() for result in results] == [[2], [2], [4]]
        assert len(gate.calls) == 3
    assert "no longer batched" in caplog.text


async def test_who_is_gone_before_the_call_is_not_in_it() -> None:
    gate = Gate()
    async with waiting(gate) as here:
        first = here.ask(row(0))
        await wait_in_loop(gate.inside.is_set)
        late, good = here.ask(row(1), allowed_s=0.001), here.ask(row(2))
        with pytest.raises(TimeoutError):
            await late
        gate.open.set()
        assert (await good).tolist() == [[4]]
        await first
        assert [call.ravel().tolist() for call in gate.calls] == [[0], [2]]


async def test_the_first_of_many_waits_for_the_others() -> None:
    gate = Gate()
    gate.open.set()
    async with waiting(gate, max_size=4, max_delay_s=30, traffic=BUSY) as here:
        results = await asyncio.gather(*(here.ask(row(number)) for number in range(4)))
        assert [result.tolist() for result in results] == [[[0]], [[2]], [[4]], [[6]]]
        assert here.sizes == [4]


async def test_the_alarm_goes_off_for_those_without_company() -> None:
    gate = Gate()
    gate.open.set()
    async with waiting(gate, max_size=4, max_delay_s=0.01, traffic=BUSY) as here:
        assert (await here.ask(row(1))).tolist() == [[2]]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-1, 3)), min_size=1, max_size=20), st.integers(1, 8))
async def test_every_request_gets_its_own_rows(requests: list[tuple[int, int]], max_size: int) -> None:
    gate = Gate(fussy)
    gate.open.set()
    async with waiting(gate, max_size=max_size) as here:
        asked = [here.ask(np.full((rows, 1), number)) for rows, number in requests]
        results = await asyncio.gather(*asked, return_exceptions=True)
        for (rows, number), result in zip(requests, results, strict=True):
            if number < 0:
                assert isinstance(result, ProblemError)
            else:
                assert not isinstance(result, BaseException)
                assert result.tolist() == [[number * 2]] * rows
        assert all(len(call) <= max_size for call in gate.calls)


async def prove(here: Waiting, gate: Gate) -> None:
    """Let two requests wait behind a third, so that a trial begins, and wait for its end."""
    first = here.ask(row(0))
    await wait_in_loop(gate.inside.is_set)
    others = [here.ask(row(1)), here.ask(row(2))]
    await asyncio.sleep(0)  # they wait
    gate.open.set()
    await asyncio.gather(first, *others)
    await here.end_tasks()


async def send_together(here: Waiting, gate: Gate, *values: Any) -> list[Any]:
    """Return the answers to requests that wait while one runs."""
    gate.open.clear()
    gate.inside.clear()
    first = here.ask(row(9))
    await wait_in_loop(gate.inside.is_set)
    asked = [here.ask(value) for value in values]
    await asyncio.sleep(0)  # they wait
    gate.open.set()
    await first
    return [np.asarray(answer).tolist() for answer in await asyncio.gather(*asked)]


async def test_requests_are_stacked_once_a_probe_has_shown_that_rows_are_answered_alike() -> None:
    gate = Gate()
    async with waiting(gate, row_wise=None) as here:
        await prove(here, gate)
        assert here.sizes == [1, 1, 1]
        assert [call.tolist() for call in gate.calls if len(call) == 3] == [[[1.0], [2.0], [1.0]]]
        assert await send_together(here, gate, row(3), row(4)) == [[[6]], [[8]]]
        assert here.sizes == [1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    "answer",
    [
        lambda rows: rows - rows.mean(axis=0),
        lambda rows: np.sort(rows, axis=0),
        lambda rows: np.cumsum(rows, axis=0),
        lambda rows: [float(rows.sum()), float(len(rows))],
        lambda rows: {"rows": rows, "count": len(rows)},
        lambda rows: float(rows.sum()),
        lambda rows: rows[: len(rows) // 2 + 1],
    ],
)
async def test_what_depends_on_other_rows_is_not_batched_and_that_is_said_once(
    answer: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(answer)
    async with waiting(gate, row_wise=None) as here:
        await prove(here, gate)
        together = await send_together(here, gate, row(3), row(4), row(4), row(3))
        assert together == [np.asarray(answer(row(number))).tolist() for number in (3, 4, 4, 3)]
        assert set(here.sizes) == {1}
    (message,) = [record.message for record in caplog.records if "no longer batched" in record.message]
    assert "The node 'n'" in message
    assert "row_wise = True" in message


async def test_a_class_that_says_that_it_is_not_row_wise_is_called_alone() -> None:
    gate = Gate()
    async with waiting(gate, row_wise=False) as here:
        await prove(here, gate)
        assert await send_together(here, gate, row(3), row(4)) == [[[6]], [[8]]]
        assert {len(call) for call in gate.calls} == {1}


async def test_equal_rows_prove_nothing_about_others() -> None:
    gate = Gate(lambda rows: rows - rows.mean(axis=0))
    async with waiting(gate, row_wise=None) as here:
        first = here.ask(row(1))
        await wait_in_loop(gate.inside.is_set)
        others = [here.ask(row(1)), here.ask(row(1))]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        await asyncio.gather(first, *others)
        await here.end_tasks()
        assert await send_together(here, gate, row(1), row(1)) == [[[0]], [[0]]]
        assert here.sizes[-1] == 2
        assert await send_together(here, gate, row(1), row(5)) == [[[0]], [[0]]]


def center(weight: float, rows: Any) -> Any:
    return rows - weight * rows.mean(axis=0)


async def test_a_request_larger_than_a_call_is_cut_only_where_rows_are_answered_alone() -> None:
    numbers = np.arange(5.0).reshape(5, 1)
    for weight, sizes in ((0, {1, 2, 3}), (1, {1, 3, 5})):
        gate = Gate(partial(center, weight))
        gate.open.set()
        async with waiting(gate, max_size=3, row_wise=None) as here:
            assert (await here.ask(numbers)).tolist() == center(weight, numbers).tolist()
            assert {len(call) for call in gate.calls} == sizes


async def test_a_probe_that_a_bad_row_fails_says_nothing() -> None:
    gate = Gate(fussy)
    async with waiting(gate, row_wise=None) as here:
        first = here.ask(row(0))
        await wait_in_loop(gate.inside.is_set)
        others = [here.ask(row(-1)), here.ask(row(2))]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        assert isinstance(results[1], ProblemError)
        await here.end_tasks()
        for size in (1, 2):  # of the last call: another trial is made, and then they go together
            await send_together(here, gate, row(3), row(4))
            await here.end_tasks()
            assert here.sizes[-1] == size


def test_the_parts_of_a_result_share_nothing() -> None:
    shared = [1.0]
    first, second = split_rows([shared, shared], [1, 1])
    first[0][0] = 2.0
    assert second == [[1.0]]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_batch_of_which_all_clients_are_gone_is_not_called_or_cancelled(is_async: bool) -> None:
    gate, ended = Gate(), []

    async def later(value: Any, _names: Any, _meta: Any) -> Any:
        gate.inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(len(value))

    async with waiting(later if is_async else gate, is_async=is_async) as here:
        blocker = here.engine.run(lambda: gate.open.wait(PATIENCE_S))
        request = here.ask(row(1))
        await wait_in_loop(gate.inside.is_set if is_async else lambda: here.sizes and here.engine.waiting == 1)
        request.cancel()
        await asyncio.wait([request])
        gate.open.set()
        await blocker
        await here.engine.run(lambda: None)  # the thread has done all before it
        await here.end_tasks()
        assert (gate.calls, ended) == ([], [1] if is_async else [])


class Metadata:
    row_wise = True

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def predict(self, rows: Any, names: Any, meta: Any) -> Any:
        return self.gate(rows, names, meta)


async def test_a_request_with_parameters_for_a_model_is_called_alone() -> None:
    gate = Gate()
    options = BatchingOptions(max_size=100)
    node = Node(name="n", model=ModelFiles(name="m", version=1, path=""), batching=options)
    engine = Engine(asyncio.get_running_loop(), threads=1, queue=1000, deadline_s=3600)
    component = Component(node, gate, subject=SimpleNamespace(row_wise=True))
    sizes: list[int] = []
    batcher = Batcher(GraphStep(0, node, component), engine, called=sizes.append)

    def ask(**meta: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(batcher.call(row(1), (), GraphTraversal(meta)))

    try:
        requests = [ask()]
        await wait_in_loop(gate.inside.is_set)
        requests += [ask(), ask(parameters={"k": 2}), ask(), ask(parameters={"k": 3})]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        await asyncio.gather(*requests)
    finally:
        await engine.close()
    assert sizes == [1, 2, 1, 1]
    assert [meta.get("parameters") for meta in gate.metas] == [None, None, {"k": 2}, {"k": 3}]


async def test_requests_of_other_metadata_are_not_stacked_for_a_class_that_takes_it() -> None:
    gate = Gate()
    async with waiting(gate) as here:
        here.step.component.subject = Metadata(gate)
        batcher = Batcher(here.step, here.engine, called=here.sizes.append)

        def ask(puid: str) -> asyncio.Future[Any]:
            return asyncio.ensure_future(batcher.call(row(1), (), GraphTraversal({"puid": puid})))

        first = ask("a")
        await wait_in_loop(gate.inside.is_set)
        others = [ask("b"), ask("c"), ask("b")]
        await asyncio.sleep(0)  # they wait
        gate.open.set()
        await asyncio.gather(first, *others)
        assert gate.metas == [{"puid": "a"}, {"puid": "b"}, {"puid": "c"}]
        assert here.sizes == [1, 2, 1]
