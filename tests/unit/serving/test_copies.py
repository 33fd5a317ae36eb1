"""Which values are copied before another component takes them, and which need not be."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from scanflow_serving.copies import copy_input, isolate
from tests.unit.serving.serving_harness import expect_problem

KEPT: list[Any] = []


def keep(value: Any) -> Any:
    KEPT[:] = [value]
    return value


def get_address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_result_that_nothing_else_refers_to_is_not_copied() -> None:
    addresses: list[int] = []

    def make() -> Any:
        array = np.ones((2, 3)) + 1
        addresses.append(get_address(array))
        return array

    result = isolate(make())
    assert get_address(result) == addresses[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: keep(np.ones((2, 2))),
        lambda: keep(np.ones((4, 2)))[:2],
        lambda: keep({"a": np.ones(2)}),
        lambda: keep([np.ones(2)]),
        lambda: keep(np.array([b"a", "b"], dtype=object)),
        lambda: keep(memoryview(bytearray(b"abcd"))),
        lambda: keep(bytearray(b"abcd")),
    ],
)
def test_a_result_that_its_component_keeps_is_copied(make: Any) -> None:
    result = isolate(make())
    assert result is not KEPT[0]
    before = np.asarray(KEPT[0]).tolist() if not isinstance(KEPT[0], dict) else KEPT[0]["a"].tolist()
    if isinstance(result, dict):
        result["a"][:] = 7
    elif isinstance(result, list):
        result[0][:] = 7
    else:
        result[0] = 7
    after = np.asarray(KEPT[0]).tolist() if not isinstance(KEPT[0], dict) else KEPT[0]["a"].tolist()
    assert after == before


def test_what_is_read_only_or_overlaps_itself_becomes_an_array_that_may_be_changed() -> None:
    repeated = isolate(np.broadcast_to(np.ones(1), (3,)))
    repeated[0] = 2
    assert repeated.tolist() == [2, 1, 1]


def test_what_cannot_be_copied_goes_to_one_reader_only() -> None:
    lock = threading.Lock()
    assert isolate(lock) is lock
    with expect_problem("which cannot be copied", 500):
        copy_input(lock, "The node 'b'")
