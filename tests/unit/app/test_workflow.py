"""A workflow that is wrong cannot be made."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.references import Ref, list_references
from scanflow.errors import InvalidError, NotFoundError
from tests.unit.app.app_builders import batch, edges_of_dags, keys, plain_values, script, shop, workflows

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


def test_a_slash_at_the_output_folders_end_makes_no_difference() -> None:
    assert batch(script("a"), output_dir="/work/flow/").output_dir == "/work/flow"


@given(workflows(), plain_values, st.data())
def test_a_short_name_sets_plain_values_and_what_is_fed_stays_so(
    workflow: sf.Workflow, value: Any, data: st.DataObject
) -> None:
    keys = sorted({key for step in workflow.steps for key in step.parameters})
    assume(keys)
    key = data.draw(st.sampled_from(keys))
    assume(all(f"{step.name}.{own}" != key for step in workflow.steps for own in step.parameters))
    settable = {step.name for step in workflow.steps if key in step.parameters and not is_fed(step, key)}
    if not settable:
        with pytest.raises(InvalidError, match="sets plain values only"):
            workflow.with_parameters({key: value})
        return
    changed = workflow.with_parameters({key: value})
    for before, after in zip(workflow.steps, changed.steps, strict=True):
        expected = before.replace(parameters={**before.parameters, key: value}) if before.name in settable else before
        assert after == expected


def is_fed(step: sf.Executor, key: str) -> bool:
    return bool(list_references(step.parameters.get(key)))


@sf.step
def load(data: str = "raw") -> str:
    return f"L({data})"


@sf.step
def train(data: str, epochs: int = 3, mode: Any = None) -> str:
    return f"T({data})"


def test_a_short_name_cuts_no_edge_and_a_full_name_says_so() -> None:
    loaded = load.bind()
    workflow = batch(loaded, train.bind(loaded))
    changed = workflow.with_parameters({"data": "b"})
    assert [changed.steps[0].parameters["data"], changed.steps[1].parameters["data"]] == ["b", Ref(step="load")]
    assert workflow.with_parameters({"train.data": "b"}).parents == {"load": (), "train": ()}
    both = workflow.with_parameters({"load.data": "b", "data": "c"})
    assert both.steps[0].parameters["data"] == "b", "the full name is the more precise one, in any order"


def test_a_short_name_that_selects_only_edges_and_items_is_refused_with_what_feeds_them() -> None:
    loaded = load.options(name="make").bind()
    renamed = train.options(name="edge").bind(loaded)
    mapped = train.options(name="each").map(loaded)
    nested = train.options(name="deep").bind("x", mode={"inner": [loaded["a"]]})
    workflow = batch(loaded, renamed, mapped, nested)
    with pytest.raises(
        InvalidError, match=r"'mode' of the step 'deep' is fed by 'make\.a'\. .* write the full name: deep\.mode"
    ):
        batch(loaded, nested).with_parameters({"mode": 1})
    with pytest.raises(
        InvalidError, match=r"'edge' is fed by 'make\.result'; .*'each' is fed by the item of its fan-out.*each\.data"
    ):
        batch(loaded.replace(function=None, mainfile="make.py", parameters={}), renamed, mapped).with_parameters(
            {"data": "b"}
        )
    assert workflow.with_parameters({"each.data": "b"}).steps[2].parameters["data"] == "b"


def test_what_was_set_is_set_again_without_a_change() -> None:
    loaded = load.bind()
    fed = batch(loaded, train.bind(loaded)).with_parameters({"mode": loaded.output})
    assert fed.steps[1].parameters["mode"] == Ref(step="load")
    assert fed.with_parameters({"mode": {"$from": "load.result"}}) == fed


def test_parameters_are_set_in_one_step_only_if_it_is_named() -> None:
    loaded = load.bind()
    workflow = batch(loaded, train.bind(loaded), train.options(name="other").bind("x"))
    changed = workflow.with_parameters({"epochs": 5}, step="train")
    assert [step.parameters.get("epochs") for step in changed.steps] == [None, 5, None]
    with pytest.raises(InvalidError, match=r"'data' of the step 'train' is fed by 'load\.result'"):
        workflow.with_parameters({"data": "b"}, step="train")
    with pytest.raises(NotFoundError, match=r"The step 'train' has no parameter 'epocs'\. Did you mean 'epochs'"):
        workflow.with_parameters({"epocs": 5}, step="train")


@given(st.lists(keys, min_size=1, max_size=4, unique=True), plain_values)
def test_a_parameter_set_for_one_step_is_set_there_only_even_if_its_name_has_dots(own: list[str], value: Any) -> None:
    parameters = dict.fromkeys(own, "before")
    workflow = batch(script("a", parameters=parameters), script("b-1", parameters=parameters))
    changed = workflow.with_parameters({f"b-1.{own[0]}": value})
    assert changed.steps[0] == workflow.steps[0] or f"b-1.{own[0]}" in own
    assert changed.steps[1].parameters == {**parameters, own[0]: value}
    assert workflow.steps[1].parameters == parameters


def test_a_parameter_that_a_function_has_by_default_can_be_set() -> None:
    @sf.step
    def train(epochs: int, lr: float = 0.1) -> None: ...

    changed = batch(train.bind(1)).with_parameters({"lr": 0.5})
    assert changed.steps[0].parameters == {"epochs": 1, "lr": 0.5}


def test_ten_thousand_nodes_in_one_line_make_ten_thousand_waves() -> None:
    nodes = [script(f"n{index}", parameters={"i": index}) for index in range(10_000)]
    workflow = batch(*nodes, edges=[before >> after for before, after in itertools.pairwise(nodes)])
    assert workflow.levels == tuple((f"n{index}",) for index in range(10_000))
    with pytest.raises(InvalidError, match="in a cycle"):
        workflow.replace(edges=[*workflow.dependencies, sf.Dependency(dependee="n9999", depender="n0")])


def test_ten_thousand_nodes_side_by_side_make_one_wave_between_two() -> None:
    first, last = script("first"), script("last")
    middle = [script(f"n{index}") for index in range(10_000)]
    workflow = batch(first, *middle, last, edges=first >> middle >> last)
    assert [len(wave) for wave in workflow.levels] == [1, 10_000, 1]
    with pytest.raises(NotFoundError, match="has no node 'n12345'"):
        workflow.node("n12345")
    assert shop(workflow).workflow() is workflow
