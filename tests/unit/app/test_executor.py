"""The step of a batch workflow: what it takes, what it refuses, and that nobody changes it afterwards."""

from __future__ import annotations

import copy
import enum
import pickle
from collections import deque
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.making import keys, message, plain_values, script


class Size(enum.IntEnum):
    SMALL = 3


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def inside_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@given(st.dictionaries(keys, plain_values))
def test_parameters_are_a_copy_that_equals_what_was_given(parameters: dict[str, Any]) -> None:
    given_copy = copy.deepcopy(parameters)
    assert script("train", parameters=parameters).parameters == given_copy


def test_changing_what_was_handed_in_changes_no_step() -> None:
    layers: list[Any] = [1, {"size": 2}]
    parameters: dict[str, Any] = {"layers": layers}
    env = {"A": "1"}
    step = script("train", parameters=parameters, env=env)
    layers.append(3)
    layers[1]["size"] = 9
    parameters["more"] = 1
    env["B"] = "2"
    assert step.parameters == {"layers": [1, {"size": 2}]}
    assert step.env == {"A": "1"}


CHANGES: dict[str, Callable[[Any], Any]] = {
    "setting": lambda made: made.__setitem__("a", 2),
    "deleting": lambda made: made.__delitem__("a"),
    "clearing": lambda made: made.clear(),
    "popping": lambda made: made.pop("a"),
    "popping any": lambda made: made.popitem(),
    "a default": lambda made: made.setdefault("b", 2),
    "updating": lambda made: made.update(a=2),
    "merging": lambda made: made.__ior__({"a": 2}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_parameters_and_variables_cannot_be_changed_in_place(change: Callable[[Any], Any]) -> None:
    step = script("train", parameters={"a": 1}, env={"a": "1"})
    for held in (step.parameters, step.env, script("train").parameters):
        with pytest.raises(InvalidError, match=r"Make a changed copy: node\.replace\(parameters="):
            change(held)
    assert (step.parameters, step.env) == ({"a": 1}, {"a": "1"})


def test_a_field_cannot_be_set_and_the_message_says_how_to_make_a_changed_copy() -> None:
    step = script("train")
    with pytest.raises(
        InvalidError, match=r"Executor 'train' cannot be changed. Make a changed copy: .replace\(retries=...\)"
    ):
        step.retries = 3  # type: ignore[misc]
    assert step.replace(retries=3).retry.limit == 3
    assert step.retry.limit == 0


def test_a_replaced_field_is_checked_again() -> None:
    with pytest.raises(InvalidError, match=r"Executor 'train' has no field 'retrys'. Did you mean 'retries'?"):
        script("train").replace(retrys=3)
    with pytest.raises(InvalidError, match="timeout"):
        script("train").replace(timeout=-1)


def test_a_step_can_be_copied_and_pickled() -> None:
    step = script("train", parameters={"a": [1]}, env={"A": "1"}, for_each=[1, 2])
    assert copy.deepcopy(step) == step
    assert pickle.loads(pickle.dumps(step)) == step


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (PurePosixPath("data/x.npy"), "data/x.npy"),
        ((1, (2, 3)), [1, [2, 3]]),
        (range(3), [0, 1, 2]),
        (Size.SMALL, 3),
        ({1: "a"}, {"1": "a"}),
        (True, True),
    ],
)
def test_what_is_nearly_plain_is_made_plain(value: Any, kept: Any) -> None:
    found = script("train", parameters={"p": value}).parameters["p"]
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        b"bytes",
        (i for i in "ab"),
        len,
        1j,
        deque([1]),
        [object()],
        {"a": {"b": {3}}},
        script("a").output >= 1,
    ],
)
def test_what_cannot_be_written_down_is_refused_by_step_and_parameter(value: Any) -> None:
    with pytest.raises(InvalidError) as error:
        script("train", parameters={"model": value})
    assert message(error).startswith("Executor 'train': the parameter 'model' is a")
    assert "have a step load or make anything else." in message(error)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), "is nan, which cannot be written down as a number. Write the text 'nan', or None."),
        ([float("inf")], "is inf, which cannot be written down as a number"),
        ("\ud800", "is not valid Unicode"),
        pytest.param(10**5000, "a number of more than 4,000 digits", id="huge"),
        (nested(60), "nested more than 50 levels deep"),
        (nested(100_000), "nested more than 50 levels deep"),
        (inside_itself(), "nested more than 50 levels deep"),
        ({(1, 2): 3}, "has the key (1, 2). A key is text"),
        ({None: 3}, "has the key None. A key is text"),
        ({1: 2, "1": 3}, "has the key '1' twice, as text and as a number"),
        ({"$from": "load.x", "more": 1}, "has the key '$from', a word of scanflow's own"),
        ({"$pickle": "anything"}, "has the key '$pickle', a word of scanflow's own"),
        ({"$path": "anything"}, "has the key '$path', a word of scanflow's own"),
        ({"$from": "x"}, "The reference 'x' cannot be read. Write 'step.output', 'step.result' or 'item'."),
        ([{"deep": {"$from": 3}}], "The reference 3 cannot be read"),
    ],
)
def test_values_that_would_be_lost_on_paper_are_refused(value: Any, told: str) -> None:
    with pytest.raises(InvalidError) as error:
        script("train", parameters={"model": value})
    assert message(error).startswith("Executor 'train': ")
    assert told in message(error)
    assert len(message(error)) < 300


