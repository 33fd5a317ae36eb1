"""Order, levels and cycles, over graphs that hypothesis draws."""

from __future__ import annotations

import itertools
from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.graphs import collect_parents, compute_levels, list_ancestors
from tests.unit.app.app_builders import batch, edges_of_dags, message, script

Graph = tuple[list[str], list[tuple[str, str]]]


@given(edges_of_dags())
def test_every_node_comes_once_as_early_as_it_may_in_the_order_given(graph: Graph) -> None:
    names, edges = graph
    parents = collect_parents(names, [*edges, *edges])  # an edge given twice counts once
    assert parents == {name: tuple(before for before, after in edges if after == name) for name in names}
    waves = compute_levels(parents)
    wave_of = {name: index for index, wave in enumerate(waves) for name in wave}
    assert sorted(name for wave in waves for name in wave) == sorted(names)
    assert all(wave_of[name] == max((wave_of[parent] + 1 for parent in parents[name]), default=0) for name in names)
    assert all(list(wave) == [name for name in names if name in wave] for wave in waves)


@given(edges_of_dags())
def test_ancestors_are_all_that_must_have_run_before(graph: Graph) -> None:
    names, edges = graph
    parents = collect_parents(names, edges)
    reached = {name: set[str]() for name in names}
    for name in TopologicalSorter(parents).static_order():
        reached[name] = {ancestor for parent in parents[name] for ancestor in (parent, *reached[parent])}
    assert {name: set(list_ancestors(parents, name)) for name in names} == reached


@given(edges_of_dags(), st.data())
def test_an_edge_back_is_refused_with_a_circle_that_is_really_there(graph: Graph, data: st.DataObject) -> None:
    names, edges = graph
    parents = collect_parents(names, edges)
    end = data.draw(st.sampled_from(names))
    start = data.draw(st.sampled_from([end, *sorted(list_ancestors(parents, end))]))
    edges = [*edges, (end, start)]
    with pytest.raises(InvalidError, match="depend on each other in a cycle") as error:
        compute_levels(collect_parents(names, edges))
    circle = message(error).partition("cycle: ")[2].partition(".")[0].split(" >> ")
    assert circle[0] == circle[-1]
    assert set(itertools.pairwise(circle)) <= set(edges)


def test_a_circle_is_reported_in_the_order_its_steps_would_run() -> None:
    a, b, c = (script(name) for name in "abc")
    with pytest.raises(InvalidError) as error:
        batch(a, b, c, edges=a >> b >> c >> a)
    assert message(error) in {
        f"Workflow 'training': The nodes depend on each other in a cycle: {circle}. Remove one of these edges."
        for circle in ("a >> b >> c >> a", "b >> c >> a >> b", "c >> a >> b >> c")
    }


def test_a_circle_of_thousands_is_reported_briefly() -> None:
    names = [f"n{index}" for index in range(5000)]
    with pytest.raises(InvalidError) as error:
        compute_levels(collect_parents(names, [*itertools.pairwise(names), (names[-1], names[0])]))
    assert "(4982 more)" in message(error)
    assert len(message(error)) < 400
