"""Shadow revisions: they get a copy of requests after the caller has an answer, and theirs are compared with it."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, Final

from scanflow_serving.calls import Call, as_outputs, equal_answers
from scanflow_serving.engine import Engine, Job
from scanflow_serving.graph import Outcome, Walk, finish
from scanflow_serving.meters import Meters
from scanflow_serving.problems import Problem
from scanflow_serving.revisions import Loaded, Revisions

__all__ = ["Shadows"]

_WAITING: Final = 16
"""Most copies that wait for a shadow; the next is dropped, and counted."""

_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of them."""


class Shadows:
    """One thread that no caller waits for, and what it found."""

    def __init__(self, loop: asyncio.AbstractEventLoop, meters: Meters, *, deadline_s: float) -> None:
        self._meters = meters
        self._deadline_s = deadline_s
        self._bytes = 0
        self.engine = Engine(loop, threads=0, queue=_WAITING, deadline_s=deadline_s, name="shadow")

    def show(self, call: Call, revisions: Revisions) -> None:
        """Let each shadow answer what was answered; on the loop, at once and without waiting."""
        if not self.engine.workers:
            self.engine.grow(1)
        size = sum(one.data.nbytes for one in call.inputs or ())
        for loaded in revisions.shadows:
            # One that hangs is asked no more, and whoever looks at the figures sees it.
            if self.engine.unhealthy or self.engine.in_flight >= _WAITING or self._bytes + size > _WAITING_BYTES:
                self._compared(loaded, "dropped")
            else:
                self._start(call, loaded, size, revisions)

    def _start(self, call: Call, loaded: Loaded, size: int, revisions: Revisions) -> None:
        names, began = call.names, monotonic()
        walk = Walk(dict(call.walk.meta), checked=call.walk.checked)
        loaded.in_flight += 1
        self._bytes += size

        def compare(outcome: Outcome) -> bool:
            return equal_answers(as_outputs(outcome), call.outputs())

        def done(equal: Any, error: BaseException | None) -> None:
            revisions.left(loaded)
            self._bytes -= size
            loaded.count(walk)
            status = 200 if error is None else error.status if isinstance(error, Problem) else 500
            loaded.meter.answered(status, monotonic() - began)
            self._compared(loaded, "failed" if error is not None else "equal" if equal else "different")

        async def on_loop(job: Job) -> bool:
            return compare(await loaded.graph.walk(call.copy_of_value(), names, walk, loaded.invoke(job)))

        def work() -> bool:
            return compare(finish(loaded.graph.walk(call.copy_of_value(), names, walk)))

        if loaded.graph.waits:
            self.engine.start_async(on_loop, done, allowed_s=self._deadline_s)
        else:
            self.engine.start(work, done, allowed_s=self._deadline_s)

    def _compared(self, loaded: Loaded, outcome: str) -> None:
        loaded.compared[outcome] += 1
        self._meters.compared(loaded.id, outcome)
