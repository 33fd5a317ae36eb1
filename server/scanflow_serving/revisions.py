"""Revisions of a graph side by side in one instance: their shares of the traffic, and the switch to a new set. Equal
nodes of two revisions are loaded once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow.instance_messages import DesiredInstanceState, Node, Revision, encode
from scanflow_serving.batching import Batcher
from scanflow_serving.component_graph import (
    Graph,
    GraphStep,
    GraphTraversal,
    Invoke,
    call_now,
    sort_levels,
    take_extras,
)
from scanflow_serving.component_threads import Engine
from scanflow_serving.components import Component, load_component, make_component_problem
from scanflow_serving.copies import isolate
from scanflow_serving.instance_gpu import free_dropped_memory, has_device
from scanflow_serving.serving_metrics import Metrics, RevisionMetrics

LOAD_S: Final = 600.0
"""The timeout of loading and warming up, in seconds."""

DROP_S: Final = 1.0
"""After so long nothing refers to a revision whose last request was answered, mostly."""

DROP_TRIES: Final = 5

_log = logging.getLogger(__name__)


class Weighted(Protocol):
    id: str
    weight: float


_W = TypeVar("_W", bound=Weighted)


class WeightedChooser(Generic[_W]):
    """Distributes requests by weight, evenly: after n of them, each has its share of n within one (of two revisions).

    Smooth weighted round robin: each earns its weight per turn; the one with the most is chosen and pays the total.
    """

    def __init__(self, choices: Iterable[_W], before: WeightedChooser[_W] | None = None) -> None:
        """``before``: the previous chooser; choices in both keep their credit."""
        all_choices = list(choices)
        earned: dict[str, float] = {} if before is None else before._earned
        self.choices = [choice for choice in all_choices if choice.weight > 0] or all_choices
        self._total = sum(choice.weight for choice in self.choices)
        self._earned: dict[str, float] = {choice.id: earned.get(choice.id, 0.0) for choice in self.choices}
        self._only = self.choices[0] if len(self.choices) == 1 else None

    def pick(self) -> _W:
        if self._only is not None:
            return self._only
        earned = self._earned
        best, most = self.choices[0], float("-inf")
        for choice in self.choices:
            earned[choice.id] = now = earned[choice.id] + choice.weight
            if now > most:
                best, most = choice, now
        earned[best.id] -= self._total
        return best


def make_share_key(node: Node) -> bytes:
    """Return the key of a node: nodes of the same key share one loaded component."""
    return encode(replace(node, parents=(), batching=None))


class LoadedRevision:
    def __init__(self, revision: Revision, components: Sequence[Component], metrics: Metrics) -> None:
        self.id = revision.id
        self.revision = revision
        self.weight = revision.weight
        self.shadow = revision.shadow
        self.components = {component.name: component for component in components}
        self.in_flight = 0
        self.response_count = 0
        self.retired = False
        self.meter = RevisionMetrics(metrics, revision.id)
        self.nodes = {node.name: self.meter.make_node_metrics(node.name) for node in revision.nodes}
        self.graph = Graph(revision.nodes, components)
        self.alone = {
            node.name: Graph([node], [component], alone=True)
            for node, component in zip(revision.nodes, components, strict=True)
        }
        self.invoke: Invoke
        self.compared: dict[str, int] = {"equal": 0, "different": 0, "failed": 0, "dropped": 0}
        """The results of comparing a shadow's answers with those of clients."""

    def bind(self, engine: Engine) -> None:
        batchers = {
            step.name: Batcher(step, engine, called=self.nodes[step.name].rows.observe)
            for step in self.graph.steps
            if step.node.batching is not None
        }
        self.invoke = _invoke_on_loop(engine, batchers)

    def count(self, walk: GraphTraversal) -> None:
        nodes, failed = self.nodes, walk.failed
        for name, seconds in tuple(walk.durations):
            if name == failed:
                nodes[name].failed.value += 1
            else:
                nodes[name].seconds.observe(seconds)


