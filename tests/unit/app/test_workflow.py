"""A workflow that is wrong cannot be made."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.references import Ref
from scanflow.errors import InvalidError, NotFoundError
from tests.unit.app.making import batch, edges_of_dags, keys, message, plain_values, script, shop, workflows

Graph = tuple[list[str], list[tuple[str, str]]]


@given(edges_of_dags(), st.data())
def test_every_graph_without_a_circle_is_accepted(graph: Graph, data: st.DataObject) -> None:
    names, edges = graph
    implied = set(data.draw(st.lists(st.sampled_from(edges), unique=True))) if edges else set()
    nodes = [
        script(
            name,
            parameters={
                f"p{index}": Ref(step=before)
                for index, (before, after) in enumerate(edges)
                if after == name and (before, after) in implied
            },
        )
        for name in names
    ]
    links = [
        sf.Dependency(dependee=before, depender=after) for before, after in edges if (before, after) not in implied
    ]
    workflow = batch(*nodes, edges=links)
    assert {(before, after) for after, parents in workflow.parents.items() for before in parents} == set(edges)
    assert [step.name for step in workflow.steps] == names


@pytest.mark.parametrize("nodes", [[script("a"), script("b")], (script("a"), script("b"))])
def test_nodes_are_a_list_or_a_tuple_and_kept_as_a_tuple(nodes: Any) -> None:
    assert sf.Workflow(name="w", nodes=nodes).nodes == (script("a"), script("b"))


def test_changing_the_list_of_nodes_handed_in_changes_no_workflow() -> None:
    nodes, edges = [script("a"), script("b")], [sf.Dependency(dependee="a", depender="b")]
    workflow = sf.Workflow(name="w", nodes=nodes, edges=edges)
    nodes.clear()
    edges.clear()
    assert [node.name for node in workflow.nodes] == ["a", "b"]
    assert len(workflow.dependencies) == 1


def test_a_function_among_the_nodes_is_refused_with_how_to_make_a_node_of_it() -> None:
    @sf.step
    def train(epochs: int) -> None: ...

    node: Any = train
    with pytest.raises(InvalidError, match=r"train\(epochs: int\) -> None is a function, not a node. .*\.bind"):
        sf.Workflow(name="w", nodes=[node])


def test_a_circle_closed_by_a_reference_is_refused_too() -> None:
    with pytest.raises(InvalidError, match="Workflow 'training': The nodes wait for each other in a circle"):
        batch(
            script("a"), script("b", parameters={"p": script("a")}), edges=[sf.Dependency(dependee="b", depender="a")]
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": {"p": {"$from": "trian.accuracy"}}},
        {"parameters": {"p": [{"deep": {"$from": "trian.accuracy"}}]}},
        {"for_each": {"$from": "trian.accuracy"}},
        {"when": "trian.accuracy >= 0.9"},
    ],
)
def test_a_reference_to_no_step_says_which_step_was_meant(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidError) as error:
        batch(script("train"), script("best", **fields))
    assert message(error) == (
        "Workflow 'training': the step 'best' uses 'trian.accuracy', but there is no step 'trian'. "
        "Did you mean 'train'?"
    )


@pytest.mark.parametrize("field", ["near", "apart_from"])
def test_an_affinity_to_no_node_says_which_was_meant(field: str) -> None:
    affinity = sf.Affinity(**{field: ("laod",)})  # type: ignore[arg-type]  # one of two fields of the same type
    with pytest.raises(InvalidError) as error:
        batch(script("load"), script("train", affinity=affinity))
    assert message(error) == (
        "Workflow 'training': the affinity of 'train' names 'laod', which is no node. Did you mean 'load'?"
    )


SERVICE = sf.Service(name="cnn", model="models:/cnn@champion")
MPI = sf.MPIWorkload(name="dgemm", mainfile="dgemm", n_tasks=4)


def test_a_slash_at_the_output_folders_end_makes_no_difference() -> None:
    assert batch(script("a"), output_dir="/work/flow/").output_dir == "/work/flow"


def test_a_node_is_found_by_its_name_and_an_unknown_one_says_which_was_meant() -> None:
    workflow = batch(script("load"), script("train"))
    assert workflow.node("load") == script("load")
    with pytest.raises(NotFoundError, match=r"Workflow 'training' has no node 'trian'. Did you mean 'train'?"):
        workflow.node("trian")


@given(workflows(), plain_values, st.data())
def test_a_parameter_is_set_where_it_is(workflow: sf.Workflow, value: Any, data: st.DataObject) -> None:
    known = sorted({key for step in workflow.steps for key in step.parameters})
    assume(known)
    key = data.draw(st.sampled_from(known))
    assume(all(f"{step.name}.{own}" != key for step in workflow.steps for own in step.parameters))
    changed = workflow.with_parameters({key: value})
    for before, after in zip(workflow.steps, changed.steps, strict=True):
        assert after == (
            before.replace(parameters={**before.parameters, key: value}) if key in before.parameters else before
        )


@given(st.lists(keys, min_size=1, max_size=4, unique=True), plain_values)
def test_a_parameter_set_for_one_step_is_set_there_only_even_if_its_name_has_dots(own: list[str], value: Any) -> None:
    parameters = dict.fromkeys(own, "before")
    workflow = batch(script("a", parameters=parameters), script("b-1", parameters=parameters))
    changed = workflow.with_parameters({f"b-1.{own[0]}": value})
    assert changed.steps[0] == workflow.steps[0] or f"b-1.{own[0]}" in own
    assert changed.steps[1].parameters == {**parameters, own[0]: value}
    assert workflow.steps[1].parameters == parameters


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("epohcs", "Workflow 'training' has no parameter 'epohcs'. Did you mean 'epochs'?"),
        ("trian.epochs", "Workflow 'training' has no parameter 'trian.epochs'. Did you mean 'train.epochs'?"),
        ("", "Workflow 'training' has no parameter ''. Known: epochs, train.epochs."),
        (3, "Workflow 'training' has no parameter 3. Known: epochs, train.epochs."),
    ],
)
def test_an_unknown_parameter_says_which_was_meant(key: Any, told: str) -> None:
    with pytest.raises(NotFoundError) as error:
        batch(script("train", parameters={"epochs": 1})).with_parameters({key: 2})
    assert message(error) == told


def test_a_parameter_is_checked_when_it_is_set() -> None:
    workflow = batch(script("train", parameters={"epochs": 1}))
    with pytest.raises(InvalidError, match="the parameter 'epochs' is a set"):
        workflow.with_parameters({"epochs": {1}})
    with pytest.raises(InvalidError, match="there is no step 'load'"):
        workflow.with_parameters({"epochs": {"$from": "load.x"}})
    assert workflow.with_parameters({}) is workflow


def test_a_parameter_that_a_function_has_by_default_can_be_set() -> None:
    @sf.step
    def train(epochs: int, lr: float = 0.1) -> None: ...

    changed = batch(train.bind(1)).with_parameters({"lr": 0.5})
    assert changed.steps[0].parameters == {"epochs": 1, "lr": 0.5}


def test_ten_thousand_nodes_in_one_line_make_ten_thousand_waves() -> None:
    nodes = [script(f"n{index}", parameters={"i": index}) for index in range(10_000)]
    workflow = batch(*nodes, edges=[before >> after for before, after in itertools.pairwise(nodes)])
    assert workflow.levels == tuple((f"n{index}",) for index in range(10_000))
    with pytest.raises(InvalidError, match="in a circle"):
        workflow.replace(edges=[*workflow.dependencies, sf.Dependency(dependee="n9999", depender="n0")])


def test_ten_thousand_nodes_side_by_side_make_one_wave_between_two() -> None:
    first, last = script("first"), script("last")
    middle = [script(f"n{index}") for index in range(10_000)]
    workflow = batch(first, *middle, last, edges=first >> middle >> last)
    assert [len(wave) for wave in workflow.levels] == [1, 10_000, 1]
    with pytest.raises(NotFoundError, match="has no node 'n12345'"):
        workflow.node("n12345")
    assert shop(workflow).workflow() is workflow
