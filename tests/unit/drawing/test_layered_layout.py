"""Graphs in layers: whatever the graph, nothing overlaps, edges lead down, and few cross."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drawing.graph_folding import FoldedGraph, fold
from scanflow.drawing.layered_layout import Layout, Position, lay_out
from scanflow.errors import InvalidError
from scanflow.graphs import compute_levels, list_ancestors

Graph = dict[str, list[str]]


@st.composite
def graphs(draw: st.DrawFn, most: int = 30) -> Graph:
    size = draw(st.integers(0, most))
    return {
        f"n{number}": [f"n{parent}" for parent in sorted(draw(st.sets(st.integers(0, number - 1), max_size=3)))]
        if number
        else []
        for number in range(size)
    }


def count_crossings(layout: Layout) -> int:
    """Count the pairs of straight pieces between two layers that cross, by their coordinates."""
    pieces = [piece for way in layout.edges.values() for piece in pairwise(way)]
    return sum(
        (first[0].x - second[0].x) * (first[1].x - second[1].x) < -1e-9
        for first, second in combinations(pieces, 2)
        if first[0].y == second[0].y
    )


@given(graphs())
def test_nodes_do_not_overlap_and_are_below_what_they_depend_on(graph: Graph) -> None:
    layout = lay_out(graph)
    assert layout.nodes.keys() == graph.keys()
    for node, other in combinations(layout.nodes.values(), 2):
        assert node.y != other.y or abs(node.x - other.x) >= 1 - 1e-9
    for name, parents in graph.items():
        assert all(layout.nodes[parent].y < layout.nodes[name].y for parent in parents)
    for x, y in layout.nodes.values():
        assert 0.5 - 1e-9 <= x <= layout.width - 0.5 + 1e-9
        assert 0 < y < layout.height


@given(graphs())
def test_an_edge_passes_each_layer_beside_its_nodes(graph: Graph) -> None:
    layout = lay_out(graph)
    assert layout.edges.keys() == {(parent, name) for name, parents in graph.items() for parent in parents}
    for (parent, child), way in layout.edges.items():
        assert (way[0], way[-1]) == (layout.nodes[parent], layout.nodes[child])
        assert all(lower.y == upper.y + 1 for upper, lower in pairwise(way))
        for point in way[1:-1]:
            assert all(node.y != point.y or abs(node.x - point.x) > 0.6 for node in layout.nodes.values())


@given(graphs(12))
def test_crossings_are_counted_as_they_are_drawn(graph: Graph) -> None:
    layout = lay_out(graph)
    assert layout.crossings == count_crossings(layout)


def test_what_can_be_drawn_without_crossings_is() -> None:
    ladder = {"a": [], "b": [], "c": [], "x": ["c"], "y": ["b"], "z": ["a"], "end": ["x", "y", "z"]}
    assert lay_out(ladder).crossings == 0
    tree: Graph = {"root": [], "l": ["root"], "r": ["root"], "r1": ["r"], "l1": ["l"], "r2": ["r"], "l2": ["l"]}
    assert lay_out(tree).crossings == 0


def test_a_chain_is_a_straight_line_and_parents_are_above_the_middle_of_their_children() -> None:
    chain = lay_out({"a": [], "b": ["a"], "c": ["b"]})
    assert [chain.nodes[name] for name in "abc"] == [Position(0.5, 0.5), Position(0.5, 1.5), Position(0.5, 2.5)]
    fork = lay_out({"a": [], "b": ["a"], "c": ["a"]})
    assert fork.nodes["a"].x == pytest.approx((fork.nodes["b"].x + fork.nodes["c"].x) / 2)


def test_a_cycle_is_refused() -> None:
    with pytest.raises(InvalidError, match="a cycle"):
        lay_out({"a": ["b"], "b": ["a"]})


def check_folded(graph: Graph, folded: FoldedGraph) -> None:
    """Each node is in one group, and groups depend on each other where their members do, without a cycle."""
    group_of = {name: group for group, members in folded.members.items() for name in members}
    assert sorted(group_of) == sorted(name for members in folded.members.values() for name in members) == sorted(graph)
    edges = {(group_of[parent], group_of[name]) for name, parents in graph.items() for parent in parents}
    assert {(parent, name) for name, parents in folded.parents.items() for parent in parents} == {
        (parent, name) for parent, name in edges if parent != name
    }
    compute_levels(folded.parents)


@given(graphs(), st.integers(1, 10))
def test_a_folded_graph_is_the_graph_and_small(graph: Graph, most: int) -> None:
    folded = fold(graph, most=most)
    check_folded(graph, folded)
    assert len(folded.members) <= most


@given(graphs(8))
def test_a_small_graph_is_not_folded(graph: Graph) -> None:
    assert fold(graph, most=8).parents == {name: tuple(parents) for name, parents in graph.items()}


def test_a_failed_item_is_not_folded_with_those_that_succeeded() -> None:
    items = [f"item.{number}" for number in range(500)]
    graph: Graph = {"start": [], **{item: ["start"] for item in items}, "end": items}
    kinds = dict.fromkeys(items, "succeeded") | {"item.7": "failed"}
    folded = fold(graph, kinds, most=10)
    assert folded.members["item.7"] == ("item.7",)
    assert len(folded.members["item.0"]) == 499
    assert set(folded.members) == {"start", "item.0", "item.7", "end"}


def test_a_thousand_steps_in_a_row_are_few() -> None:
    graph: Graph = {f"s{number:04}": [f"s{number - 1:04}"] if number else [] for number in range(1000)}
    folded = fold(graph, {"s0500": "running"}, most=10)
    assert list(folded.members) == ["s0000", "s0500", "s0501"]
    assert list_ancestors(folded.parents, "s0501") == {"s0000", "s0500"}