@pytest.mark.parametrize("parameters", [None, 3, "epochs", [1], [("a", 1)]])
def test_parameters_are_a_mapping(parameters: Any) -> None:
    with pytest.raises(InvalidError, match=r"Executor 'train': parameters cannot be .*: it should be a mapping\."):
        script("train", parameters=parameters)


@pytest.mark.parametrize("key", ["", "-x", "a b", "a=b", "a\nb", "a\0b"])
def test_a_parameters_name_can_become_an_option(key: str) -> None:
    with pytest.raises(InvalidError, match="which cannot become an option '--name value'"):
        script("train", parameters={key: 1})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"retrys": 1}, "Executor 'train' has no field 'retrys'. Did you mean 'retries'?"),
        (
            {"memory": "1Gi"},
            "Executor 'train' has no field 'memory'. It belongs in resources: resources=sf.Resources(memory=...).",
        ),
        ({"mainfile": None}, "needs either a 'mainfile' (a script) or a @sf.step function, and not both"),
        ({"mainfile": ""}, "needs either a 'mainfile' (a script) or a @sf.step function, and not both"),
        ({"function": "a.py:b"}, "needs either a 'mainfile' (a script) or a @sf.step function, and not both"),
        ({"mainfile": None, "function": "train"}, "The function 'train' cannot be read. Write 'file.py:name'"),
        ({"mainfile": None, "function": len}, "cannot be read. Write 'file.py:name' or 'package.module:name'."),
        ({"mainfile": 3}, "mainfile cannot be 3: it should be text (in a file, put it in quotes)."),
        ({"retries": True}, "retries cannot be True. Write retries=3, or sf.Retry(limit=3, delay='10s')."),
        ({"retries": 1.5}, "retries cannot be 1.5. Write retries=3"),
        ({"retries": "3"}, "retries cannot be '3'. Write retries=3"),
        ({"retries": None}, "retries cannot be None. Write retries=3"),
        ({"retries": -1}, "limit cannot be -1: it should be greater than or equal to 0."),
        ({"retries": 101}, "limit cannot be 101: it should be less than or equal to 100."),
        ({"cache": ""}, "cache cannot be ''. Write True, False, or a version as text"),
        ({"cache": 1}, "cache cannot be 1. Write True, False, or a version as text"),
        ({"requirements": 3}, "requirements cannot be 3. Write a file's name"),
        ({"requirements": [3]}, "requirements cannot be [3]. Write a file's name"),
        ({"requirements": {"numpy"}}, "requirements cannot be {'numpy'}. Write a file's name"),
        ({"env": {"A": 1}}, "env.A cannot be 1: it should be text"),
        ({"env": {"A=B": "1"}}, "env has 'A=B'='1', which no process can be given"),
        ({"env": {"": "1"}}, "which no process can be given"),
        ({"env": {"A": "a\0b"}}, "which no process can be given"),
        ({"affinity": "cpumen"}, "affinity 'cpumen' is not known. Did you mean 'cpumem'?"),
        ({"affinity": 3}, "affinity cannot be 3. Write one of any, cpu, cpumem, cpumempin"),
        ({"resources": {"cpu": -1}}, "Resources: cpu -1 is not above zero"),
        ({"resources": {"memory": "5Gb"}}, "Did you mean '5Gi'"),
        ({"resources": {"gpu": True}}, "gpu cannot be True: it should be a number."),
        ({"resources": 4}, "resources cannot be 4: it should be a Resources."),
    ],
)
def test_a_wrong_field_is_refused_by_the_steps_name_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as error:
        script("train", **fields)
    assert message(error).startswith("Executor 'train'")
    assert told in message(error)
    assert len(message(error).splitlines()) == 1


