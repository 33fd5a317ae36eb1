"""The step of a batch workflow: what it takes, what it refuses, and that nobody changes it afterwards."""

from __future__ import annotations

import copy
import enum
import itertools
import pickle
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import keys, message, plain_values, script


class Size(enum.IntEnum):
    SMALL = 3


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def make_circular() -> list[Any]:
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
    grid: list[Any] = [{"lr": 1}]
    step = script("train", parameters=parameters, env=env, for_each=grid)
    grid.append(2)
    grid[0]["lr"] = 9
    layers.append(3)
    layers[1]["size"] = 9
    parameters["more"] = 1
    env["B"] = "2"
    assert step.parameters == {"layers": [1, {"size": 2}]}
    assert (step.env, step.for_each) == ({"A": "1"}, ({"lr": 1},))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "setting": lambda mapping: mapping.__setitem__("a", 2),
    "deleting": lambda mapping: mapping.__delitem__("a"),
    "clearing": lambda mapping: mapping.clear(),
    "popping": lambda mapping: mapping.pop("a"),
    "popping any": lambda mapping: mapping.popitem(),
    "a default": lambda mapping: mapping.setdefault("b", 2),
    "updating": lambda mapping: mapping.update(a=2),
    "merging": lambda mapping: mapping.__ior__({"a": 2}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_parameters_and_variables_cannot_be_changed_in_place(change: Callable[[Any], Any]) -> None:
    step = script("train", parameters={"a": 1}, env={"a": "1"})
    for held in (step.parameters, step.env, script("train").parameters):
        with pytest.raises(InvalidError, match=r"Make a changed copy: node\.replace\(parameters="):
            change(held)
    assert (step.parameters, step.env) == ({"a": 1}, {"a": "1"})


def test_a_step_can_be_copied_and_pickled() -> None:
    step = script("train", parameters={"a": [1]}, env={"A": "1"}, for_each=[1, 2])
    assert copy.deepcopy(step) == step
    assert pickle.loads(pickle.dumps(step)) == step


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (PurePosixPath("data/x.npy"), "data/x.npy"),
        ((1, (2, 3)), [1, [2, 3]]),
        (range(3), [0, 1, 2]),
        (Size.SMALL, 3),
        ({1: "a"}, {"1": "a"}),
        (True, True),
    ],
)
def test_what_is_nearly_plain_is_made_plain(value: Any, plain: Any) -> None:
    parameter = script("train", parameters={"p": value}).parameters["p"]
    assert parameter == plain
    assert type(parameter) is type(plain)


WRITTEN_BY_NOBODY = [
    object(),
    {1, 2},
    b"x",
    (i for i in "ab"),
    len,
    1j,
    [object()],
    {"a": {"b": {3}}},
    script("a").output >= 1,
]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (WRITTEN_BY_NOBODY, "which cannot be serialized. Use text, numbers, true/false, lists, mappings or paths"),
        ([float("nan")], "is nan, which JSON cannot represent. Write None, or make it in a step: float('nan')."),
        ([[float("inf")]], "is inf, which JSON cannot represent"),
        (["\ud800"], "is not valid Unicode"),
        ([10**5000], "a number of more than 4,000 digits"),
        ([nest(60), nest(100_000), make_circular()], "nested more than 50 levels deep"),
        ([{(1, 2): 3}], "has the key (1, 2). A key is text or a whole number"),
        ([{None: 3}], "has the key None. A key is text or a whole number: make this mapping in a step"),
        (
            [date(2024, 2, 29)],
            "a date, which cannot be serialized. Give its text, '2024-02-29', of which an annotation",
        ),
        ([Decimal("1.10")], "a Decimal, which cannot be serialized. Give its text, '1.10'"),
        ([{1: 2, "1": 3}], "has the key '1' twice, as text and as a number"),
        ([{"$from": "load.x", "more": 1}], "has the key '$from', which scanflow reserves"),
        ([{"$pickle": "x"}, {"$path": "x"}], ", which scanflow reserves"),
        ([{"$from": "x"}], "The reference 'x' cannot be read. Write 'step.output', 'step.result' or 'item'."),
        ([[{"deep": {"$from": 3}}]], "The reference 3 cannot be read"),
    ],
    ids=itertools.count(),
)
def test_what_would_be_lost_on_paper_is_refused_by_step_and_parameter(values: list[Any], reason: str) -> None:
    for value in values:
        with pytest.raises(InvalidError) as error:
            script("train", parameters={"model": value})
        assert message(error).startswith("Executor 'train': ")
        assert reason in message(error)
        assert len(message(error)) < 300


def test_every_wrong_field_is_reported_at_once() -> None:
    with pytest.raises(InvalidError) as error:
        script("train", timeout=-1, retries=True)
    assert len(message(error).splitlines()) == 2


def test_for_each_takes_lists_tuples_ranges_steps_and_outputs() -> None:
    load = script("load")
    assert script("train", for_each=[1, 2]).for_each == script("train", for_each=(1, 2)).for_each == (1, 2)
    assert script("train", for_each=range(3)).for_each == (0, 1, 2)
    assert script("train", for_each=load).for_each == load.output
    assert script("train", for_each=load["files"]).for_each == load["files"]
    assert script("train", for_each=[load, {"a": load["files"]}]).references == (load.output, load["files"])


def test_a_step_as_a_parameter_stands_for_its_output() -> None:
    load, train = script("load"), script("train")
    step = script("best", parameters={"a": load, "b": [train["accuracy"]], "c": {"$from": "load.data"}})
    assert step.references == (load.output, train["accuracy"], load["data"])


@given(st.integers(0, 100), st.integers(1, 200), st.floats(1, 1e30), st.floats(0.001, 1e6))
def test_waits_grow_until_the_longest_and_never_fail(limit: int, failures: int, factor: float, delay: float) -> None:
    retry = sf.Retry(limit=limit, delay=delay, factor=factor, max_delay="1h")
    waits = [retry.wait_s(number) for number in range(1, failures + 1)]
    assert waits == sorted(waits)
    assert all(0 < wait <= 3600 for wait in waits)


def test_without_a_delay_nothing_is_waited_for() -> None:
    assert sf.Retry(limit=3, delay=None).wait_s(3) == 0
