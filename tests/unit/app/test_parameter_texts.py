"""Parameters that are given as text: ``-p name=text``."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

import scanflow as sf
from scanflow.app.parameter_texts import parse_parameter
from scanflow.app.steps import check_parameters
from scanflow.backends.values import format_argument
from tests.unit.app.app_builders import batch, script


class Color(Enum):
    RED = "red"
    ONE = "1"


class Level(IntEnum):
    LOW = 1


class Mode(StrEnum):
    FIRST = "1"


class Options(BaseModel):
    depth: int


class Pair(NamedTuple):
    left: int
    right: int


def arrive(annotation: Any, text: str, **default: Any) -> Any:
    """Return what a function gets for ``-p x=text``."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    if default:
        function.__defaults__ = (default["default"],)
    if default:
        workflow = batch(sf.step(function).bind())
        value = workflow.with_parameters(workflow.parse_parameters({"x": text})).steps[0].parameters["x"]
    else:  # what is bound first would have to fit the annotation
        value = parse_parameter(text, annotation)
    return check_parameters(function, {"x": value}, who="Step 's'")["x"]


text = st.text(st.characters(exclude_categories=["Cs"]))
numbers_as_text = st.one_of(
    st.integers().map(str), st.floats().map(str), st.decimals(allow_nan=False).map(str), st.just("1234567e100")
)


@given(st.one_of(text, numbers_as_text, st.sampled_from(["null", "true", "[1]", '"quoted"', "1.10", "{}"])))
def test_a_text_parameter_gets_the_text_as_it_is(given_text: str) -> None:
    assert arrive(str, given_text) == given_text
    assert arrive(str, given_text, default="x") == given_text
    assert arrive(Annotated[str, Field(min_length=0)], given_text) == given_text
    assert arrive(Any, given_text, default="x") == given_text


@given(st.one_of(text.filter(lambda word: word != "null"), numbers_as_text))
def test_text_that_may_be_missing_is_text_but_for_null(given_text: str) -> None:
    assert arrive(str | None, given_text) == given_text
    assert arrive(str | None, given_text, default=None) == given_text
    assert arrive(str | None, "null") is None


@given(st.integers(min_value=-(10**300), max_value=10**300))
def test_whole_numbers_arrive_by_annotation_and_by_the_default(number: int) -> None:
    for annotation, default in ((int, {}), (int | None, {}), (Any, {"default": 3}), (Any, {"default": None})):
        value = arrive(annotation, str(number), **default)
        assert (value, type(value)) == (number, int)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_arrive_by_annotation_and_by_the_default(number: float) -> None:
    for annotation, default in ((float, {}), (float | None, {}), (Any, {"default": 0.5})):
        value = arrive(annotation, repr(number), **default)
        assert (value, type(value)) == (number, float)


@given(st.booleans())
def test_truth_values_arrive_as_json_or_as_pydantic_reads_them(value: bool) -> None:
    for word in (json.dumps(value), str(value), "yes" if value else "no", "on" if value else "off"):
        assert arrive(bool, word) is value
        assert arrive(Any, word, default=True) is value


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: not isinstance(value, str))


@given(documents)
def test_json_arrives_where_nothing_else_is_said(value: Any) -> None:
    assert parse_parameter(json.dumps(value)) == value
    if isinstance(value, list):
        assert arrive(list, json.dumps(value)) == value
        assert parse_parameter(json.dumps(value), list[Any] | str) == value


