"""What an instance answers: the table of its paths, and the way of a request through it.

Everything here runs on the loop. Paths are looked up in a dictionary that is made anew when revisions change.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote

from scanflow.errors import ScanflowError
from scanflow.wire import Desired, InstanceSpec
from scanflow_serving import documents, seldon
from scanflow_serving.calls import LARGE, Call, InferCall, OipCall, SeldonCall
from scanflow_serving.engine import Engine, Job
from scanflow_serving.graph import Graph
from scanflow_serving.messages import InferRequest, InferResponse, Reply, Request, Response
from scanflow_serving.meters import Meters
from scanflow_serving.problems import Problem, not_found
from scanflow_serving.recorder import Recorder
from scanflow_serving.revisions import Chooser, Loaded, Revisions
from scanflow_serving.shadows import Shadows
from scanflow_serving.watch import Watch

__all__ = ["Application"]

_MODELS: Final = "/v2/models/"
_LOADING_SWITCH_S: Final = 0.0002
"""While a model is loaded its thread gives way to requests this soon; Python's own default is 5 ms."""

_log = logging.getLogger(__name__)
Handler = Callable[[Request, Reply], None]


class Target:
    """A name that requests are sent to: the whole graph, or one node; with or without a version."""

    __slots__ = ("chooser", "name", "node")

    def __init__(self, name: str, node: str | None, chooser: Chooser[Loaded]) -> None:
        self.name = name
        self.node = node
        self.chooser = chooser

    def graph(self, loaded: Loaded) -> Graph:
        """Return what a request goes through."""
        return loaded.graph if self.node is None else loaded.alone[self.node]

    def version(self, loaded: Loaded) -> str:
        """Return the version that answers: a registered model's own, else the revision."""
        return (loaded.components[self.node].version if self.node else "") or loaded.id