def _invoke_on_loop(engine: Engine, batchers: dict[str, Batcher]) -> Invoke:
    """Return the function by which a walk on the loop calls a node: in a batch, on the loop, or in a worker."""

    async def invoke(step: GraphStep, value: Any, names: Any, walk: GraphTraversal) -> Any:
        batcher = batchers.get(step.name)
        if batcher is not None:
            return await batcher.call(value, names, walk)
        if not step.component.is_async:
            if step.component.blocks or engine.busy:
                return await engine.run(lambda: call_now(step, value, names, walk))
            return call_now(step, value, names, walk)
        begin = perf_counter()
        try:
            result = isolate(await step.component.call(value, names, walk.copy_meta()))
            take_extras(step, walk)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a component may raise anything, and must not end the loop
            walk.failed = step.name
            raise make_component_problem(step.who, error) from error
        finally:
            walk.durations.append((step.name, perf_counter() - begin))
        return result

    return invoke


class Revisions:
    def __init__(self, engine: Engine, shadows: Engine, metrics: Metrics, *, threads: int) -> None:
        """``shadows``: the engine of shadow revisions, so that no client waits for one."""
        self._engine = engine
        self._shadow_engine = shadows
        self._metrics = metrics
        self._threads = threads
        self._lock = asyncio.Lock()
        self._emptied = asyncio.Event()
        self.generation = -1
        self.loaders: set[int] = set()
        """The ids of the loader threads."""

        self.loaded: dict[str, LoadedRevision] = {}
        self.retiring: list[LoadedRevision] = []
        self.chooser: WeightedChooser[LoadedRevision] | None = None
        self.shadows: list[LoadedRevision] = []

    async def apply(self, desired: DesiredInstanceState) -> bool:
        """Load and warm up new revisions, then switch; return whether anything was done. A failure changes nothing."""
        async with self._lock:
            if desired.generation < self.generation:
                return False
            _check_revisions(desired)
            fresh = [revision for revision in desired.revisions if not self._has(revision)]
            newly_loaded = await self._load(fresh, desired) if fresh else {}
            await self._drain_promotions(desired)
            self._switch(desired, newly_loaded)
            return True

    def _has(self, revision: Revision) -> bool:
        """Whether a revision is loaded as desired; a shadow may be promoted, but not the reverse."""
        there = self.loaded.get(revision.id)
        return there is not None and there.revision.nodes == revision.nodes and (there.shadow or not revision.shadow)

    async def _load(self, fresh: Sequence[Revision], desired: DesiredInstanceState) -> dict[str, LoadedRevision]:
        """Load revisions in a separate thread, without blocking requests."""
        components = self._collect_shareable(desired)
        loading: concurrent.futures.Future[None] = concurrent.futures.Future()
        loading.set_running_or_notify_cancel()

        def work() -> None:
            self.loaders.add(threading.get_native_id())
            try:
                for revision in fresh:
                    for node in revision.nodes:
                        if (key := (make_share_key(node), revision.shadow)) not in components:
                            components[key] = load_component(node, threads=self._threads, run_async=self._run_async)
                loading.set_result(None)
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                is_exception = isinstance(error, Exception)
                loading.set_exception(error if is_exception else UsageError(f"It ended with {error!r}."))

        threading.Thread(target=work, name="scanflow-loader", daemon=True).start()
        try:
            await asyncio.wait_for(asyncio.wrap_future(loading), LOAD_S)
        except TimeoutError as error:
            raise UnavailableError(f"Loading took longer than {LOAD_S:g} s and was abandoned.") from error
        return {
            revision.id: LoadedRevision(
                revision, [components[make_share_key(node), revision.shadow] for node in revision.nodes], self._metrics
            )
            for revision in fresh
        }

    def _run_async(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._engine.loop).result(LOAD_S)

    def _collect_shareable(self, desired: DesiredInstanceState) -> dict[tuple[bytes, bool], Component]:
        """Return the loaded components by their share key and whether only a shadow uses them."""
        shadow = {revision.id: revision.shadow for revision in desired.revisions}
        return {
            (make_share_key(node), loaded.shadow and shadow.get(loaded.id, True)): loaded.components[node.name]
            for loaded in self.loaded.values()
            for node in loaded.revision.nodes
        }

    async def _drain_promotions(self, desired: DesiredInstanceState) -> None:
        """Wait until promoted shadows have finished on their own thread: components are not called concurrently."""
        serving = [
            self.loaded[revision.id] for revision in desired.revisions if not revision.shadow and self._has(revision)
        ]
        promoted = [loaded for loaded in serving if loaded.shadow]
        self.shadows = [loaded for loaded in self.shadows if loaded not in promoted]
        try:
            async with asyncio.timeout(self._engine.deadline_s):
                while any(loaded.in_flight for loaded in promoted):
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            _log.warning("A promoted shadow is still being called.")

    def _switch(self, desired: DesiredInstanceState, newly_loaded: dict[str, LoadedRevision]) -> None:
        before = self.loaded
        self.loaded = {}
        for revision in desired.revisions:
            loaded = newly_loaded.get(revision.id) or before[revision.id]
            loaded.weight = revision.weight
            if revision.id in newly_loaded or loaded.shadow != revision.shadow:
                loaded.shadow = revision.shadow
                loaded.bind(self._shadow_engine if revision.shadow else self._engine)
            loaded.revision = revision
            self.loaded[revision.id] = loaded
        serving = [loaded for loaded in self.loaded.values() if not loaded.shadow]
        self.chooser = WeightedChooser(serving, self.chooser) if serving else None
        self.shadows = [loaded for loaded in self.loaded.values() if loaded.shadow]
        self.generation = desired.generation
        for old in before.values():
            if self.loaded.get(old.id) is not old:
                old.retired = True
                self.retiring.append(old)
                self.release(old, 0)

    def release(self, loaded: LoadedRevision, count: int = 1) -> None:
        """Record the end of requests to a revision; a replaced one is dropped with its last request."""
        loaded.in_flight -= count
        if loaded.in_flight:
            return
        self._emptied.set()
        if loaded.retired and loaded in self.retiring:
            self.retiring.remove(loaded)
            gc.unfreeze()  # its models may be part of cycles that were frozen at the start
            if has_device():
                _free_later(self._engine.loop, weakref.ref(loaded))


