"""Values known only at run time: references and conditions, and what they are not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.references import Ref, references_in
from scanflow.errors import InvalidError
from tests.unit.app.making import keys, message, names, plain_values, script, texts

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
def test_an_output_whose_name_looks_like_a_condition_makes_no_difference(output: str, value: Any) -> None:
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
    assert references_in(where) == some
    assert list(script("next", parameters=where).references) == some


@pytest.mark.parametrize(
    "text", ["x", "", ".", "train", "train.", ".x", "Train.x", "a b.c", "train .x", 3, None, ["train.x"], True]
)
def test_a_reference_that_cannot_be_read_says_how_one_is_written(text: Any) -> None:
    with pytest.raises(InvalidError) as error:
        script("next", parameters={"p": [{"q": {"$from": text}}]})
    assert message(error).startswith("Executor 'next': The reference ")
    assert "Write 'step.output', 'step.result' or 'item'." in message(error)


@given(st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge]), st.integers(), st.integers())
def test_a_comparison_holds_as_one_of_values_would(compare: Callable[..., Any], value: int, limit: int) -> None:
    assert compare(train["x"], limit).holds(value) is compare(value, limit)


@given(plain_values, plain_values)
def test_equality_is_a_method_and_holds_for_equal_values(value: Any, other: Any) -> None:
    assert train["x"].equals(other).holds(value) is (value == other)
    assert train["x"].differs(other).holds(value) is (value != other)
    assert train["x"].is_in([other]).holds(other)


def test_values_that_cannot_be_compared_are_told_by_their_condition() -> None:
    with pytest.raises(
        InvalidError, match=r"The condition 'train.x > 3' cannot be tested: 'train.x' turned out to be 'good'"
    ):
        (train["x"] > 3).holds("good")


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


def test_a_chained_comparison_is_refused_rather_than_half_kept() -> None:
    with pytest.raises(InvalidError, match=r"'train.x > 1' is known only at run time"):
        _ = 1 < train["x"] < 3


def test_a_reference_is_refused_inside_a_text_rather_than_written_into_it() -> None:
    with pytest.raises(
        InvalidError, match=r"'train.x' .* cannot become a part of a text. Hand it on as a parameter of its own"
    ):
        f"{train['x']}/model"


def test_nothing_can_go_through_a_reference_now() -> None:
    with pytest.raises(
        InvalidError, match=r"nothing can go through it now. Have a step run for each of its items: for_each="
    ):
        list(train["files"])
    with pytest.raises(InvalidError, match="nothing can go through it now"):
        _ = "a" in train["files"]  # type: ignore[operator]  # what is refused here


def test_only_the_item_has_keys_of_its_own() -> None:
    assert str(sf.item["seed"]) == "item.seed"
    for ref in (train["x"], sf.item["seed"]):
        with pytest.raises(InvalidError, match=r"has no keys of its own. Write node\['y'\] instead"):
            ref["y"]


@pytest.mark.parametrize("output", ["", 0, None])
def test_an_output_has_a_name(output: Any) -> None:
    with pytest.raises(InvalidError, match=r"names no output|should be text"):
        train[output]


@pytest.mark.parametrize(
    ("when", "told"),
    [
        (True, "'when' cannot be True: '==' compares references, not their values. Write when=node[...].equals(1)."),
        (False, "'when' cannot be False: '==' compares references, not their values."),
        (train["ok"], "'when' needs a condition, and 'train.ok' is a value. Write when=node[...].equals(True)."),
        (3, "when cannot be 3: it should be a Condition."),
        ("train accuracy", "The condition 'train accuracy' cannot be read. Write it as 'check.accuracy >= 0.9'."),
        ("train.x == good", "compares with 'good', which is not JSON. Write text in double quotes"),
        ("train.x == 'good'", "which is not JSON. Write text in double quotes"),
        ("train.x == " + "[" * 100_000, "which is not JSON"),
        ("x == 3", "The reference 'x' cannot be read."),
        ("train.x in 3", "looks into 3, which is not a list. Write a list"),
        ({"left": 3, "op": "==", "right": 1}, "left cannot be 3: it should be a Ref."),
        ({"left": {"$from": "train.x"}, "op": "=", "right": 1}, "op cannot be '='"),
    ],
)
def test_what_is_no_condition_is_refused_with_how_to_write_one(when: Any, told: str) -> None:
    with pytest.raises(InvalidError) as error:
        script("next", when=when)
    assert message(error).startswith("Executor 'next': ")
    assert told in message(error)
    assert len(message(error)) < 400


def test_equality_of_a_reference_is_false_and_no_condition() -> None:
    one: Any = 1
    assert (train["ok"] == one) is False


@pytest.mark.parametrize("other", [script("best")["x"], script("best"), script("best").output])
def test_two_values_of_run_time_cannot_be_compared(other: Any) -> None:
    with pytest.raises(InvalidError, match="Have a step compare the two and return True or False"):
        _ = train["x"] > other


@pytest.mark.parametrize("other", [float("nan"), {1}, object(), b"x"])
def test_a_condition_compares_with_what_can_be_written_down(other: Any) -> None:
    with pytest.raises(InvalidError, match="what a condition compares with is"):
        train["x"].equals(other)


def test_a_text_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(
        InvalidError, match=r"is_in cannot look into the text 'good'. Write a list: is_in\(\['good'\]\)"
    ):
        train["x"].is_in("good")


@given(plain_values)
def test_a_conditions_value_is_a_copy(value: Any) -> None:
    assume(isinstance(value, list))
    condition = train["x"].equals(value)
    value.append("more")
    assert condition.right == value[:-1]
