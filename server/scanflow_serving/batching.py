"""Adaptive batching: requests that wait for the same node are answered in one call.

:func:`pause` decides, and is pure; :class:`Batcher` keeps what waits and does what it says. Nobody waits for company
that is not likely to come: while requests come one at a time there is no delay at all, whatever ``max_delay`` allows.
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
from scanflow_serving.components import raised
from scanflow_serving.engine import Engine
from scanflow_serving.graph import GraphStep, Walk, finish, take_extras

_WEIGHT: Final = 0.2
_LIKELY: Final = 0.4
_PATIENCE: Final = 3.0
_NOT_ROWS: Final = "and not as many came out"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What recent arrivals were like."""

    company: float = 0.0
    """How likely it is, from 0 to 1, that another request comes while one is here."""

    gap_s: float = 0.0
    """The usual time between two that come together."""


QUIET: Final = Traffic()


def arrived(traffic: Traffic, since_last_s: float | None, *, max_delay_s: float) -> Traffic:
    """``since_last_s``: since the request before it came, if that one is still here; None: there is nobody."""
    if since_last_s is None or since_last_s > max_delay_s:
        return Traffic(traffic.company * (1 - _WEIGHT), traffic.gap_s)
    gap = since_last_s if traffic.company == 0.0 else traffic.gap_s + _WEIGHT * (since_last_s - traffic.gap_s)
    return Traffic(traffic.company + _WEIGHT * (1 - traffic.company), gap)


def pause(
    traffic: Traffic, batching: BatchingOptions, *, rows: int, oldest_s: float, newest_s: float, free: bool
) -> float | None:
    """Return how many seconds the requests that wait should wait on: 0, call now; None, until a thread is free.

    ``rows`` wait, of which the first has waited for ``oldest_s`` and the last for ``newest_s``.
    """
    if not free:
        return None
    left = batching.max_delay_s - oldest_s
    if rows >= batching.max_size or left <= 0 or traffic.company < _LIKELY:
        return 0.0
    return max(0.0, min(left, _PATIENCE * traffic.gap_s - newest_s))


def rows_of(value: Any) -> tuple[int, object] | None:
    """Return how many rows a value has, and what it must have in common with another to be stacked with it.

    None: it has no rows, and goes alone.
    """
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return None
        return value.shape[0], (value.dtype, value.shape[1:])
    if isinstance(value, dict) and value and all(isinstance(one, np.ndarray) and one.ndim for one in value.values()):
        counts = {one.shape[0] for one in value.values()}
        if len(counts) == 1:
            return counts.pop(), tuple((name, one.dtype, one.shape[1:]) for name, one in sorted(value.items()))
    return None


def split(result: Any, counts: Sequence[int]) -> list[Any]:
    """Return a result's rows dealt out again."""
    if len(counts) == 1:
        return [result]
    if isinstance(result, dict):
        parts = {name: split(one, counts) for name, one in result.items()}
        return [{name: parts[name][place] for name in parts} for place in range(len(counts))]
    if isinstance(result, tuple):
        columns = [split(one, counts) for one in result]
        return [tuple(column[place] for column in columns) for place in range(len(counts))]
    if not hasattr(result, "__len__") or isinstance(result, (str, bytes)) or len(result) != sum(counts):
        raise ValueError(f"{sum(counts)} rows went in, {_NOT_ROWS}")
    ends = np.cumsum(counts).tolist()
    return [result[end - count : end] for end, count in zip(ends, counts, strict=True)]


def join(results: Sequence[Any]) -> Any:
    """Return values of one kind, or the results of pieces of one request, as one: the rows of the first first."""
    first = results[0]
    if len(results) == 1:
        return first
    if isinstance(first, dict):
        return {name: join([one[name] for one in results]) for name in first}
    if isinstance(first, tuple):
        return tuple(join(parts) for parts in zip(*results, strict=True))
    if isinstance(first, list):
        return [item for one in results for item in one]
    return np.concatenate([np.asarray(one) for one in results])


class _Entry(Struct, eq=False):
    """A request that waits for the node."""

    value: Any
    names: Any
    walk: Walk
    came: float
    future: asyncio.Future[tuple[Any, Any]]
    rows: int = 1
    kind: object = None


