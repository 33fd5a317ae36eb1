"""``map`` by keyword, over one list or several."""

from __future__ import annotations

from typing import Any, cast

import pytest

import scanflow as sf
from scanflow.app.references import Ref
from scanflow.errors import InvalidError

item = sf.item


@sf.step
def load() -> list[int]:
    return [1, 2]


@sf.step
def train(rate: float, depth: int = 3, layers: list[int] | None = None, frame: Any = None) -> float:
    return rate


@sf.step
def plain(rate: Any, frame: Any = None) -> Any:
    return rate


def test_the_only_list_given_by_name_is_the_fan_out_and_all_else_is_the_same_for_each_item() -> None:
    node = train.map(rate=[0.1, 0.2], frame=load.bind(), depth=4)
    assert node == train.map([0.1, 0.2], frame=load.bind(), depth=4)
    assert node.parameters == {"rate": item, "frame": Ref(step="load"), "depth": 4}
    assert plain.map(rate=range(2)).for_each == (0, 1)


def test_a_list_for_a_parameter_that_is_a_list_is_a_plain_value() -> None:
    node = train.map(rate=(0.1, 0.2), layers=[64, 32])
    assert (node.for_each, node.parameters) == ((0.1, 0.2), {"rate": item, "layers": [64, 32]})
    nested = train.map(rate=0.1, layers=[[64], [32, 16]])
    assert (nested.for_each, nested.parameters["layers"]) == (([64], [32, 16]), item)
    with pytest.raises(InvalidError, match=r"'train' does not say what it runs for each item of.*train\.map\(items"):
        train.map(rate=0.1, layers=[64, 32])


def test_the_only_output_of_a_step_is_the_fan_out_where_there_is_no_list() -> None:
    node = train.map(rate=load.bind(), depth=4)
    assert (node.for_each, node.parameters) == (Ref(step="load"), {"rate": item, "depth": 4})
    with pytest.raises(InvalidError, match=r"does not say which of rate, frame it runs for each item of"):
        train.map(rate=load.bind(), frame=load.bind()["frame"])


def test_several_lists_are_refused_until_it_is_said_how_they_go_together() -> None:
    with pytest.raises(InvalidError, match=r"over several lists: rate, depth.*sf\.zipped\(rate=\.\.\., depth=\.\.\.\)"):
        train.map(rate=[0.1, 0.2], depth=[3, 4])
    node = train.map(sf.zipped(rate=[0.1, 0.2], depth=[3, 4]), frame=load.bind())
    assert node.for_each == ({"rate": 0.1, "depth": 3}, {"rate": 0.2, "depth": 4})
    assert node.parameters == {"frame": Ref(step="load"), "rate": item["rate"], "depth": item["depth"]}
    crossed = train.map(sf.crossed(rate=[0.1, 0.2], depth=[3, 4]))
    assert isinstance(crossed.for_each, tuple)
    assert [tuple(values.values()) for values in crossed.for_each] == [(0.1, 3), (0.1, 4), (0.2, 3), (0.2, 4)]
    assert train.map(sf.zipped(rate=[], depth=[])).for_each == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sf.zipped(rate=[1], depth=[1, 2]), r"one length, but rate has 1, depth has 2.*sf\.crossed"),
        (sf.zipped, r"sf\.zipped names no list"),
        (lambda: sf.crossed(rate=cast("Any", 3)), r"takes lists, and 'rate' is 3\. Write rate=\["),
        (lambda: sf.zipped(rate=cast("Any", load.bind())), r"'rate' is the output of a step.*sf\.item"),
        (lambda: train.map(sf.zipped(rate=["x"])), r"Step 'train': the parameter 'rate' is 'x', which is not float"),
        (lambda: train.map(sf.zipped(rate=[1]), rate=2), r"'train' is given 'rate' twice"),
        (lambda: train.map(sf.zipped(rat=[1])), r"'train' has no parameter 'rat'\. Did you mean 'rate'\?"),
        (
            lambda: train.map([0.1], fram=3),
            r"'train' has no parameter 'fram'\. Did you mean 'frame'\? Its signature: tr",
        ),
        (lambda: train.map(rat=[0.1]), r"'train' has no parameter 'rat'\. Did you mean 'rate'"),
        (lambda: train.bind(0.1, dept=3), r"'train' has no parameter 'dept'\. Did you mean 'depth'"),
        (lambda: train.bind(0.1, rate=3), r"'train': multiple values for argument 'rate'"),
        (train.map, r"'train' does not say what it runs for each item of"),
        (lambda: train.map(rate=["fast"]), r"'rate' is 'fast', which is not float"),
    ],
)
def test_wrong_arguments_are_named_with_the_step_and_a_suggestion(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()


def test_a_parameter_may_be_called_over() -> None:
    @sf.step
    def cut(over: int, depth: int = 1) -> int:
        return over

    assert cut.map(over=[1, 2]) == cut.map([1, 2])
    assert train.map(over=[0.1]) == train.map([0.1])
