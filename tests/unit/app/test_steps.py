"""``@sf.step``: functions as steps, their arguments checked when the step is described."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BeforeValidator

import scanflow as sf
from scanflow.app.steps import Step, check_parameters, check_result, get_exact_defaults
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import batch, refusal, script

if TYPE_CHECKING:
    from decimal import Decimal


@sf.step
def train(epochs: int, lr: float = 0.1, mode: Literal["fast", "slow"] = "fast") -> float:
    """Train a network."""
    return epochs * lr


@sf.step(retries=2, timeout="5m")
def load(path: Path, limit: int | None = None) -> list[int]:
    return [len(str(path))] * (limit or 1)


def test_a_step_is_still_its_function() -> None:
    assert train(2, lr=0.5) == 1.0
    assert train.__doc__ == "Train a network."
    assert train.__name__ == "train"  # update_wrapper sets it


def test_a_step_that_is_called_with_a_node_says_to_bind_it() -> None:
    later: Any = train.bind(1)
    with pytest.raises(InvalidError, match=r"Write train\.bind\(\.\.\.\)"):
        train(later)
    with pytest.raises(InvalidError, match=r"Write load\.bind"):
        load(path=later.output)


def test_binding_makes_a_node_named_after_the_function() -> None:
    node = train.bind(3, lr=0.5)
    assert (node.name, node.parameters) == ("train", {"epochs": 3, "lr": 0.5})
    assert node.function == f"{__name__}:train"
    assert node.target is not None
    assert node.target.call is train


def test_fields_of_the_step_are_fields_of_its_nodes_and_options_change_a_copy() -> None:
    assert load.bind("a").retry.limit == 2
    other = load.options(retries=5, name="load-more").bind("a")
    assert (other.name, other.retry.limit, other.timeout_s) == ("load-more", 5, 300.0)
    assert load.bind("a").retry.limit == 2


def test_a_node_as_an_argument_makes_the_edge() -> None:
    first = load.bind("a")
    second = train.bind(first["count"])
    assert batch(first, second).parents == {"load": (), "train": ("load",)}


def test_functions_that_give_no_value_at_once_are_refused() -> None:
    async def later() -> None: ...

    def generate_one() -> Any:
        yield 1

    async def some_later() -> Any:
        yield 1

    with pytest.raises(InvalidError, match=r"The step 'later' is async. Write a plain function that calls asyncio.run"):
        sf.step(later)
    for function in (generate_one, some_later):
        with pytest.raises(InvalidError, match=r"yields. Return a list instead"):
            sf.step(retries=1)(function)


def test_a_step_that_takes_any_names_takes_any_names() -> None:
    @sf.step
    def note(**tags: int) -> None: ...

    assert note.bind(a=1, b=2).parameters == {"a": 1, "b": 2}


def test_a_function_without_a_name_that_kubernetes_takes_says_so() -> None:
    @sf.step
    def _() -> None: ...

    with pytest.raises(InvalidError, match="The executor name '' cannot be used"):
        _.bind()
    assert _.options(name="quiet").bind().name == "quiet"


def test_a_long_function_name_is_cut_to_one_that_kubernetes_takes() -> None:
    def function() -> None: ...

    function.__name__ = "very_" * 20
    assert len(sf.step(function).bind().name) <= 63


def test_mapping_gives_the_item_to_the_first_parameter_that_is_free() -> None:
    node = train.map([1, 2], lr=0.5)
    assert (node.for_each, node.parameters) == ((1, 2), {"lr": 0.5, "epochs": sf.item})
    assert train.map([0.1], 3).parameters == {"epochs": 3, "lr": sf.item}


def test_mapping_leaves_arguments_that_use_the_item_as_they_are() -> None:
    assert train.map([{"e": 1}], sf.item["e"]).parameters == {"epochs": sf.item["e"]}
    assert train.map([{"e": 1}], 2, lr=sf.item["e"]).parameters == {"epochs": 2, "lr": sf.item["e"]}


def test_mapping_over_an_earlier_step_waits_for_it() -> None:
    first = load.bind("a")
    assert batch(first, train.map(first)).parents == {"load": (), "train": ("load",)}
    assert train.options(when=sf.item > 1).map(first).parameters == {"epochs": sf.item}


@given(
    st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.none() | st.lists(st.integers(), max_size=2)
)
def test_what_is_refused_as_an_argument_is_what_the_annotation_refuses(value: Any) -> None:
    def takes(number: int) -> None: ...

    message = refusal(lambda: check_parameters(takes, {"number": value}, who="Step 'takes'"))
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53):
        assert message is None
        assert check_parameters(takes, {"number": value}, who="Step 'takes'") == {"number": value}
    elif not isinstance(value, str | float) or value == "" or (isinstance(value, float) and not value.is_integer()):
        assert message is not None
        assert message.startswith("Step 'takes': the parameter 'number' is ")


LOAD = script("load-all")


@dataclasses.dataclass
class Box:
    size: int


class Own: ...


def test_annotations_of_any_kind_are_checked() -> None:
    def takes(box: Box, own: Own, paths: list[Path], either: int | None = None) -> dict[str, int]:
        return {}

    checked = check_parameters(takes, {"box": {"size": 3}, "own": (own := Own()), "paths": ["a"]}, who="Step 't'")
    assert checked == {"box": Box(3), "own": own, "paths": [Path("a")]}
    assert check_result(takes, {"a": 1}, who="Step 't'") == {"a": 1}
    with pytest.raises(InvalidError, match=r"Step 't': its result is .*, which is not dict"):
        check_result(takes, {"a": "many"}, who="Step 't'")
    with pytest.raises(InvalidError, match="Step 't': the parameter 'own' is 3, which is not"):
        check_parameters(takes, {"box": Box(1), "own": 3, "paths": []}, who="Step 't'")


def refuse_type(value: Any) -> Any:
    raise TypeError("not of this kind")


class Row(TypedDict):
    """A mapping whose class is that of the standard library."""

    size: int
    day: NotRequired[date]


@pytest.mark.parametrize(
    "items", [[(LOAD, 2)], [[(1, 2)]], sf.crossed(epochs=[LOAD, (LOAD, 1)]), [Path("a")], sf.zipped(epochs=[Path("a")])]
)
def test_items_that_a_definition_would_change_are_refused(items: Any) -> None:
    def takes(epochs: Any) -> None: ...

    with pytest.raises(InvalidError, match=r"Step 'takes', an item: 'epochs' .* which a definition keeps as"):
        Step(takes).map(items)


def test_a_part_of_an_item_is_checked() -> None:
    def takes(epochs: int) -> None: ...

    with pytest.raises(InvalidError, match=r"the item {'n': 'x'} has no 'm', which sf.item\['m'\] refers to"):
        Step(takes).map([{"n": "x"}], sf.item["m"])
    with pytest.raises(InvalidError, match=r"'epochs' is 'x', which is not int"):
        Step(takes).map([{"n": "x"}], sf.item["n"])
    with pytest.raises(InvalidError, match=r"an item: 'epochs' is a tuple"):
        Step(lambda epochs: epochs).options(name="any").map([{"n": (1,)}], sf.item["n"])
    Step(takes).map([LOAD["all"]], sf.item["n"])


def test_a_function_beside_a_type_checks_a_value_and_does_not_change_it() -> None:
    def takes(
        number: Annotated[int, AfterValidator(lambda value: 2 * value)] = 1,
        day: Annotated[date, AfterValidator(lambda day: day.replace(year=2000))] = date(2020, 1, 1),
        names: list[Annotated[str, AfterValidator(len)]] = [],  # noqa: B006
        parts: Annotated[list[str], BeforeValidator(lambda text: text.split(","))] = [],  # noqa: B006
        wrong: Annotated[int, AfterValidator(refuse_type)] = 1,
    ) -> None: ...

    fields = {"number": 3, "day": "2024-02-03", "names": ["ab"], "parts": "a,b"}
    checked = {"number": 3, "day": date(2024, 2, 3), "names": ["ab"], "parts": ["a", "b"]}
    assert check_parameters(takes, fields, who="Step 't'") == checked
    with pytest.raises(InvalidError, match=r"'wrong' is 1, which is not .*refuse_type.*: TypeError: not of this kind"):
        check_parameters(takes, {"wrong": 1}, who="Step 't'")


def test_typed_mappings_and_other_names_are_checked() -> None:
    def takes(row: Row, rows: list[Row] | None = None, **rest: int) -> None: ...

    row = {"size": 3, "day": "2024-02-03"}
    assert check_parameters(takes, {"row": row, "other": "4"}, who="Step 't'") == {
        "row": {"size": 3, "day": date(2024, 2, 3)},
        "other": 4,
    }
    refused: list[dict[str, Any]] = [{"row": {"size": "many"}}, {"row": {}}, {"row": row, "rows": [{}]}]
    for wrong in [*refused, {"row": row, "other": "x"}]:
        with pytest.raises(InvalidError, match=r"Step 't': the parameter '(row|rows|other)' is "):
            check_parameters(takes, wrong, who="Step 't'")


def test_a_value_that_holds_itself_is_checked_and_handed_on() -> None:
    def takes(values: list, either: int | list | None = None) -> None: ...  # type: ignore[type-arg]

    values: list[Any] = [1]
    values.append(values)
    checked = check_parameters(takes, {"values": values, "either": values}, who="Step 't'", exact=True)
    assert checked["values"] is values
    assert checked["either"] is values


def test_an_annotation_that_cannot_be_read_checks_nothing_and_the_others_still_do() -> None:
    def takes(price: Decimal, count: int) -> Decimal:
        return price

    assert check_parameters(takes, {"price": "any", "count": "3"}, who="Step 't'") == {"price": "any", "count": 3}
    with pytest.raises(InvalidError, match="the parameter 'count' is 'many', which is not int"):
        check_parameters(takes, {"price": "any", "count": "many"}, who="Step 't'")
    assert "takes(price" in str(Step(takes))


def test_what_is_known_at_run_time_is_not_checked_now() -> None:
    other = script("other")
    assert train.bind(other["n"]).parameters == {"epochs": other["n"]}
    assert train.bind([other["n"]]).references == (other["n"],)


def test_defaults_that_json_would_change_stay_the_function_s() -> None:
    def fit(  # type: ignore[no-untyped-def]
        rate: float = 0.1,
        pair=(1, 2),  # noqa: ANN001  as people write them
        typed: tuple[int, int] = (1, 2),
        layers: list[int] = [3],  # noqa: B006
        nested=[(1,)],  # noqa: ANN001, B006
        nothing: str | None = None,
    ) -> None: ...

    assert get_exact_defaults(fit) == {"rate": 0.1, "typed": (1, 2), "layers": [3], "nothing": None}
