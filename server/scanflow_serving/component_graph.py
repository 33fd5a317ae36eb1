"""An inference graph, sorted once and walked for each request. Edges are data flow.

Each component gets an input of its own: a value that several nodes take is copied for all but the last, and a result
that its component may keep is copied before another node takes it.

The walk is a coroutine. If no node is asynchronous or batched it never waits, so a worker thread, or the loop if no
node blocks, runs it from end to end (:func:`finish`); otherwise it runs on the loop, and each call that may block goes
to a worker thread by ``invoke``.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct

from scanflow.errors import InternalError, InvalidError, did_you_mean
from scanflow.instance_messages import Node
from scanflow_serving.components import Component, make_component_problem
from scanflow_serving.copies import copy_input, isolate
from scanflow_serving.inference_problems import ProblemError

_T = TypeVar("_T")
ALL: Final = -1
"""What a ROUTER returns to take all of its branches."""


class GraphStep:
    __slots__ = (
        "children",
        "combines",
        "component",
        "last_of",
        "last_root",
        "name",
        "node",
        "parents",
        "place",
        "routes",
        "who",
    )

    def __init__(
        self,
        place: int,
        node: Node,
        component: Component,
        parents: tuple[int, ...] = (),
        children: tuple[int, ...] = (),
        *,
        alone: bool = False,
    ) -> None:
        """``alone``: the node is a target by itself, so that the choice of a ROUTER is its answer."""
        self.node = node
        self.place = place
        self.name = component.name
        self.component = component
        self.parents = parents
        self.children = children
        self.combines = node.role == "COMBINER"
        self.routes = node.role == "ROUTER" and not alone
        self.who = f"The node {component.name!r}"
        self.last_of: frozenset[int] = frozenset()
        """The parents whose result no later node takes."""

        self.last_root = True
        """Whether no later node takes the request."""


class GraphTraversal(Struct, eq=False):
    """The state of one request's walk through a graph."""

    meta: dict[str, Any] = {}
    checked: bool = False
    """Whether the request was checked against the declared inputs; then only values between nodes remain to check."""

    durations: list[tuple[str, float]] = []
    """The duration of each call, in seconds."""

    failed: str | None = None
    routing: dict[str, int] = {}
    path: list[str] = []
    tags: dict[str, Any] = {}
    metrics: list[tuple[str, Any]] = []
    kept: bool = False
    """Whether the answer is read after the walk's last call, when the component may be at another request."""

    def copy_meta(self) -> dict[str, Any]:
        return copy.deepcopy(self.meta)


class Outcome(Struct, eq=False):
    value: Any
    names: Any
    step: GraphStep
    """The node that returned it."""


Invoke = Callable[[GraphStep, Any, Any, GraphTraversal], Awaitable[Any]]
"""Calls a node's component with value and names, and records its duration."""


def call_now(step: GraphStep, value: Any, names: Any, walk: GraphTraversal) -> Any:
    """Call a node's component in this thread. Any exception becomes a problem."""
    component = step.component
    begin = perf_counter()
    try:
        meta = walk.copy_meta() if walk.meta else {}
        if step.children or walk.kept:
            result = isolate(component.call(value, names, meta))
        else:
            result = component.call(value, names, meta)
        if component.tags is not None or component.metrics is not None:
            take_extras(step, walk)
    except BaseException as error:  # a user's code may raise anything: SystemExit, RecursionError, MemoryError
        walk.failed = step.name
        raise make_component_problem(step.who, error) from error
    finally:
        walk.durations.append((step.name, perf_counter() - begin))
    return result


def take_extras(step: GraphStep, walk: GraphTraversal) -> None:
    """Collect a component's tags and metrics of its last call."""
    component = step.component
    if component.tags is not None:
        tags = component.tags()
        if isinstance(tags, Mapping):
            walk.tags.update({str(name): isolate(value) for name, value in tags.items()})
    if component.metrics is not None:
        walk.metrics += [(step.name, isolate(metric)) for metric in component.metrics() or ()]


async def invoke_directly(step: GraphStep, value: Any, names: Any, walk: GraphTraversal) -> Any:
    return call_now(step, value, names, walk)


