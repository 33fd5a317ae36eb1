"""Inference graphs: edges carry data, and each request gets one answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.edges import Chain
from scanflow.app.inference import collect_children, list_outputs_of_graph
from scanflow.app.service import ServiceRole
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import edges_of_dags, make_unchecked, message, refusal


def node(name: str, role: ServiceRole = "MODEL", **fields: Any) -> sf.Service:
    return make_unchecked(sf.Service, name=name, role=role, implementation="graph.py:Node", **fields)


A, B, C = node("a"), node("b"), node("c")
ROUTER, COMBINER = node("choose", "ROUTER"), node("join", "COMBINER")


def online(*nodes: sf.Service, edges: Chain | Sequence[Chain] = ()) -> sf.Workflow:
    return sf.Workflow(name="w", type="online", nodes=nodes, edges=edges)


def test_graphs_that_give_each_request_one_answer_are_taken() -> None:
    assert list_outputs_of_graph(online(A).parents) == ("a",)
    assert list_outputs_of_graph(online(A, B, edges=A >> B).parents) == ("b",)
    assert list_outputs_of_graph(online(A, B, COMBINER, edges=[A, B] >> COMBINER).parents) == ("join",)
    assert list_outputs_of_graph(online(ROUTER, A, B, edges=ROUTER >> [A, B]).parents) == ("a", "b")
    assert list_outputs_of_graph(online(ROUTER, A, B, COMBINER, edges=ROUTER >> [A, B] >> COMBINER).parents) == (
        "join",
    )
    assert list_outputs_of_graph(online(ROUTER, A, B, C, edges=[ROUTER >> [A, B], B >> C]).parents) == ("a", "c")


def test_children_stand_in_the_order_of_the_nodes_not_of_the_edges() -> None:
    edges = [ROUTER >> B, ROUTER >> A]
    assert collect_children(online(ROUTER, A, B, edges=edges).parents)["choose"] == ("a", "b")


@pytest.mark.parametrize(
    ("nodes", "edges", "reason"),
    [
        ([A, B], (), "'a' and 'b' would both answer the same request"),
        ([A, B, C], A >> [B, C], "'b' and 'c' would both answer the same request"),
        ([ROUTER, A, B, C], ROUTER >> [A, B], "would both answer the same request"),
        ([ROUTER, A, B, C, COMBINER], [ROUTER >> [A, B], [B, C] >> COMBINER], "'a' and 'join' would both answer"),
        ([A, B, C], [A, B] >> C, "'c' gets the results of 'a' and 'b', but a MODEL accepts one."),
        ([COMBINER], (), "the COMBINER 'join' has no inputs to combine. Link them: [a, b] >> join."),
        ([ROUTER], (), "the ROUTER 'choose' has no branches to choose from. Link them: choose >> [a, b]."),
    ],
)
def test_a_graph_that_could_not_answer_is_refused(nodes: Sequence[sf.Service], edges: Any, reason: str) -> None:
    with pytest.raises(InvalidError) as error:
        make_unchecked(
            sf.Workflow, name="w", type="online", nodes=nodes, edges=list(edges) if isinstance(edges, list) else edges
        )
    assert message(error).startswith("Workflow 'w': ")
    assert reason in message(error)


@given(edges_of_dags(most=7), st.data())
def test_one_node_answers_each_request(graph: tuple[list[str], list[tuple[str, str]]], data: st.DataObject) -> None:
    names, edges = graph
    parents = {name: [before for before, after in edges if after == name] for name in names}
    children = {name: [other for other in names if name in parents[other]] for name in names}
    roles: dict[str, ServiceRole] = {}
    for name in names:
        if len(parents[name]) > 1:
            roles[name] = "COMBINER"
        else:
            roles[name] = data.draw(st.sampled_from(["MODEL", "ROUTER"] if children[name] else ["MODEL"]))
    nodes = [node(name, roles[name]) for name in names]
    links = [sf.Dependency(dependee=before, depender=after) for before, after in edges]
    message = refusal(lambda: sf.Workflow(name="w", type="online", nodes=nodes, edges=links))
    routers = [name for name in names if roles[name] == "ROUTER"]
    ends = [
        _answering(names, parents, children, dict(zip(routers, choice, strict=True)))
        for choice in itertools.product(*(children[name] for name in routers))
    ]
    assert (message is None) == all(len(answering) == 1 for answering in ends), (message, ends)


def _answering(
    names: list[str], parents: dict[str, list[str]], children: dict[str, list[str]], choice: dict[str, str]
) -> set[str]:
    running = {name for name in names if not parents[name]}
    for _ in names:
        running |= {
            child for name in running for child in children[name] if name not in choice or choice[name] == child
        }
    return {name for name in running if not children[name]}
