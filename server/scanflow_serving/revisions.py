"""Revisions of a graph side by side in one instance: their shares of the traffic, and the switch from one set to the
next. What is the same in two of them is loaded once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow.wire import Desired, Node, Revision, encode
from scanflow_serving.batching import Batcher
from scanflow_serving.components import Component, load_component, raised
from scanflow_serving.engine import Engine
from scanflow_serving.graph import Graph, GraphStep, Invoke, Walk, call_now, in_order, take_extras
from scanflow_serving.metrics import Metrics, RevisionMetrics

LOAD_S: Final = 600.0
"""Longest that loading and warming up may take."""

_log = logging.getLogger(__name__)


class Weighted(Protocol):
    id: str
    weight: float


_W = TypeVar("_W", bound=Weighted)


class Chooser(Generic[_W]):
    """Deals requests out by weight, evenly: after n of them, each has its share of n to within one (of two revisions).

    Smooth weighted round robin: each earns its weight a turn, the one with most is chosen and pays the sum of all.
    """

    def __init__(self, choices: Iterable[_W], before: Chooser[_W] | None = None) -> None:
        """``before``: what was used until now; those that stay keep what they have earned."""
        every = list(choices)
        earned: dict[str, float] = {} if before is None else before._earned
        self.choices = [one for one in every if one.weight > 0] or every
        self._total = sum(one.weight for one in self.choices)
        self._earned: dict[str, float] = {one.id: earned.get(one.id, 0.0) for one in self.choices}
        self._only = self.choices[0] if len(self.choices) == 1 else None

    def pick(self) -> _W:
        if self._only is not None:
            return self._only
        earned = self._earned
        best, most = self.choices[0], float("-inf")
        for one in self.choices:
            earned[one.id] = now = earned[one.id] + one.weight
            if now > most:
                best, most = one, now
        earned[best.id] -= self._total
        return best


def share_key(node: Node) -> bytes:
    """Return what two nodes have in common that one loaded component can serve."""
    return encode(replace(node, parents=(), batching=None))


class Loaded:
    def __init__(self, revision: Revision, components: Sequence[Component], metrics: Metrics) -> None:
        self.id = revision.id
        self.revision = revision
        self.weight = revision.weight
        self.shadow = revision.shadow
        self.components = {component.name: component for component in components}
        self.in_flight = 0
        self.answered = 0
        self.retired = False
        self.meter = RevisionMetrics(metrics, revision.id)
        self.nodes = {node.name: self.meter.node(node.name) for node in revision.nodes}
        self.graph = Graph(revision.nodes, components)
        self.alone = {
            node.name: Graph([node], [component], alone=True)
            for node, component in zip(revision.nodes, components, strict=True)
        }
        self.invoke: Invoke
        self.compared: dict[str, int] = {"equal": 0, "different": 0, "failed": 0, "dropped": 0}
        """As a shadow: how its answers were, against those that callers got."""

    def bind(self, engine: Engine) -> None:
        batchers = {
            step.name: Batcher(step, engine, called=self.nodes[step.name].rows.observe)
            for step in self.graph.steps
            if step.node.batching is not None
        }
        self.invoke = _invoke_on_loop(engine, batchers)

    def count(self, walk: Walk) -> None:
        nodes, failed = self.nodes, walk.failed
        for name, seconds in tuple(walk.spent):
            if name == failed:
                nodes[name].failed.value += 1
            else:
                nodes[name].seconds.observe(seconds)


def _invoke_on_loop(engine: Engine, batchers: dict[str, Batcher]) -> Invoke:
    """Return how a walk on the loop calls a node: in a batch, on the loop itself, or by a worker."""

    async def invoke(step: GraphStep, value: Any, names: Any, walk: Walk) -> Any:
        batcher = batchers.get(step.name)
        if batcher is not None:
            return await batcher.call(value, names, walk)
        if not step.component.is_async:
            if step.component.blocks or engine.busy:
                return await engine.run(lambda: call_now(step, value, names, walk))
            return call_now(step, value, names, walk)
        begin = perf_counter()
        try:
            result = await step.component.call(value, names, walk.meta)
            take_extras(step, walk)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a component may raise anything, and must not end the loop
            walk.failed = step.name
            raise raised(step.who, error) from error
        finally:
            walk.spent.append((step.name, perf_counter() - begin))
        return result

    return invoke


class Revisions:
    def __init__(self, engine: Engine, shadows: Engine, metrics: Metrics, *, threads: int) -> None:
        """``shadows`` does the work of shadow revisions, so that no caller waits for one."""
        self._engine = engine
        self._shadow_engine = shadows
        self._metrics = metrics
        self._threads = threads
        self._lock = asyncio.Lock()
        self._emptied = asyncio.Event()
        self.generation = -1
        self.loaders: set[int] = set()
        """Ids of the threads that loaded."""

        self.loaded: dict[str, Loaded] = {}
        self.retiring: list[Loaded] = []
        self.chooser: Chooser[Loaded] | None = None
        self.shadows: list[Loaded] = []

    async def apply(self, desired: Desired) -> bool:
        """Load and warm what is new, then switch; return whether anything was done. What fails changes nothing."""
        async with self._lock:
            if desired.generation < self.generation:
                return False
            _check(desired)
            fresh = [one for one in desired.revisions if not self._has(one)]
            made = await self._load(fresh, desired) if fresh else {}
            await self._quieten(desired)
            self._switch(desired, made)
            return True

    def _has(self, revision: Revision) -> bool:
        """Whether it is loaded as it should be; a shadow may become one that answers, but not the other way round."""
        there = self.loaded.get(revision.id)
        return there is not None and there.revision.nodes == revision.nodes and (there.shadow or not revision.shadow)

    async def _load(self, fresh: Sequence[Revision], desired: Desired) -> dict[str, Loaded]:
        """Load in a thread of its own, which may take long and holds nobody up."""
        components = self._shareable(desired)
        loading: concurrent.futures.Future[None] = concurrent.futures.Future()
        loading.set_running_or_notify_cancel()

        def work() -> None:
            self.loaders.add(threading.get_native_id())
            try:
                for revision in fresh:
                    for node in revision.nodes:
                        if (key := (share_key(node), revision.shadow)) not in components:
                            components[key] = load_component(node, threads=self._threads, run_async=self._run_async)
                loading.set_result(None)
            except BaseException as error:  # noqa: BLE001 - it is told to whoever asked
                known = isinstance(error, Exception)
                loading.set_exception(error if known else UsageError(f"It ended with {error!r}."))

        threading.Thread(target=work, name="scanflow-loader", daemon=True).start()
        try:
            await asyncio.wait_for(asyncio.wrap_future(loading), LOAD_S)
        except TimeoutError as error:
            raise UnavailableError(f"Loading took longer than {LOAD_S:g} s and was given up.") from error
        return {
            one.id: Loaded(one, [components[share_key(node), one.shadow] for node in one.nodes], self._metrics)
            for one in fresh
        }

    def _run_async(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._engine.loop).result(LOAD_S)

    def _shareable(self, desired: Desired) -> dict[tuple[bytes, bool], Component]:
        """Return the components there are, by what they are and whether only a shadow uses them."""
        shadow = {one.id: one.shadow for one in desired.revisions}
        return {
            (share_key(node), loaded.shadow and shadow.get(loaded.id, True)): loaded.components[node.name]
            for loaded in self.loaded.values()
            for node in loaded.revision.nodes
        }

    async def _quieten(self, desired: Desired) -> None:
        """Let shadows that are to answer finish on their own thread first: no component is called twice at once."""
        asked = [self.loaded[one.id] for one in desired.revisions if not one.shadow and self._has(one)]
        promoted = [one for one in asked if one.shadow]
        self.shadows = [one for one in self.shadows if one not in promoted]
        try:
            async with asyncio.timeout(self._engine.deadline_s):
                while any(one.in_flight for one in promoted):
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            _log.warning("A shadow that is to answer is still called.")

    def _switch(self, desired: Desired, made: dict[str, Loaded]) -> None:
        before = self.loaded
        self.loaded = {}
        for revision in desired.revisions:
            loaded = made.get(revision.id) or before[revision.id]
            loaded.weight = revision.weight
            if revision.id in made or loaded.shadow != revision.shadow:
                loaded.shadow = revision.shadow
                loaded.bind(self._shadow_engine if revision.shadow else self._engine)
            loaded.revision = revision
            self.loaded[revision.id] = loaded
        serving = [one for one in self.loaded.values() if not one.shadow]
        self.chooser = Chooser(serving, self.chooser) if serving else None
        self.shadows = [one for one in self.loaded.values() if one.shadow]
        self.generation = desired.generation
        for old in before.values():
            if self.loaded.get(old.id) is not old:
                old.retired = True
                self.retiring.append(old)
                self.left(old, 0)

    def left(self, loaded: Loaded, count: int = 1) -> None:
        """Note that a request is through with a revision; one that was replaced goes with its last."""
        loaded.in_flight -= count
        if loaded.in_flight:
            return
        self._emptied.set()
        if loaded.retired and loaded in self.retiring:
            self.retiring.remove(loaded)
            gc.unfreeze()  # its models may be part of cycles that were set apart when the instance began


def _check(desired: Desired) -> None:
    ids = [one.id for one in desired.revisions]
    if len(set(ids)) < len(ids):
        raise InvalidError("Two revisions have the same id.")
    serving = [one for one in desired.revisions if not one.shadow]
    if desired.revisions and not serving:
        raise InvalidError("All revisions are shadows: nobody would answer.")
    if any(not 0 <= one.weight < float("inf") for one in desired.revisions):
        raise InvalidError("A revision's weight should be a number from 0 to 1.")
    if serving and not any(one.weight > 0 for one in serving):
        raise InvalidError("All revisions have the weight 0: nobody would answer.")
    for revision in desired.revisions:
        in_order(revision.nodes)
