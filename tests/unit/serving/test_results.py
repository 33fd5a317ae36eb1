"""What components return, as outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scanflow_serving.problems import ProblemError
from scanflow_serving.results import to_raw_bytes, to_tensors
from scanflow_serving.signature import TensorSpec

WHO = "The node 'n'"


def described(value: Any, *declared: TensorSpec) -> list[tuple[str, str, list[int]]]:
    return [(one.name, one.datatype, list(one.data.shape)) for one in to_tensors(value, declared, WHO)]


@pytest.mark.parametrize(
    ("value", "outputs"),
    [
        (np.zeros((2, 3), "f4"), [("output-0", "FP32", [2, 3])]),
        ([[1, 2], [3, 4]], [("output-0", "INT64", [2, 2])]),
        (1.5, [("output-0", "FP64", [])]),
        (True, [("output-0", "BOOL", [])]),
        ("text", [("output-0", "BYTES", [1])]),
        (b"bytes", [("output-0", "BYTES", [1])]),
        (["a", "b"], [("output-0", "BYTES", [2])]),
        (np.array(["a", b"b"], dtype=object), [("output-0", "BYTES", [2])]),
        ({"a": [1.0], "b": "x"}, [("a", "FP64", [1]), ("b", "BYTES", [1])]),
        ((np.zeros(1), np.zeros(2, "i4")), [("output-0", "FP64", [1]), ("output-1", "INT32", [2])]),
        ({}, []),
        ([1, None], [("output-0", "FP64", [2])]),
        ([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], [("a", "INT64", [2]), ("b", "BYTES", [2])]),
        (np.array(["2024-01-01"], "M8[D]"), [("output-0", "BYTES", [1])]),
        ([[1], [2, 3]], [("output-0", "BYTES", [2])]),
    ],
)
def test_whatever_is_returned_is_an_output(value: Any, outputs: list[tuple[str, str, list[int]]]) -> None:
    assert described(value) == outputs


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (["a", 1], ['"a"', "1"]),
        (["a", None], ['"a"', "null"]),
        ([[1], [2, 3]], ["[1]", "[2,3]"]),
        ([{"a": {"b": None}}, {"c": 1}], ['{"a":{"b":null}}', '{"c":1}']),
        (np.array(["a", float("nan")], dtype=object), ['"a"', "null"]),
    ],
)
def test_what_no_datatype_has_is_json_and_says_so(value: Any, texts: list[str]) -> None:
    (output,) = to_tensors(value, (), WHO)
    assert ([text.decode() for text in output.data], output.datatype, output.holds_json) == (texts, "BYTES", True)


def test_outputs_are_called_as_declared() -> None:
    y, z = TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "FP32", (-1,))
    assert described(np.zeros(1), y)[0][0] == "y"
    assert [name for name, _, _ in described((np.zeros(1), np.zeros(1)), y, z)] == ["y", "z"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned nothing"),
        (object(), "type 'object'"),
        (np.array([object()], dtype=object), "an array of objects, one of which is of type 'object'"),
        (np.zeros(1, "c16"), "complex128"),
        ({"a": None}, "returned nothing"),
    ],
)
def test_what_can_be_no_output_is_the_components_fault(value: Any, words: str) -> None:
    with pytest.raises(ProblemError) as caught:
        to_tensors(value, (), WHO)
    assert caught.value.status == 500
    assert caught.value.detail.startswith(WHO)
    assert words in caught.value.detail


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (b"abc", b"abc"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abcdef")[::2], b"ace"),
        ("é", "é".encode()),
        (np.arange(4, dtype="u1")[::-1], b"\x03\x02\x01\x00"),
        ({"y": np.array([1], "<u2")}, b"\x01\x00"),
        (["a", "bc"], b"abc"),
        (np.zeros(0), b""),
    ],
)
def test_a_result_is_given_as_its_bytes(value: Any, raw: bytes) -> None:
    assert bytes(to_raw_bytes(value, WHO)) == raw


def test_several_outputs_are_no_raw_bytes() -> None:
    with pytest.raises(ProblemError, match="2 outputs"):
        to_raw_bytes({"a": b"", "b": b""}, WHO)
