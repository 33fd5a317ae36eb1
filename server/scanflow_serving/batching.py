"""Adaptive batching: requests that wait for the same node are answered in one call.

:func:`compute_pause_s` decides, and is pure; :class:`Batcher` queues requests and sends batches. A request waits only
while another is likely to arrive: when requests come one at a time there is no delay, whatever ``max_delay`` allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np
from msgspec import Struct

from scanflow.wire import BatchingOptions
from scanflow_serving.components import make_component_problem
from scanflow_serving.engine import Engine
from scanflow_serving.graph import GraphStep, GraphTraversal, finish, take_extras

_WEIGHT: Final = 0.2
_LIKELY: Final = 0.4
_PATIENCE: Final = 3.0
_WRONG_ROW_COUNT: Final = "but a different number came out"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Statistics of recent arrivals."""

    company: float = 0.0
    """The probability, from 0 to 1, that another request arrives while one is in progress."""

    gap_s: float = 0.0
    """The mean time between such arrivals, in seconds."""


QUIET: Final = Traffic()


def update_traffic(traffic: Traffic, since_last_s: float | None, *, max_delay_s: float) -> Traffic:
    """Return the statistics after an arrival. ``since_last_s``: since the previous one; None: none is in progress."""
    if since_last_s is None or since_last_s > max_delay_s:
        return Traffic(traffic.company * (1 - _WEIGHT), traffic.gap_s)
    gap_s = since_last_s if traffic.company == 0.0 else traffic.gap_s + _WEIGHT * (since_last_s - traffic.gap_s)
    return Traffic(traffic.company + _WEIGHT * (1 - traffic.company), gap_s)


def compute_pause_s(
    traffic: Traffic, batching: BatchingOptions, *, rows: int, oldest_s: float, newest_s: float, free: bool
) -> float | None:
    """Return how long the waiting requests should wait, in seconds; 0: call now; None: until a thread is free.

    ``rows`` wait, of which the first has waited for ``oldest_s`` and the last for ``newest_s``.
    """
    if not free:
        return None
    remaining_s = batching.max_delay_s - oldest_s
    if rows >= batching.max_size or remaining_s <= 0 or traffic.company < _LIKELY:
        return 0.0
    return max(0.0, min(remaining_s, _PATIENCE * traffic.gap_s - newest_s))


def measure_rows(value: Any) -> tuple[int, object] | None:
    """Return the number of rows of a value, and the key that values stacked with it must share.

    None: it has no rows, and is called alone.
    """
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return None
        return value.shape[0], (value.dtype, value.shape[1:])
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(array, np.ndarray) and array.ndim for array in value.values())
    ):
        counts = {array.shape[0] for array in value.values()}
        if len(counts) == 1:
            return counts.pop(), tuple((name, array.dtype, array.shape[1:]) for name, array in sorted(value.items()))
    return None


def split_rows(result: Any, counts: Sequence[int]) -> list[Any]:
    """Split a result's rows by request."""
    if len(counts) == 1:
        return [result]
    if isinstance(result, dict):
        parts = {name: split_rows(rows, counts) for name, rows in result.items()}
        return [{name: parts[name][place] for name in parts} for place in range(len(counts))]
    if isinstance(result, tuple):
        columns = [split_rows(column, counts) for column in result]
        return [tuple(column[place] for column in columns) for place in range(len(counts))]
    if not hasattr(result, "__len__") or isinstance(result, (str, bytes)) or len(result) != sum(counts):
        raise ValueError(f"{sum(counts)} rows went in, {_WRONG_ROW_COUNT}")
    ends = np.cumsum(counts).tolist()
    return [result[end - count : end] for end, count in zip(ends, counts, strict=True)]


def join_rows(results: Sequence[Any]) -> Any:
    """Concatenate values of one kind, or the results of the pieces of a request, by rows."""
    first = results[0]
    if len(results) == 1:
        return first
    if isinstance(first, dict):
        return {name: join_rows([result[name] for result in results]) for name in first}
    if isinstance(first, tuple):
        return tuple(join_rows(parts) for parts in zip(*results, strict=True))
    if isinstance(first, list):
        return [item for result in results for item in result]
    return np.concatenate([np.asarray(result) for result in results])


class _Entry(Struct, eq=False):
    """A waiting request."""

    value: Any
    names: Any
    walk: GraphTraversal
    came: float
    future: asyncio.Future[tuple[Any, Any]]
    rows: int = 1
    kind: object = None