@pytest.mark.parametrize(
    ("annotation", "given_text", "value"),
    [
        (int, "1e3", 1000),
        (float, "3", 3.0),
        (Decimal, "1.10", Decimal("1.10")),
        (dt.date, "2020-01-02", dt.date(2020, 1, 2)),
        (dt.date | None, "2020-01-02", dt.date(2020, 1, 2)),
        (Path, "12345", Path("12345")),
        (Path | None, "null", None),
        (Color, "1", Color.ONE),
        (Color | None, "red", Color.RED),
        (Level, "1", Level.LOW),
        (Mode, "1", Mode.FIRST),
        (Literal[1, "a"], "1", 1),
        (Literal["1", "a"], "1", "1"),
        (list[str], '["1", "x"]', ["1", "x"]),
        (list[str] | None, "null", None),
        (Sequence[int], "[1, 2]", [1, 2]),
        (tuple[int, ...], "[1, 2]", (1, 2)),
        (set[int], "[1, 2]", {1, 2}),
        (dict[str, float], '{"a": 1.5}', {"a": 1.5}),
        (Options, '{"depth": 3}', Options(depth=3)),
        (Pair, "[1, 2]", Pair(1, 2)),
        (int | str, "12", 12),
        (int | str, "012", "012"),
        (float | str, "1.10", "1.10"),
        (bool | str, "true", True),
        (str | list[str], '["a","b"]', ["a", "b"]),
        (bytes, "abc", b"abc"),
    ],
)
def test_other_annotations_are_obeyed_as_well(annotation: Any, given_text: str, value: Any) -> None:
    arrived = arrive(annotation, given_text)
    assert (arrived, type(arrived)) == (value, type(value))


def test_any_iterable_gets_a_list() -> None:
    assert parse_parameter("[1, 2]", Iterable[float]) == [1, 2]


def test_the_default_decides_between_text_and_a_number() -> None:
    assert [arrive(int | str, "12", default=default) for default in ("a", 3, None)] == ["12", 12, 12]


def test_a_function_beside_a_type_changes_no_number() -> None:
    assert arrive(Annotated[int, AfterValidator(lambda value: 2 * value)], "3") == 3
    assert arrive(Annotated[float, AfterValidator(lambda value: value / 2)], "3") == 3


def test_what_does_not_fit_is_refused_as_it_was_written() -> None:
    with pytest.raises(sf.ScanflowError, match=r"the parameter 'x' is '\[1', which is not int"):
        arrive(int, "[1")
    with pytest.raises(sf.ScanflowError, match=r"'x' is 'blue'.*'red' or '1'"):
        arrive(Color, "blue")
    with pytest.raises(sf.ScanflowError, match=r"'2026-13-04', which is not date: .*month value is outside"):
        arrive(dt.date, "2026-13-04")


@given(st.one_of(text, numbers_as_text, documents.map(json.dumps)).filter(lambda word: word != "null"))
def test_a_script_gets_the_text_as_it_is(given_text: str) -> None:
    workflow = batch(script("a", parameters={"x": 3}), script("b", parameters={"x": "word"}))
    changed = workflow.with_parameters(workflow.parse_parameters({"x": given_text}))
    assert [format_argument(step.parameters["x"], who="x") for step in changed.steps] == [given_text] * 2


def test_a_scripts_numbers_are_numbers_where_that_changes_nothing() -> None:
    workflow = batch(script("a", parameters={"x": 3, "y": 1}))
    assert workflow.parse_parameters({"x": "5", "y": "1.10"}) == {"x": 5, "y": "1.10"}
    assert workflow.parse_parameters({"x": "null"}) == {"x": None}


def test_a_short_name_selects_in_each_step_what_its_annotation_says() -> None:
    @sf.step
    def count(size: int) -> None: ...

    @sf.step
    def name(size: str) -> None: ...

    @sf.step
    def take_size(size: str) -> None: ...

    counted = count.bind(1)
    workflow = batch(counted, name.bind("x"), take_size.bind(counted))
    assert workflow.parse_parameters({"size": "12"}) == {"count.size": 12, "name.size": "12"}
    assert workflow.parse_parameters({"size": "12"}, step="name") == {"size": "12"}
    assert workflow.parse_parameters({"count.size": "12", "take-size.size": "1.10"}) == {
        "count.size": 12,
        "take-size.size": "1.10",
    }