def _free_later(loop: asyncio.AbstractEventLoop, dropped: weakref.ref[LoadedRevision], tries: int = DROP_TRIES) -> None:
    """Give back the device memory of a revision; again, where something may have referred to it still, as its last
    caller."""

    def free() -> None:
        was_there = dropped() is not None
        free_dropped_memory()
        if was_there and tries > 1:
            with suppress(RuntimeError):  # the loop has ended, and soon the process
                loop.call_soon_threadsafe(_free_later, loop, dropped, tries - 1)

    loop.call_later(DROP_S, threading.Thread(target=free, name="scanflow-unloader", daemon=True).start)


def _check_revisions(desired: DesiredInstanceState) -> None:
    ids = [revision.id for revision in desired.revisions]
    if len(set(ids)) < len(ids):
        raise InvalidError("Two revisions have the same id.")
    serving = [revision for revision in desired.revisions if not revision.shadow]
    if desired.revisions and not serving:
        raise InvalidError("All revisions are shadows: none would respond.")
    if any(not 0 <= revision.weight < float("inf") for revision in desired.revisions):
        raise InvalidError("A revision's weight should be a number from 0 to 1.")
    if serving and not any(revision.weight > 0 for revision in serving):
        raise InvalidError("All revisions have the weight 0: none would respond.")
    for revision in desired.revisions:
        sort_levels(revision.nodes)