class Batcher:
    def __init__(self, step: GraphStep, engine: Engine, *, called: Callable[[int], None] = lambda _rows: None) -> None:
        """``called`` gets the number of rows of each call, on the loop."""
        assert step.node.batching is not None
        self._step = step
        self._batching = step.node.batching
        self._engine = engine
        self._loop = engine.loop
        self._on_call = called
        self._waiting: list[_Entry] = []
        self._running = 0
        self._here = 0
        self._last = 0.0
        self._traffic = QUIET
        self._timer: asyncio.TimerHandle | None = None
        self._alone = False
        """Whether results cannot be split by rows, so that each request needs a call of its own."""

    async def call(self, value: Any, names: Any, walk: GraphTraversal) -> Any:
        now = monotonic()
        self._traffic = update_traffic(
            self._traffic, now - self._last if self._here else None, max_delay_s=self._batching.max_delay_s
        )
        self._last = now
        self._here += 1
        entry = _Entry(value, names, walk, now, self._loop.create_future())
        if layout := measure_rows(value):
            entry.rows, entry.kind = layout[0], (layout[1], tuple(names or ()))
        self._waiting.append(entry)
        try:
            self._dispatch()
            result, error = await entry.future
        finally:
            self._here -= 1
        if error is not None:
            walk.failed = self._step.name
            raise error
        return result

    def _dispatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting = [entry for entry in self._waiting if not entry.future.done()]
        while self._waiting:
            batch = self._select_next_batch()
            now = monotonic()
            wait = compute_pause_s(
                self._traffic,
                self._batching,
                rows=self._batching.max_size
                if batch[0].kind is None or self._alone
                else sum(entry.rows for entry in batch),
                oldest_s=now - self._waiting[0].came,
                newest_s=now - self._waiting[-1].came,
                free=self._running < self._engine.threads,
            )
            if wait is None:
                return
            if wait > 0:
                self._timer = self._loop.call_later(wait, self._dispatch)
                return
            self._waiting = [entry for entry in self._waiting if entry not in batch]
            self._send(batch)

    def _select_next_batch(self) -> list[_Entry]:
        """Return the requests that can be stacked with the oldest, in order."""
        first = self._waiting[0]
        if first.kind is None or self._alone:
            return [first]
        batch, rows = [first], first.rows
        for entry in self._waiting[1:]:
            if entry.kind == first.kind and rows + entry.rows <= self._batching.max_size:
                batch.append(entry)
                rows += entry.rows
        return batch

    def _send(self, batch: list[_Entry]) -> None:
        self._running += 1
        self._on_call(sum(entry.rows for entry in batch))
        component = self._step.component
        answered: asyncio.Future[Any]
        if component.is_async:
            answered = self._loop.create_task(asyncio.wait_for(self._call(batch), self._engine.deadline_s))
        elif component.blocks or self._engine.busy:
            answered = self._engine.run(lambda: finish(self._call(batch)))
        else:
            answered = self._loop.create_future()
            answered.set_result(finish(self._call(batch)))
        answered.add_done_callback(partial(self._finish_batch, batch))

    def _finish_batch(self, batch: list[_Entry], call: asyncio.Future[Any]) -> None:
        self._running -= 1
        error = None if call.cancelled() else call.exception()
        answers = call.result() if error is None and not call.cancelled() else [(None, error)] * len(batch)
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.future.done():
                entry.future.set_result(answer)
        self._dispatch()

    async def _call(self, batch: Sequence[_Entry]) -> list[tuple[Any, BaseException | None]]:
        """Answer all requests in one call, or each in its own if that fails. Waits only for asynchronous components."""
        begin = perf_counter()
        try:
            results = split_rows(await self._call_rows(batch), [entry.rows for entry in batch])
            self._record_cost(batch, begin)
        except BaseException as error:  # a component may raise anything
            if self._step.component.is_async and isinstance(error, asyncio.CancelledError):
                raise
            if len(batch) == 1:
                batch[0].walk.durations.append((self._step.name, perf_counter() - begin))
                return [(None, make_component_problem(self._step.who, error))]
            if isinstance(error, ValueError) and str(error).endswith(_WRONG_ROW_COUNT) and not self._alone:
                self._alone = True
                _log.warning("%s: %s; its requests are no longer batched", self._step.who, error)
            return [(None, None) if entry.future.done() else (await self._call([entry]))[0] for entry in batch]
        return [(result, None) for result in results]

    async def _call_rows(self, batch: Sequence[_Entry]) -> Any:
        """Call the component, in pieces for a request with more rows than one call may have."""
        component, names, most = self._step.component, batch[0].names, self._batching.max_size
        meta = batch[0].walk.meta if len(batch) == 1 else {}
        value = join_rows([entry.value for entry in batch])
        pieces = [value]
        if len(batch) == 1 and batch[0].kind is not None and batch[0].rows > most:
            whole, rest = divmod(batch[0].rows, most)
            pieces = split_rows(value, [most] * whole + [rest] * bool(rest))
        results = []
        for piece in pieces:
            result = component.call(piece, names, meta)
            results.append(await result if component.is_async else result)
        return join_rows(results)

    def _record_cost(self, batch: Sequence[_Entry], begin: float) -> None:
        """Record the cost of a call with the first of its requests, and its tags and metrics with all."""
        batch[0].walk.durations.append((self._step.name, perf_counter() - begin))
        if self._step.component.tags is None and self._step.component.metrics is None:
            return
        extras = GraphTraversal()
        take_extras(self._step, extras)
        batch[0].walk.metrics += extras.metrics
        for entry in batch:
            entry.walk.tags.update(extras.tags)
