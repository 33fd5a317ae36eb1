"""Adaptive batching: requests that wait for the same node are answered in one call.

:func:`compute_pause_s` decides, and is pure; :class:`Batcher` queues requests and sends batches. A request waits only
while another is likely to arrive: when requests come one at a time there is no delay, whatever ``max_delay`` allows.

No request is stacked with another, or cut, before a trial has shown that the component answers each row as if it came
alone; until then, and for good if it does not, each is called by itself. A class says it by ``row_wise`` instead.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final

from msgspec import Struct

from scanflow.instance_messages import BatchingOptions
from scanflow_serving.component_graph import GraphStep, GraphTraversal, finish, take_extras
from scanflow_serving.component_threads import Engine
from scanflow_serving.components import METHODS_BY_ROLE, PARAMETERS, Component, make_component_problem
from scanflow_serving.copies import isolate
from scanflow_serving.rows import (
    WRONG_ROW_COUNT,
    are_rows_independent,
    check_rows,
    find_other_row,
    join_rows,
    measure_rows,
    split_rows,
    take_rows,
)

_WEIGHT: Final = 0.2
_LIKELY: Final = 0.4
_PATIENCE: Final = 3.0
_MOST_KINDS: Final = 64
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


class _Entry(Struct, eq=False):
    """A waiting request."""

    value: Any
    names: Any
    walk: GraphTraversal
    came: float
    future: asyncio.Future[tuple[Any, Any]]
    rows: int = 1
    kind: Any = None
    """What it shares with those that can be stacked with it; None: it is called alone."""

    batch: list[_Entry] = []
    """Those of its call."""

    tried: bool = False
    """Whether a trial was begun for it, for which a request that is too large for one call waits once."""

    may_be_cut: bool = False


class Batcher:
    def __init__(
        self,
        step: GraphStep,
        engine: Engine,
        *,
        called: Callable[[int], None] = lambda _rows: None,
        traffic: Traffic = QUIET,
    ) -> None:
        """``called`` gets the number of rows of each call, on the loop. ``traffic``: the arrivals until now."""
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
        self._traffic = traffic
        self._timer: asyncio.TimerHandle | None = None
        row_wise = getattr(step.component.subject, "row_wise", None)
        self._trusted = row_wise is True
        self._alone = row_wise is False
        """Whether an answer depends on more than its own row, so that each request needs a call of its own."""

        self._proved: dict[object, Any] = {}
        """The kinds that a trial has shown to be row-wise: True, or the only row of which that is known."""

        self._trials: dict[object, asyncio.Task[None]] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        """The calls of asynchronous components, by the id of their batch."""

        self._reads_meta = _reads_meta(step.component)

    async def call(self, value: Any, names: Any, walk: GraphTraversal) -> Any:
        now = monotonic()
        self._traffic = update_traffic(
            self._traffic, now - self._last if self._here else None, max_delay_s=self._batching.max_delay_s
        )
        self._last = now
        self._here += 1
        entry = _Entry(value, names, walk, now, self._loop.create_future())
        if (layout := measure_rows(value)) and not self._has_parameters(walk):
            meta = repr(walk.meta) if self._reads_meta else ""
            entry.rows, entry.kind = layout[0], (layout[1], tuple(names or ()), meta)
        self._waiting.append(entry)
        try:
            self._dispatch()
            result, error = await entry.future
        except asyncio.CancelledError:
            call = self._calls.get(id(entry.batch))
            if call is not None and all(other.future.done() for other in entry.batch):
                call.cancel()
            raise
        finally:
            self._here -= 1
        if error is not None:
            walk.failed = self._step.name
            raise error
        return result

    def _has_parameters(self, walk: GraphTraversal) -> bool:
        """Whether a request has parameters for a registered model, which no other request shares."""
        return self._step.component.node.model is not None and PARAMETERS in walk.meta

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
            batch = self._narrow(batch)
            if not batch:
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

    def _narrow(self, batch: list[_Entry]) -> list[_Entry]:
        """Return those of a batch that may be stacked as far as is known; none: a trial has to end first."""
        first, rows = batch[0], sum(entry.rows for entry in batch)
        is_large = first.rows > self._batching.max_size
        if first.kind is None or self._alone or not (len(batch) > 1 or is_large):
            return batch
        proved = True if self._trusted else self._proved.get(first.kind)
        if proved is True or not rows:
            first.may_be_cut = True
            return batch
        value = join_rows([entry.value for entry in batch])
        if proved is not None and find_other_row(join_rows([proved, value])) is None:
            first.may_be_cut = True
            return batch
        if first.kind not in self._trials:
            if first.tried:
                return [first]
            first.tried = True
            self._trials[first.kind] = self._loop.create_task(self._try(first, value))
        return [] if is_large else [first]

    async def _try(self, first: _Entry, value: Any) -> None:
        """Try whether rows may be stacked, beside the requests, which are called alone meanwhile."""
        component, names = self._step.component, first.names
        meta = first.walk.copy_meta() if self._reads_meta else {}

        async def call(rows: Any) -> tuple[Any, Any]:
            if component.is_async:
                calling = component.call(rows, names, meta)
                result = isolate(await asyncio.wait_for(calling, self._engine.deadline_s))
                return result, isolate(component.tags()) if component.tags is not None else None
            if component.blocks or self._engine.busy:
                return await self._engine.run(lambda: call_now(rows))  # type: ignore[no-any-return]
            return call_now(rows)

        def call_now(rows: Any) -> tuple[Any, Any]:
            result = isolate(component.call(rows, names, meta))
            return result, isolate(component.tags()) if component.tags is not None else None

        independent = await are_rows_independent(call, value, self._batching.max_size)
        del self._trials[first.kind]
        if independent:
            if len(self._proved) >= _MOST_KINDS:
                self._proved.clear()
            self._proved[first.kind] = True if find_other_row(value) else take_rows(value, [0])
        elif independent is False:
            self._end_batching("it answers rows together in another way than each alone")
        self._dispatch()

    def _end_batching(self, why: object) -> None:
        if not self._alone:
            self._alone = True
            _log.warning(
                "%s: %s, so its requests are no longer batched. Take 'batching' from its service; or, if each answer "
                "depends on its own row and on chance only, set row_wise = True in its class.",
                self._step.who,
                why,
            )

    def _send(self, batch: list[_Entry]) -> None:
        self._running += 1
        for entry in batch:
            entry.batch = batch
        self._on_call(sum(entry.rows for entry in batch))
        component = self._step.component
        answered: asyncio.Future[Any]
        if component.is_async:
            answered = self._loop.create_task(asyncio.wait_for(self._call(batch), self._engine.deadline_s))
            self._calls[id(batch)] = answered
        elif component.blocks or self._engine.busy:
            answered = self._engine.run(lambda: finish(self._call(batch)))
        else:
            answered = self._loop.create_future()
            answered.set_result(finish(self._call(batch)))
        answered.add_done_callback(partial(self._finish_batch, batch))

    def _finish_batch(self, batch: list[_Entry], call: asyncio.Future[Any]) -> None:
        self._running -= 1
        self._calls.pop(id(batch), None)
        error = None if call.cancelled() else call.exception()
        answers = call.result() if error is None and not call.cancelled() else [(None, error)] * len(batch)
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.future.done():
                entry.future.set_result(answer)
        self._dispatch()

    async def _call(self, batch: Sequence[_Entry]) -> list[tuple[Any, BaseException | None]]:
        """Answer all requests in one call, or each in its own if that fails. Waits only for asynchronous components.

        Those whose clients have gone since are left out.
        """
        live = [entry for entry in batch if not entry.future.done()]
        if len(live) < len(batch):
            answers = dict(zip(map(id, live), await self._call(live) if live else [], strict=True))
            return [answers.get(id(entry), (None, None)) for entry in batch]
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
            if isinstance(error, ValueError) and str(error).endswith(WRONG_ROW_COUNT):
                self._end_batching(error)
            return [(None, None) if entry.future.done() else (await self._call([entry]))[0] for entry in batch]
        return [(result, None) for result in results]

    async def _call_rows(self, batch: Sequence[_Entry]) -> Any:
        """Call the component, in pieces for a request with more rows than one call may have, if it may be cut."""
        first, most = batch[0], self._batching.max_size
        value = join_rows([entry.value for entry in batch])
        if len(batch) > 1 or first.kind is None:
            return await self._call_once(value, first, alone=len(batch) == 1)
        if first.rows > most and first.may_be_cut and not self._alone:
            whole, rest = divmod(first.rows, most)
            pieces = split_rows(value, [most] * whole + [rest] * bool(rest))
            results = [await self._call_once(piece, first) for piece in pieces]
            try:
                for piece, result in zip(pieces, results, strict=True):
                    check_rows(result, _count_rows(piece))
                return join_rows(results)
            except ValueError as error:
                self._end_batching(error)
        result = await self._call_once(value, first)
        if not self._alone:
            try:
                check_rows(result, first.rows)
            except ValueError as error:
                self._end_batching(error)
        return result

    async def _call_once(self, value: Any, first: _Entry, *, alone: bool = True) -> Any:
        component = self._step.component
        meta = first.walk.copy_meta() if alone or self._reads_meta else {}
        if component.is_async:
            return isolate(await component.call(value, first.names, meta))
        return isolate(component.call(value, first.names, meta))

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


def _count_rows(value: Any) -> int:
    layout = measure_rows(value)
    assert layout is not None
    return layout[0]


def _reads_meta(component: Component) -> bool:
    """Whether a component takes the metadata of a request, so that only requests with equal ones are stacked."""
    method = getattr(component.subject, METHODS_BY_ROLE[component.node.role], None)
    if method is None:
        return False
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (ValueError, TypeError):  # one written in C may have no signature
        return False
    return len(parameters) > 2 or any(
        parameter.name == "meta" or parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}
        for parameter in parameters
    )
