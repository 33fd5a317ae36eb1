"""Graphs: what is wrong with one, and how a request goes through it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.instance_messages import Node
from scanflow_serving.component_graph import Graph, GraphStep, GraphTraversal, Outcome, call_now, finish, sort_levels
from scanflow_serving.components import Component
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.signature import NodeSignature, TensorSpec
from tests.waiting import PATIENCE_S


def node(name: str, *parents: str, role: str = "MODEL") -> Node:
    return Node(name=name, role=role, parents=parents, implementation="a.py:A")  # type: ignore[arg-type]


def graph(*nodes: Node, **calls: Any) -> Graph:
    """A graph whose nodes write down their names; ``calls`` says what else some do."""

    def default(node: Node) -> Any:
        if node.role == "COMBINER":
            return lambda values, _names, _meta: [item for value in values for item in value] + [node.name]
        if node.role == "ROUTER":
            return lambda _value, _names, _meta: 0
        return lambda value, _names, _meta: [*value, node.name]

    components = [Component(node, calls.get(node.name, default(node))) for node in nodes]
    return Graph(nodes, components)


def walk(built: Graph, value: Any = (), state: GraphTraversal | None = None) -> Any:
    return finish(built.walk(value, [], state or GraphTraversal())).value


def choose(branch: Any) -> Any:
    return lambda _value, _names, _meta: branch


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], "no nodes"),
        ([node("a"), node("a")], "two nodes 'a'"),
        ([node("a", "b")], "'b', which is not a node"),
        ([node("train"), node("b", "trian")], "Did you mean 'train'?"),
        ([node("a", "b"), node("b", "a")], "a, b depend on each other in a cycle"),
        ([node("a", "a")], "depend on each other in a cycle"),
        ([node("a"), node("b", "a", "a", role="COMBINER")], "names a parent twice"),
        ([node("a", role="COMBINER")], "has no inputs to combine"),
        ([node("a"), node("b"), node("c", "a", "b")], "a MODEL takes one"),
        ([node("a", role="ROUTER")], "has nothing to choose from"),
    ],
)
def test_a_graph_that_cannot_be_walked_is_refused(nodes: Sequence[Node], words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        sort_levels(nodes)
    assert words in str(caught.value)


def test_two_answers_without_a_router_are_refused() -> None:
    with pytest.raises(InvalidError, match="'b' and 'c' would both answer"):
        graph(node("a"), node("b", "a"), node("c", "a"))


def test_results_flow_along_the_edges() -> None:
    built = graph(
        node("clean", role="TRANSFORMER"),
        node("one", "clean"),
        node("two", "clean"),
        node("join", "two", "one", role="COMBINER"),
        node("tidy", "join", role="OUTPUT_TRANSFORMER"),
    )
    # A COMBINER takes its parents in the order of the workflow's nodes.
    assert walk(built) == ["clean", "one", "clean", "two", "join", "tidy"]


def test_every_node_without_parents_takes_the_request() -> None:
    built = graph(node("a"), node("b"), node("join", "a", "b", role="COMBINER"))
    assert walk(built, ["x"]) == ["x", "a", "x", "b", "join"]


@pytest.mark.parametrize(
    ("branch", "result"),
    [
        (0, ["a", "join"]),
        (1, ["b", "more", "join"]),
        ("a", ["a", "join"]),
        ("b", ["b", "more", "join"]),
        (np.int64(1), ["b", "more", "join"]),
        (np.array([[1]]), ["b", "more", "join"]),
        ([0], ["a", "join"]),
        (-1, ["a", "b", "more", "join"]),
    ],
)
def test_a_router_takes_one_branch_or_all(branch: Any, result: list[str]) -> None:
    built = graph(
        node("route", role="ROUTER"),
        node("a", "route"),
        node("b", "route"),
        node("more", "b"),
        node("join", "a", "more", role="COMBINER"),
        route=choose(branch),
    )
    assert walk(built) == result


@pytest.mark.parametrize("branch", [2, -2, "c", None, 1.0, True, [0, 1], {}, "1", object()])
def test_a_branch_that_is_none_is_the_routers_fault(branch: Any) -> None:
    built = graph(node("route", role="ROUTER"), node("a", "route"), node("b", "route"), route=choose(branch))
    with pytest.raises(ProblemError) as caught:
        walk(built)
    assert caught.value.status == 500
    assert "The node 'route' chose" in caught.value.detail
    assert "0 or 'a', 1 or 'b'" in caught.value.detail


def test_branches_may_end_separately() -> None:
    built = graph(node("route", role="ROUTER"), node("a", "route"), node("b", "route"), route=choose("b"))
    state = GraphTraversal()
    assert walk(built, ["x"], state) == ["x", "b"]
    assert (state.routing, state.path) == ({"route": 1}, ["route", "b"])


def test_all_of_the_branches_that_end_separately_are_too_many_answers() -> None:
    built = graph(node("route", role="ROUTER"), node("a", "route"), node("b", "route"), route=choose(-1))
    with pytest.raises(ProblemError, match="has 2 answers, from 'a', 'b'"):
        walk(built)


def test_a_router_below_a_router_decides_only_if_it_is_reached() -> None:
    nodes = [
        node("first", role="ROUTER"),
        node("a", "first"),
        node("second", "first", role="ROUTER"),
        node("b", "second"),
        node("c", "second"),
    ]
    assert walk(graph(*nodes, first=choose("a"), second=choose("boom"))) == ["a"]
    assert walk(graph(*nodes, first=choose("second"), second=choose("c"))) == ["c"]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Node], dict[str, int]]:
    names = [f"n{place}" for place in range(draw(st.integers(1, 8)))]
    parents = {name: names[draw(st.integers(0, place - 1))] for place, name in enumerate(names) if place}
    nodes, chosen = [], {}
    for name in names:
        children = [child for child, parent in parents.items() if parent == name]
        role = "ROUTER" if len(children) > 1 or (children and draw(st.booleans())) else "MODEL"
        if role == "ROUTER":
            chosen[name] = draw(st.integers(0, len(children) - 1))
        nodes.append(node(name, *([parents[name]] if name in parents else []), role=role))
    return nodes, chosen


@given(trees(), st.randoms())
def test_a_request_goes_one_way_through_a_tree_of_routers(tree: tuple[list[Node], dict[str, int]], random: Any) -> None:
    nodes, chosen = tree
    here, way = nodes[0], []
    while True:
        if here.role == "MODEL":
            way.append(here.name)
        children = [node for node in nodes if here.name in node.parents]
        if not children:
            break
        here = children[chosen.get(here.name, 0)]
    assert walk(graph(*nodes, **{name: choose(branch) for name, branch in chosen.items()})) == way
    # The order in which nodes are written down says how branches are numbered, and nothing else.
    named = {name: [node for node in nodes if name in node.parents][branch].name for name, branch in chosen.items()}
    shuffled = [*nodes]
    random.shuffle(shuffled)
    assert walk(graph(*shuffled, **{name: choose(branch) for name, branch in named.items()})) == way


@st.composite
def layers(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = [node("root")]
    for place in range(draw(st.integers(0, 6))):
        names = [entry.name for entry in nodes]
        parents = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        role = "COMBINER" if len(parents) > 1 else draw(st.sampled_from(["MODEL", "TRANSFORMER", "COMBINER"]))
        nodes.append(node(f"n{place}", *parents, role=role))
    loose = [leaf_node.name for leaf_node in nodes if not any(leaf_node.name in other.parents for other in nodes)]
    return [*nodes, node("end", *loose, role="COMBINER")]


@given(layers())
def test_on_the_loop_and_in_a_thread_a_graph_says_the_same(nodes: list[Node]) -> None:
    built = graph(*nodes)

    async def later(step: GraphStep, value: Any, names: Any, state: GraphTraversal) -> Any:
        await asyncio.sleep(0)
        return call_now(step, value, names, state)

    async def on_loop() -> Outcome:
        return await built.walk(["x"], [], GraphTraversal(), later)

    state = GraphTraversal()
    assert asyncio.run(on_loop()).value == walk(built, ["x"], state)
    assert sorted(state.path) == sorted(node.name for node in nodes)
    assert len(state.durations) == len(nodes)


async def test_nodes_of_a_level_run_side_by_side() -> None:
    built = graph(node("a"), node("b"), node("join", "a", "b", role="COMBINER"))

    both = asyncio.Barrier(2)

    async def meet(step: GraphStep, value: Any, names: Any, state: GraphTraversal) -> Any:
        if step.name != "join":
            async with asyncio.timeout(PATIENCE_S):
                await both.wait()
        return call_now(step, value, names, state)

    await built.walk([], [], GraphTraversal(), meet)


def test_what_a_node_raises_names_it() -> None:
    def boom(_value: Any, _names: Any, _meta: Any) -> None:
        raise KeyError("weights")

    state = GraphTraversal()
    with pytest.raises(ProblemError, match="The node 'b' raised KeyError: 'weights'"):
        walk(graph(node("a"), node("b", "a"), b=boom), [], state)
    assert state.failed == "b"
    assert [name for name, _ in state.durations] == ["a", "b"]


def test_what_a_node_takes_is_checked_against_what_the_one_before_gives() -> None:
    built = graph(node("a"), node("b", "a"), a=lambda *_: np.ones((1, 3)), b=lambda value, *_: value)
    built.steps[1].component.signature = NodeSignature((TensorSpec("x", "FP32", (-1, 4)),))
    with pytest.raises(ProblemError, match=r"The node 'b' takes FP32 \[-1, 4\], but got float64 \[1, 3\]"):
        walk(built)


def test_a_node_alone_takes_the_request_whatever_its_place() -> None:
    nodes = [node("a"), node("join", "a", role="COMBINER")]
    full = graph(*nodes, join=lambda values, *_: values)
    alone = Graph([nodes[1]], [full.steps[1].component], alone=True)
    assert walk(alone, {"a": 1, "b": 2}) == [1, 2]
    assert walk(alone, 7) == [7]


def test_a_router_alone_answers_with_its_choice() -> None:
    router = node("route", role="ROUTER")
    alone = Graph([router], [Component(router, choose(1))], alone=True)
    assert walk(alone) == 1


class Tagged:
    def __init__(self) -> None:
        self.calls = 0

    def tags(self) -> dict[str, int]:
        self.calls += 1
        return {"calls": self.calls}

    def metrics(self) -> list[dict[str, Any]]:
        return [{"type": "COUNTER", "key": "seen", "value": 1}]


def test_tags_and_metrics_are_requested_after_each_call() -> None:
    first = node("a")
    component = Component(first, lambda value, *_: value, subject=Tagged())
    state = GraphTraversal()
    walk(Graph([first], [component]), [], state)
    assert state.tags == {"calls": 1}
    assert state.metrics == [("a", {"type": "COUNTER", "key": "seen", "value": 1})]


def rows(*numbers: float) -> Any:
    return np.array([numbers])


def change(value: Any, *_: Any) -> Any:
    value *= 10
    return value.sum(axis=1)


def add_up(value: Any, *_: Any) -> Any:
    return value.sum(axis=1)


def join(values: Any, *_: Any) -> Any:
    return [float(value[0]) for value in values]


def test_a_node_that_changes_its_input_changes_no_others() -> None:
    built = graph(node("a"), node("b"), node("join", "a", "b", role="COMBINER"), a=change, b=add_up, join=join)
    assert walk(built, rows(1, 2)) == [30, 3]
    built = graph(
        node("first", role="TRANSFORMER"),
        node("a", "first"),
        node("b", "first"),
        node("join", "a", "b", role="COMBINER"),
        first=lambda value, *_: value + 0,
        a=change,
        b=add_up,
        join=join,
    )
    assert walk(built, rows(1, 2)) == [30, 3]


@pytest.mark.parametrize(("branch", "result"), [(-1, [30, 3]), (1, [3])])
def test_what_a_router_does_to_its_input_reaches_no_branch(branch: int, result: list[float]) -> None:
    def route(value: Any, *_: Any) -> int:
        value *= 0
        return branch

    built = graph(
        node("route", role="ROUTER"),
        node("a", "route"),
        node("b", "route"),
        node("join", "a", "b", role="COMBINER"),
        route=route,
        a=change,
        b=add_up,
        join=join,
    )
    assert walk(built, rows(1, 2)) == result


def test_a_node_may_keep_what_it_returns() -> None:
    table = np.zeros((1, 1))

    def lower(value: Any, *_: Any) -> Any:
        value -= 1
        return value

    built = graph(node("a"), node("b", "a", role="OUTPUT_TRANSFORMER"), a=lambda *_: table, b=lower)
    assert [walk(built, rows(1)).tolist() for _ in range(3)] == [[[-1]], [[-1]], [[-1]]]


def test_names_and_metadata_are_a_nodes_own_too() -> None:
    def spoil(value: Any, names: Any, meta: Any) -> Any:
        names.append("z")
        meta["puid"] = "other"
        return value

    seen: list[Any] = []

    def look(value: Any, names: Any, meta: Any) -> Any:
        seen.append((names, meta))
        return value

    built = graph(node("a", role="TRANSFORMER"), node("b", "a"), a=spoil, b=look)
    finish(built.walk(rows(1), ["x"], GraphTraversal({"puid": "p"})))
    assert seen == [(["x"], {"puid": "p"})]


def test_what_cannot_be_copied_for_two_nodes_is_refused_by_name() -> None:
    built = graph(
        node("read", role="TRANSFORMER"),
        node("a", "read"),
        node("b", "read"),
        node("join", "a", "b", role="COMBINER"),
        read=lambda *_: (number for number in range(3)),
    )
    with pytest.raises(ProblemError, match="'generator', which cannot be copied for each"):
        walk(built)


async def test_a_buffer_is_copied_before_the_next_node_waits() -> None:
    buffer = np.zeros((1, 1))

    def fill(value: Any, *_: Any) -> Any:
        buffer[:] = value
        return buffer

    built = graph(node("a"), node("b", "a"), a=fill, b=lambda value, *_: value + 0)
    both = asyncio.Barrier(2)

    async def meet(step: GraphStep, value: Any, names: Any, state: GraphTraversal) -> Any:
        if step.name == "b":
            async with asyncio.timeout(PATIENCE_S):
                await both.wait()
        return call_now(step, value, names, state)

    answers = await asyncio.gather(*(built.walk(rows(number), [], GraphTraversal(), meet) for number in (1, 2)))
    assert [answer.value.tolist() for answer in answers] == [[[1]], [[2]]]


def test_a_later_node_takes_what_an_earlier_one_was_to_change() -> None:
    built = graph(
        node("first", role="TRANSFORMER"),
        node("a", "first"),
        node("join", "first", "a", role="COMBINER"),
        first=lambda value, *_: value + 0,
        a=change,
        join=lambda values, *_: [value.tolist() for value in values],
    )
    assert walk(built, rows(1, 2)) == [[[1, 2]], [30]]
