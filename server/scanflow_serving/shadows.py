"""Shadow revisions: get a copy of requests after the client has its response, which is compared with theirs."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from scanflow_serving.calls import ServingCall, are_equal, to_outputs
from scanflow_serving.component_graph import GraphTraversal, Outcome, finish
from scanflow_serving.component_threads import Engine
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.revisions import LoadedRevision, Revisions
from scanflow_serving.serving_metrics import Metrics

_WAITING: Final = 16
"""The most copies that wait for a shadow; further ones are dropped and counted."""

_WAITING_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of waiting copies."""


class Shadows:
    """The thread of shadow revisions, which no client waits for, and its results."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: Metrics, *, deadline_s: float) -> None:
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._bytes = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self.engine = Engine(loop, threads=0, queue=_WAITING, deadline_s=deadline_s, name="shadow")

    def send(self, call: ServingCall, revisions: Revisions) -> None:
        if not self.engine.workers:
            self.engine.grow(1)
        size = sum(tensor.data.nbytes for tensor in call.inputs or ())
        for loaded in revisions.shadows:
            # A hanging shadow gets no more requests, as its counts show.
            if self.engine.unhealthy or self.engine.in_flight >= _WAITING or self._bytes + size > _WAITING_BYTES:
                self._count_comparison(loaded, "dropped")
                continue
            self.engine.in_flight += 1
            self._bytes += size
            loaded.in_flight += 1
            task = asyncio.ensure_future(self._compare(call, loaded, size, revisions))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _compare(self, call: ServingCall, loaded: LoadedRevision, size: int, revisions: Revisions) -> None:
        walk, began, graph = GraphTraversal(dict(call.walk.meta), checked=call.walk.checked), monotonic(), loaded.graph
        status, outcome = 200, "failed"

        def work() -> bool:
            return is_equal(finish(graph.walk(call.copy_value(), call.names, walk)))

        def is_equal(answer: Outcome) -> bool:
            return are_equal(to_outputs(answer), call.get_outputs())

        try:
            async with asyncio.timeout(self._deadline_s):
                if graph.waits:
                    same = is_equal(await graph.walk(call.copy_value(), call.names, walk, loaded.invoke))
                else:
                    same = await self.engine.run(work)
            outcome = "equal" if same else "different"
        except Exception as error:  # noqa: BLE001 - a shadow may fail in any way, and is only counted
            if isinstance(error, TimeoutError):
                self.engine.check_workers()
            status = (
                error.status if isinstance(error, ProblemError) else 504 if isinstance(error, TimeoutError) else 500
            )
        finally:
            self.engine.in_flight -= 1
            self._bytes -= size
            revisions.release(loaded)
        loaded.count(walk)
        loaded.meter.count_response(status, monotonic() - began)
        self._count_comparison(loaded, outcome)

    def _count_comparison(self, loaded: LoadedRevision, outcome: str) -> None:
        loaded.compared[outcome] += 1
        self._metrics.count("scanflow_shadow", revision=loaded.id, outcome=outcome)