class Application:
    """One instance: what it serves, and to whom."""

    def __init__(
        self,
        spec: InstanceSpec,
        *,
        loop: asyncio.AbstractEventLoop,
        on_unhealthy: Callable[[], None] | None = None,
    ) -> None:
        """``on_unhealthy`` is called when too many threads hang and the process should be replaced."""
        limits = spec.limits
        self._spec = spec
        self._loop = loop
        self._limits = limits
        self.meters = Meters(spec.metrics, spec.service)
        self.engine = Engine(
            loop,
            threads=limits.concurrency,
            queue=limits.queue,
            deadline_s=limits.deadline_s,
            on_unhealthy=on_unhealthy,
        )
        self.shadows = Shadows(loop, self.meters, deadline_s=limits.deadline_s)
        self.revisions = Revisions(
            loop,
            self.engine,
            self.shadows.engine,
            self.meters,
            service=spec.service,
            threads=documents.threads_of(spec),
            deadline_s=limits.deadline_s,
        )
        self.recorder = (
            Recorder(spec.recording, recorded=self.meters.recorded, dropped=self.meters.dropped)
            if spec.recording is not None and spec.recording.fraction > 0
            else None
        )
        self._instance = ("x-scanflow-instance", spec.instance)
        self._headers: dict[str, tuple[tuple[str, str], ...]] = {"": (self._instance,)}
        self._nobody = self.meters.revision("")
        self._watch = Watch(loop, self.engine, self.meters)
        self._targets: dict[tuple[str, str], Target] = {}
        self._closed = False
        self.draining = False
        """Set by whoever drains: readiness is false then; what still comes is answered."""

        folder = str(Path(spec.app_dir).resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        self._routes: dict[str, dict[str, Handler]] = {}
        self._build_routes()

    # -- what the program asks for

    def ready(self) -> bool:
        """Whether requests can be answered, and should be sent here."""
        serving = self.revisions.chooser is not None
        return serving and not (self._closed or self.draining or self.engine.unhealthy or self._watch.unwell)

    def live(self) -> bool:
        """Whether the process is of use."""
        return not (self._closed or self.engine.unhealthy)

    def state(self) -> dict[str, Any]:
        """Return how the instance is, for its supervisor."""
        self._watch.publish()
        return documents.state(self, self._watch)

    async def apply(self, desired: Desired) -> None:
        """Load and warm what is new, switch to it, and unload the rest; what fails changes nothing.

        Raises:
            ScanflowError: what failed, and why.
        """
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _LOADING_SWITCH_S))
        try:
            changed = await self.revisions.apply(desired)
        except ScanflowError as error:
            _log.warning("revisions of generation %d cannot be served: %s", desired.generation, error)
            raise
        finally:
            sys.setswitchinterval(before)
        if changed:
            self._build_routes()
            self._watch.look_after(self.revisions.loaded.values())
            documents.pin_workers(self._spec, self.engine)

    async def close(self) -> None:
        """Stop the workers, and write what is still to be recorded."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        await self.engine.close()
        await self.shadows.engine.close()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)
        self.meters.close()

    # -- requests

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request, now or later, exactly once. Never raises."""
        try:
            methods = self._routes.get(request.path)
            handler = methods.get(request.method) if methods is not None else None
            if handler is None:
                handler = self._search(request)
            handler(request, reply)
        except Problem as problem:
            self._refuse(problem, reply)
        except Exception as error:  # noqa: BLE001 - the loop's edge: whatever is wrong here, the caller gets an answer
            self._refuse(_defect(error), reply)

    async def infer(self, model: str, version: str, request: InferRequest, deadline_s: float) -> InferResponse:
        """Answer an inference that came by another way than HTTP.

        Raises:
            Problem: it cannot be answered.
        """
        target = self._targets.get((model, version))
        if target is None:
            raise self._unknown(model, version)
        answered: asyncio.Future[InferResponse] = self._loop.create_future()

        def reply(result: Any) -> None:
            if answered.done():
                return
            if isinstance(result, InferResponse):
                answered.set_result(result)
            else:
                answered.set_exception(result)

        began = monotonic()
        self.engine.admit()
        loaded = target.chooser.pick()
        graph, named = target.graph(loaded), target.version(loaded)
        call = InferCall(loaded, graph, request, began, label=target.name, version=named, infer=request)
        call.read()
        self._start(call, min(deadline_s, self._allowed(request.timeout_s)), reply, shadowed=target.node is None)
        return await answered

    def _infer(self, target: Target, request: Request, reply: Reply) -> None:
        began = monotonic()
        self.engine.admit()
        loaded = target.chooser.pick()
        call = OipCall(
            loaded,
            target.graph(loaded),
            request,
            began,
            label=target.name,
            version=target.version(loaded),
            headers=self._headers[loaded.id],
            allow_nan=self._limits.allow_nan,
        )
        if len(request.body) > LARGE:
            self._start_unread(call, reply, shadowed=target.node is None)
            return
        try:
            call.read()
        except Problem as problem:
            self._refuse(problem, reply, loaded, began)
            return
        assert call.infer is not None
        self._start(call, self._allowed(call.infer.timeout_s), reply, shadowed=target.node is None)

    def _predict(self, target: Target, request: Request, reply: Reply) -> None:
        began = monotonic()
        self.engine.admit()
        loaded = target.chooser.pick()
        call = SeldonCall(
            loaded,
            target.graph(loaded),
            request,
            began,
            headers=self._headers[loaded.id],
            allow_nan=self._limits.allow_nan,
        )
        if len(request.body) > LARGE:
            self._start_unread(call, reply, shadowed=True)
            return
        try:
            call.read()
        except Problem as problem:
            self._refuse(problem, reply, loaded, began)
            return
        self._start(call, self._limits.deadline_s, reply, shadowed=True)

    def _allowed(self, timeout_s: float | None) -> float:
        return self._limits.deadline_s if timeout_s is None else min(timeout_s, self._limits.deadline_s)

    def _start(self, call: Call, allowed_s: float, reply: Callable[[Any], None], *, shadowed: bool) -> None:
        """Let the engine have a request that was read."""
        shadowed = shadowed and bool(self.revisions.shadows)
        recorded = self._retain(call, shadowed=shadowed)
        self._enter(call, call.work, partial(self._on_loop, call), allowed_s, reply, recorded, shadowed)

    def _start_unread(self, call: Call, reply: Reply, *, shadowed: bool) -> None:
        """Let the engine have a request that is large: a worker reads it, too."""
        shadowed = shadowed and bool(self.revisions.shadows)
        recorded = False

        def read() -> None:
            nonlocal recorded
            call.read()
            recorded = self._retain(call, shadowed=shadowed)

        def work() -> Any:
            read()
            return call.work()

        async def walk(job: Job) -> Any:
            await self.engine.hop(read, job)
            return await call.on_loop(job, self.engine)

        self._enter(call, work, walk, self._limits.deadline_s, reply, lambda: recorded, shadowed)

    def _retain(self, call: Call, *, shadowed: bool) -> bool:
        """Keep what was sent, if it is to be recorded or shown to a shadow; return whether it is to be recorded."""
        recorded = self.recorder is not None and self.recorder.wants(call.sent())
        if recorded or shadowed:
            call.retain()
        return recorded

    def _on_loop(self, call: Call, job: Job) -> Any:
        return call.on_loop(job, self.engine)

    def _enter(
        self,
        call: Call,
        work: Callable[[], Any],
        walk: Callable[[Job], Any],
        allowed_s: float,
        reply: Callable[[Any], None],
        recorded: bool | Callable[[], bool],
        shadowed: bool,  # noqa: FBT001
    ) -> None:
        call.loaded.in_flight += 1
        done = partial(self._done, call, reply, recorded, shadowed)
        if call.graph.waits:
            self.engine.start_async(walk, done, allowed_s=allowed_s, holder=call.holder)
        else:
            self.engine.start(work, done, allowed_s=allowed_s, holder=call.holder)