def test_every_wrong_field_is_told_at_once() -> None:
    with pytest.raises(InvalidError) as error:
        script("train", timeout=-1, retries=True)
    assert len(message(error).splitlines()) == 2


@pytest.mark.parametrize("name", [3, None, True, ["a"]])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(InvalidError, match=r"Executor: name cannot be .*: it should be text"):
        sf.Executor(name=name, mainfile="a.py")


def test_no_step_is_called_item() -> None:
    with pytest.raises(InvalidError, match=r"'item' stands for the current item of a fan-out. Choose another."):
        script("item")


@pytest.mark.parametrize(
    "field",
    [
        {"timeout": 3},
        {"image": "python"},
        {"requirements": "r.txt"},
        {"resources": sf.Resources(cpu=1)},
        {"env": {"A": "1"}},
    ],
)
def test_in_process_refuses_what_only_a_process_can_honour(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidError) as error:
        sf.Executor(name="train", function="a.py:train", in_process=True, **field)
    name = next(iter(field))
    assert message(error) == (
        f"Executor 'train' is in_process, where '{name}' cannot be honoured. Remove '{name}', or in_process=True."
    )


def test_a_script_cannot_run_in_process() -> None:
    with pytest.raises(InvalidError, match="Executor 'train' is a script, which cannot run in_process"):
        script("train", in_process=True)


def test_the_item_needs_something_to_run_over() -> None:
    for value in (sf.item, [sf.item["seed"]], {"deep": {"er": sf.item}}):
        with pytest.raises(
            InvalidError, match=r"Executor 'train' uses sf.item but has no for_each. Give it .*: for_each="
        ):
            script("train", parameters={"p": value})
    with pytest.raises(InvalidError, match="has no for_each"):
        script("train", when=sf.item > 3)


@pytest.mark.parametrize("over", [sf.item, [sf.item], [{"a": sf.item["x"]}]])
def test_a_list_to_run_over_cannot_be_made_of_its_items(over: Any) -> None:
    with pytest.raises(InvalidError, match=r"uses sf.item in its for_each, where there is no item yet"):
        script("train", for_each=over)


@pytest.mark.parametrize("over", ["abc", {"a": 1}, {1, 2}, 3, True, (i for i in "ab")])
def test_for_each_runs_over_a_list(over: Any) -> None:
    with pytest.raises(
        InvalidError, match=r"Executor 'train': for_each cannot be .*Give it a list, a step that returns one"
    ):
        script("train", for_each=over)


def test_for_each_takes_lists_tuples_ranges_steps_and_outputs() -> None:
    load = script("load")
    assert script("train", for_each=[1, 2]).for_each == script("train", for_each=(1, 2)).for_each == (1, 2)
    assert script("train", for_each=range(3)).for_each == (0, 1, 2)
    assert script("train", for_each=load).for_each == load.output
    assert script("train", for_each=load["files"]).for_each == load["files"]
    assert script("train", for_each=[load, {"a": load["files"]}]).references == (load.output, load["files"])


def test_changing_the_list_handed_in_changes_no_fan_out() -> None:
    grid: list[Any] = [{"lr": 1}]
    step = script("train", for_each=grid)
    grid.append(2)
    grid[0]["lr"] = 9
    assert step.for_each == ({"lr": 1},)


def test_a_step_as_a_parameter_stands_for_its_output() -> None:
    load, train = script("load"), script("train")
    step = script("best", parameters={"a": load, "b": [train["accuracy"]], "c": {"$from": "load.data"}})
    assert step.references == (load.output, train["accuracy"], load["data"])


@given(st.integers(0, 100), st.integers(1, 200), st.floats(1, 1e30), st.floats(0.001, 1e6))
def test_waits_grow_until_the_longest_and_never_fail(limit: int, failures: int, factor: float, delay: float) -> None:
    retry = sf.Retry(limit=limit, delay=delay, factor=factor, max_delay="1h")
    waits = [retry.wait_s(one) for one in range(1, failures + 1)]
    assert waits == sorted(waits)
    assert all(0 < wait <= 3600 for wait in waits)


def test_without_a_delay_nothing_is_waited_for() -> None:
    assert sf.Retry(limit=3, delay=None).wait_s(3) == 0