class Batcher:
    def __init__(self, step: GraphStep, engine: Engine, *, called: Callable[[int], None] = lambda _rows: None) -> None:
        """``called`` is told how many rows each call had, on the loop."""
        assert step.node.batching is not None
        self._step = step
        self._batching = step.node.batching
        self._engine = engine
        self._loop = engine.loop
        self._called = called
        self._waiting: list[_Entry] = []
        self._running = 0
        self._here = 0
        self._last = 0.0
        self._traffic = QUIET
        self._timer: asyncio.TimerHandle | None = None
        self._alone = False
        """Whether its results cannot be dealt out, so that each request needs a call of its own."""

    async def call(self, value: Any, names: Any, walk: Walk) -> Any:
        now = monotonic()
        self._traffic = arrived(
            self._traffic, now - self._last if self._here else None, max_delay_s=self._batching.max_delay_s
        )
        self._last = now
        self._here += 1
        entry = _Entry(value, names, walk, now, self._loop.create_future())
        if found := rows_of(value):
            entry.rows, entry.kind = found[0], (found[1], tuple(names or ()))
        self._waiting.append(entry)
        try:
            self._look()
            result, error = await entry.future
        finally:
            self._here -= 1
        if error is not None:
            walk.failed = self._step.name
            raise error
        return result

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting = [entry for entry in self._waiting if not entry.future.done()]
        while self._waiting:
            batch = self._next_batch()
            now = monotonic()
            wait = pause(
                self._traffic,
                self._batching,
                rows=self._batching.max_size
                if batch[0].kind is None or self._alone
                else sum(one.rows for one in batch),
                oldest_s=now - self._waiting[0].came,
                newest_s=now - self._waiting[-1].came,
                free=self._running < self._engine.threads,
            )
            if wait is None:
                return
            if wait > 0:
                self._timer = self._loop.call_later(wait, self._look)
                return
            self._waiting = [entry for entry in self._waiting if entry not in batch]
            self._send(batch)

    def _next_batch(self) -> list[_Entry]:
        """Return those that go together with the one that waits longest, in order."""
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
        self._called(sum(entry.rows for entry in batch))
        component = self._step.component
        answered: asyncio.Future[Any]
        if component.is_async:
            answered = self._loop.create_task(asyncio.wait_for(self._call(batch), self._engine.deadline_s))
        elif component.blocks or self._engine.busy:
            answered = self._engine.run(lambda: finish(self._call(batch)))
        else:
            answered = self._loop.create_future()
            answered.set_result(finish(self._call(batch)))
        answered.add_done_callback(partial(self._done, batch))

    def _done(self, batch: list[_Entry], call: asyncio.Future[Any]) -> None:
        self._running -= 1
        error = None if call.cancelled() else call.exception()
        answers = call.result() if error is None and not call.cancelled() else [(None, error)] * len(batch)
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.future.done():
                entry.future.set_result(answer)
        self._look()

    async def _call(self, batch: Sequence[_Entry]) -> list[tuple[Any, BaseException | None]]:
        """Answer all in one call, or each in its own if that fails. Only asynchronous components make it wait."""
        begin = perf_counter()
        try:
            results = split(await self._call_rows(batch), [entry.rows for entry in batch])
            self._note(batch, begin)
        except BaseException as error:  # a component may raise anything
            if self._step.component.is_async and isinstance(error, asyncio.CancelledError):
                raise
            if len(batch) == 1:
                batch[0].walk.spent.append((self._step.name, perf_counter() - begin))
                return [(None, raised(self._step.who, error))]
            if isinstance(error, ValueError) and str(error).endswith(_NOT_ROWS) and not self._alone:
                self._alone = True
                _log.warning("%s: %s; its requests are no longer batched", self._step.who, error)
            return [(None, None) if entry.future.done() else (await self._call([entry]))[0] for entry in batch]
        return [(result, None) for result in results]

    async def _call_rows(self, batch: Sequence[_Entry]) -> Any:
        """Call the component, more than once for a single request that has more rows than one call may have."""
        component, names, most = self._step.component, batch[0].names, self._batching.max_size
        meta = batch[0].walk.meta if len(batch) == 1 else {}
        value = join([entry.value for entry in batch])
        pieces = [value]
        if len(batch) == 1 and batch[0].kind is not None and batch[0].rows > most:
            whole, rest = divmod(batch[0].rows, most)
            pieces = split(value, [most] * whole + [rest] * bool(rest))
        results = []
        for piece in pieces:
            result = component.call(piece, names, meta)
            results.append(await result if component.is_async else result)
        return join(results)

    def _note(self, batch: Sequence[_Entry], begin: float) -> None:
        """Note what a call cost with the first of its requests, and what the component says of it with all."""
        batch[0].walk.spent.append((self._step.name, perf_counter() - begin))
        if self._step.component.tags is None and self._step.component.metrics is None:
            return
        said = Walk()
        take_extras(self._step, said)
        batch[0].walk.metrics += said.metrics
        for entry in batch:
            entry.walk.tags.update(said.tags)