def finish(walking: Coroutine[Any, Any, _T]) -> _T:
    """Run to its end a coroutine that never waits."""
    try:
        walking.send(None)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    walking.close()
    raise InternalError("A graph without asynchronous nodes waited for something.")


def sort_levels(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the indices of the nodes in topological levels: each node comes after its parents."""
    names = [node.name for node in nodes]
    if not nodes:
        raise InvalidError("The graph has no nodes.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidError(f"The graph has two nodes {twice!r}.")
    for node in nodes:
        _check_node(node, nodes)
    sorter = TopologicalSorter({node.name: node.parents for node in nodes})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = ", ".join(name for name in names if name in error.args[1])
        raise InvalidError(f"The nodes {cycle} depend on each other in a cycle.") from None
    levels: list[list[int]] = []
    while level := sorter.get_ready():
        levels.append(sorted(map(names.index, level)))
        sorter.done(*level)
    return levels


def _check_node(node: Node, nodes: Sequence[Node]) -> None:
    names = [other.name for other in nodes]
    for parent in node.parents:
        if parent not in names:
            raise InvalidError(
                f"The node {node.name!r} takes the result of {parent!r}, which is not a "
                f"node.{did_you_mean(parent, names)}"
            )
    if len(set(node.parents)) < len(node.parents):
        raise InvalidError(f"The node {node.name!r} names a parent twice.")
    if node.role == "COMBINER" and not node.parents:
        raise InvalidError(f"The COMBINER {node.name!r} has no inputs to combine.")
    if len(node.parents) > 1 and node.role != "COMBINER":
        raise InvalidError(
            f"The node {node.name!r} would take {len(node.parents)} results, but a {node.role} takes one. "
            "Join them with a COMBINER before it."
        )
    if node.role == "ROUTER" and not any(node.name in other.parents for other in nodes):
        raise InvalidError(f"The ROUTER {node.name!r} has nothing to choose from.")


class Graph:
    def __init__(self, nodes: Sequence[Node], components: Sequence[Component], *, alone: bool = False) -> None:
        """``alone``: a single node apart from its graph: it takes the request whatever its parents are."""
        places = {node.name: place for place, node in enumerate(nodes)}
        self._levels: list[list[GraphStep]]
        if alone:
            self.steps = [GraphStep(0, nodes[0], components[0], alone=True)]
            self._levels = [self.steps]
        else:
            levels = sort_levels(nodes)
            self.steps = [
                GraphStep(
                    place,
                    node,
                    components[place],
                    tuple(sorted(places[parent] for parent in node.parents)),
                    tuple(other for other, child in enumerate(nodes) if node.name in child.parents),
                )
                for place, node in enumerate(nodes)
            ]
            self._levels = [[self.steps[place] for place in level] for level in levels]
            self._find_last_readers()
        self.roots = [step for step in self.steps if not step.parents]
        self.receivers = self._list_receivers()
        """The nodes that take the request itself: the roots, and the branches of those that are ROUTERs."""

        self.ends = [step for step in self.steps if not step.children]
        self.waits = any(step.component.is_async or step.node.batching for step in self.steps)
        """Whether it must be walked on the loop."""

        self.inline = not self.waits and not any(step.component.blocks for step in self.steps)
        """Whether it can be walked on the loop from end to end, since it neither waits nor blocks."""

        self._only = self.steps[0] if len(self.steps) == 1 else None
        if not alone and self._only is None and len(self.ends) > 1 and not any(step.routes for step in self.steps):
            names = " and ".join(repr(step.name) for step in self.ends)
            raise InvalidError(f"{names} would both answer the same request. Join them with a COMBINER.")

    def _list_receivers(self) -> list[GraphStep]:
        receivers = list(self.roots)
        for step in receivers:  # grows
            if step.routes:
                receivers += (self.steps[child] for child in step.children)
        return receivers

    async def walk(self, value: Any, names: Any, walk: GraphTraversal, invoke: Invoke = invoke_directly) -> Outcome:
        if invoke is not invoke_directly:
            walk.kept = True
        step = self._only
        if step is not None:
            if step.combines and not isinstance(value, list):
                value = list(value.values()) if isinstance(value, dict) else [value]
                names = [names] * len(value)
            return await self._visit(step, value, names, walk, invoke)
        outcomes: list[Outcome | None] = [None] * len(self.steps)
        for level in self._levels:
            due = [
                (step, *inputs)  # all are collected, and copied, before a component can change one
                for step in level
                if (inputs := self._collect_inputs(step, value, names, outcomes, walk))
            ]
            if not due:
                continue
            if len(due) == 1 or invoke is invoke_directly:
                for step, input_value, input_names in due:
                    outcomes[step.place] = await self._visit(step, input_value, input_names, walk, invoke)
            else:
                visits = (
                    self._visit(step, input_value, input_names, walk, invoke) for step, input_value, input_names in due
                )
                for (step, _, _), outcome in zip(due, await gather_or_cancel(visits), strict=True):
                    outcomes[step.place] = outcome
        answers = [outcome for step in self.ends if (outcome := outcomes[step.place]) is not None]
        if len(answers) != 1:
            named = ", ".join(repr(answer.step.name) for answer in answers)
            raise ProblemError(500, f"The graph has {len(answers)} answers, from {named}. Join them with a COMBINER.")
        return answers[0]

    def _collect_inputs(
        self, step: GraphStep, value: Any, names: Any, outcomes: Sequence[Outcome | None], walk: GraphTraversal
    ) -> tuple[Any, Any] | None:
        """Return the inputs of a step; None: no branch to it was chosen."""
        if not step.parents:
            return (value if step.last_root else copy_input(value, step.who)), names
        taken = [own for parent in step.parents if (own := self._follow_edge(parent, step, outcomes, walk)) is not None]
        if not taken:
            return None
        if step.combines:
            return [own_value for own_value, _ in taken], [own_names for _, own_names in taken]
        return taken[0]

    def _follow_edge(
        self, parent: int, step: GraphStep, outcomes: Sequence[Outcome | None], walk: GraphTraversal
    ) -> tuple[Any, Any] | None:
        """Return a parent's value and names for a step alone; None: the branch to it was not chosen."""
        outcome = outcomes[parent]
        if outcome is None:
            return None
        is_last = parent in step.last_of
        if self.steps[parent].routes and (chosen := walk.routing[self.steps[parent].name]) != ALL:
            if self.steps[parent].children[chosen] != step.place:
                return None
            is_last = True
        return (outcome.value if is_last else copy_input(outcome.value, step.who)), outcome.names

    def _find_last_readers(self) -> None:
        readers: dict[int | None, GraphStep] = {}
        for step in (step for level in self._levels for step in level):
            step.last_root = False
            for parent in step.parents or (None,):
                readers[parent] = step
        for parent, step in readers.items():
            if parent is None:
                step.last_root = True
            else:
                step.last_of |= {parent}

    async def _visit(self, step: GraphStep, value: Any, names: Any, walk: GraphTraversal, invoke: Invoke) -> Outcome:
        declared = step.component.signature
        if declared.inputs and not step.combines and not (walk.checked and not step.parents):
            value = declared.adapt(value, step.who, names or ())
        walk.path.append(step.name)
        own = copy_input(value, step.who) if step.routes else value  # a branch takes what the ROUTER took
        own_names = copy.deepcopy(names) if names else []
        result = await invoke(step, own, own_names, walk)
        if step.routes:
            walk.routing[step.name] = self._parse_branch(step, result)
            return Outcome(value, names, step)
        named = step.component.class_names
        return Outcome(result, named if named is not None else names if step.node.role == "TRANSFORMER" else [], step)

    def _parse_branch(self, step: GraphStep, result: Any) -> int:
        names = [self.steps[child].name for child in step.children]
        if isinstance(result, str) and result in names:
            return names.index(result)
        array = np.asarray(result)
        if array.size == 1 and array.dtype.kind in "iu":  # Seldon's routers may give [[1]]
            branch = int(array.reshape(-1)[0])
            if ALL <= branch < len(names):
                return branch
        walked = ", ".join(f"{place} or {name!r}" for place, name in enumerate(names))
        raise ProblemError(
            500, f"{step.who} chose {result!r:.80}, which is not one of its branches. Known: {walked}, and -1 for all."
        )


async def gather_or_cancel(visits: Any) -> list[Any]:
    tasks = [asyncio.ensure_future(visit) for visit in visits]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
