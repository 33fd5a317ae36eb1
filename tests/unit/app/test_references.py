"""Values known only at run time: references and conditions, and what they are not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.references import Ref, list_references
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import keys, names, plain_values, script, texts

train = script("train")
refs = (
    st.builds(Ref, step=names, output=texts.filter(bool))
    | st.just(sf.item)
    | st.builds(Ref, step=st.none(), output=texts)
)


@given(refs)
def test_a_reference_survives_being_written_and_read(ref: Ref) -> None:
    assert Ref.model_validate(ref.model_dump()) == ref


@given(refs, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), plain_values)
def test_a_condition_survives_being_written_and_read(left: Ref, sign: Any, right: Any) -> None:
    condition = sf.Condition(left=left, op=sign, right=right)
    assert sf.Condition.model_validate(condition.model_dump()) == condition
    assert script("next", when=condition.model_dump(), for_each=[1]).when == condition


@given(st.sampled_from(["a<b", "a b", "in", " x", "a == 1", "a\nb", ">="]), plain_values)
def test_an_output_where_the_name_looks_like_a_condition_makes_no_difference(output: str, value: Any) -> None:
    condition = train[output].equals(value)
    assert script("next", when=condition.model_dump()).when == condition


def test_a_condition_is_written_as_people_write_it() -> None:
    written: list[Any] = [
        (train["accuracy"] >= 0.9).model_dump(),
        train["verdict"].is_in(["good", "fair"]).model_dump(),
    ]
    assert written == ["train.accuracy >= 0.9", 'train.verdict in ["good", "fair"]']


@given(
    st.dictionaries(keys, plain_values),
    st.lists(st.builds(Ref, step=names), max_size=4),
    st.randoms(use_true_random=False),
)
def test_references_are_found_at_any_depth_in_order(parameters: dict[str, Any], some: list[Ref], rng: Any) -> None:
    where: dict[str, Any] = dict(parameters)
    for index, ref in enumerate(some):
        value: Any = ref
        for _ in range(rng.randrange(4)):
            value = rng.choice([{"in": value, "beside": 1}, [0, value], (value,)])
        where[f"~{index}"] = value
    assert list_references(where) == some
    assert list(script("next", parameters=where).references) == some


@given(st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge]), st.integers(), st.integers())
def test_a_comparison_holds_as_one_of_values_would(compare: Callable[..., Any], value: int, limit: int) -> None:
    assert compare(train["x"], limit).holds(value) is compare(value, limit)


@given(plain_values, plain_values)
def test_equality_is_a_method_and_holds_for_equal_values(value: Any, other: Any) -> None:
    assert train["x"].equals(other).holds(value) is (value == other)
    assert train["x"].differs(other).holds(value) is (value != other)
    assert train["x"].is_in([other]).holds(other)


USES: dict[str, Callable[[Any], Any]] = {
    "if": bool,
    "and": lambda value: value and True,
    "or": lambda value: value or True,
    "not": operator.not_,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("value", [train["x"] > 3, train["x"], train.output, sf.item])
def test_what_is_known_at_run_time_cannot_decide_anything_now(value: Any, use: Callable[[Any], Any]) -> None:
    with pytest.raises(
        InvalidError, match=r"known only at run time, so it cannot be used in an 'if', 'and' or 'or'.*when="
    ):
        use(value)


def test_equality_of_a_reference_is_false_and_no_condition() -> None:
    number: Any = 1
    assert (train["ok"] == number) is False


@given(plain_values)
def test_a_conditions_value_is_a_copy(value: Any) -> None:
    assume(isinstance(value, list))
    condition = train["x"].equals(value)
    value.append("more")
    assert condition.right == value[:-1]
