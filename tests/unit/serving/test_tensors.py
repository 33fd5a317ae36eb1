"""Tensors out of JSON and bytes, and back."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import Tensor
from scanflow_serving.oip_tensors import (
    DATATYPES,
    find_datatype,
    from_binary,
    from_json,
    from_python,
    to_binary,
    to_list,
)
from tests.unit.serving.serving_harness import attempt, expect_problem

WHERE = "The input 'x'"


def elements(datatype: str) -> st.SearchStrategy[Any]:
    dtype = DATATYPES[datatype]
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind == "O":
        return st.text(max_size=8)
    if dtype.kind in "iu":
        return st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    width = {"FP16": 16, "FP32": 32, "BF16": 16, "FP64": 64}[datatype]
    return st.floats(allow_nan=False, allow_infinity=False, width=width)  # type: ignore[arg-type]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, list[int], list[Any]]:
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = math.prod(shape)
    return datatype, shape, draw(st.lists(elements(datatype), min_size=count, max_size=count))


def nest(values: list[Any], shape: list[int]) -> Any:
    if len(shape) <= 1:
        return values
    step = len(values) // shape[0] if shape[0] else 0
    return [nest(values[place * step : (place + 1) * step], shape[1:]) for place in range(shape[0])]


@given(tensors())
def test_what_was_sent_in_json_comes_back_whether_flat_or_nested(sample: tuple[str, list[int], list[Any]]) -> None:
    datatype, shape, values = sample
    tensor = from_json("x", datatype, shape, json.dumps(values).encode(), where=WHERE)
    assert tensor.data.shape == tuple(shape)
    assert to_list(tensor) == values
    if 0 not in shape:  # what is empty cannot say how it would have been nested
        tree = json.dumps(nest(values, shape)).encode()
        assert to_list(from_json("x", datatype, shape, tree, where=WHERE)) == values


@given(tensors())
def test_what_was_sent_in_bytes_comes_back(sample: tuple[str, list[int], list[Any]]) -> None:
    datatype, shape, values = sample
    tensor = from_json("x", datatype, shape, json.dumps(values).encode(), where=WHERE)
    raw = bytes(to_binary(tensor))
    again = from_binary("x", datatype, shape, raw, allow_nan=True, where=WHERE)
    assert bytes(to_binary(again)) == raw
    if datatype != "BF16":
        np.testing.assert_array_equal(again.data, tensor.data)


def assert_read_or_refused(read: Tensor | ProblemError, shape: list[int]) -> None:
    if isinstance(read, ProblemError):
        assert read.status == 400
        assert WHERE in read.detail
    else:
        assert list(read.data.shape) == shape


@given(st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(-3, 1 << 62), max_size=40), st.binary(max_size=40))
def test_no_bytes_do_harm(datatype: str, shape: list[int], data: bytes) -> None:
    assert_read_or_refused(
        attempt(lambda: from_binary("x", datatype, shape, data, allow_nan=False, where=WHERE)), shape
    )


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@given(st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(-1, 4), max_size=4), _json)
def test_no_json_does_harm(datatype: str, shape: list[int], data: Any) -> None:
    text = json.dumps(data).replace("NaN", "null").replace("-Infinity", "null").replace("Infinity", "null")
    assert_read_or_refused(attempt(lambda: from_json("x", datatype, shape, text.encode(), where=WHERE)), shape)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("FP32", [2], "[1, 2, 3]", "the shape [2] has 2 elements, but the data has 3"),
        ("FP32", [2, 2], "[[1, 2, 3], [4, 5, 6]]", "the shape is [2, 2], but the data is nested as [2, 3]"),
        ("FP32", [2, 2], "[[1, 2], [3]]", "differ in length"),
        ("BYTES", [2, 2], '[["a", "b"], ["c"]]', "differ in length"),
        ("FP32", [1, 4], "[[1, 2], [3, 4]]", "nested as [2, 2]"),
        ("FP32", [-1, 2], "[1, 2]", "the shape [-1, 2] has a negative dimension"),
        ("FP32", [2**62, 2**62], "[1]", "more elements than any request can hold"),
        ("FP32", [1] * 40, "[1]", "40 dimensions"),
        ("FP31", [1], "[1]", "the datatype 'FP31' is not known. Did you mean 'FP32'?"),
        ("float32", [1], "[1]", "BOOL, UINT8"),
        ("UINT8", [2], "[1, 300]", "at [1] is 300, but UINT8 takes whole numbers from 0 to 255"),
        ("INT8", [2, 1], "[[1], [-129]]", "at [1][0] is -129"),
        ("UINT64", [1], "[-1]", "is -1, but UINT64"),
        ("UINT64", [1], f"[{2**64}]", "too large"),
        ("INT64", [1], f"[{2**63}]", "INT64 takes"),
        ("INT32", [1], "[1.5]", "is 1.5, but INT32 takes whole numbers"),
        ("INT32", [1], "[true]", "is true"),
        ("FP64", [1], "[1e999]", "takes 64-bit numbers"),
        ("FP32", [1], "[1e39]", "1e39"),
        ("FP16", [1], "[70000]", "70000"),
        ("FP32", [1], '["1"]', 'is "1", but FP32 takes numbers'),
        ("FP32", [1], "[null]", "is null"),
        ("FP32", [1], "[[1]]", "is a list"),
        ("FP32", [1], "{}", "should be a list"),
        ("FP32", [1], "5", "should be a list, but is 5"),
        ("BOOL", [1], "[1]", "BOOL takes true and false"),
        ("BYTES", [1], "[1]", "BYTES takes text"),
    ],
)
def test_what_is_wrong_in_json_is_said(datatype: str, shape: list[int], data: str, words: str) -> None:
    with expect_problem(words):
        from_json("x", datatype, shape, data.encode(), where=WHERE)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("FP32", [2], b"1234567", "FP32 of shape [2] takes 8 bytes, but there are 7"),
        ("FP32", [2**62, 4], b"", "more elements than any request can hold"),
        ("BOOL", [2], b"\x00\x02", "element 1 is neither"),
        ("BYTES", [1], b"\x01\x00", "end within the length of element 0"),
        ("BYTES", [1], b"\xff\xff\xff\xffa", "element 0 should have 4294967295 bytes, but 1 are left"),
        ("BYTES", [1], b"\x01\x00\x00\x00a\x01\x00\x00\x00b", "1 elements, but its bytes hold more"),
        ("BYTES", [3], b"\x01\x00\x00\x00a", "3 elements, but its bytes hold 1"),
        ("FP32", [2], np.array([1, np.nan], "f4").tobytes(), "element 1 is NaN"),
        ("FP64", [1], np.array([-np.inf]).tobytes(), "element 0 is infinity"),
        ("BF16", [1], b"\xc0\x7f", "element 0 is NaN"),
    ],
)
def test_what_is_wrong_in_bytes_is_said(datatype: str, shape: list[int], data: bytes, words: str) -> None:
    with expect_problem(words):
        from_binary("x", datatype, shape, data, allow_nan=False, where=WHERE)


def test_nan_may_come_where_it_is_allowed() -> None:
    raw = np.array([np.nan, 1], "f4").tobytes()
    assert np.isnan(from_binary("x", "FP32", [2], raw, allow_nan=True, where=WHERE).data[0])
    assert np.isnan(from_python("x", "FP32", [1, 2], [[math.nan, 1]], where=WHERE).data[0, 0])


def test_bytes_are_not_copied_where_they_lie_right() -> None:
    raw = bytearray(np.arange(1000, dtype="f4").tobytes())
    tensor = from_binary("x", "FP32", [1000], memoryview(raw), allow_nan=False, where=WHERE)
    assert np.shares_memory(tensor.data, np.frombuffer(raw, "u1"))
    shifted = from_binary("x", "FP32", [999], memoryview(raw)[2:-2], allow_nan=True, where=WHERE)
    assert shifted.data.flags.aligned


def test_brain_floats_are_rounded_to_nearest_and_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.38e38, np.inf, np.nan], "f4")
    raw = bytes(to_binary(Tensor("x", "BF16", values)))
    back = from_binary("x", "BF16", [7], raw, allow_nan=True, where=WHERE).data
    assert back[:4].tolist() == [1.0, 1.0, 1.015625, -2.5]
    assert np.isinf(back[5])
    assert np.isnan(back[6])


def test_bytes_that_are_no_text_cannot_be_json() -> None:
    data: NDArray[Any] = np.array([b"\xff"], dtype=object)
    with pytest.raises(ProblemError, match="binary_data"):
        to_list(Tensor("y", "BYTES", data))


@pytest.mark.parametrize(
    ("dtype", "datatype"),
    [("?", "BOOL"), (">i4", "INT32"), ("f8", "FP64"), ("U3", "BYTES"), ("S3", "BYTES"), ("c8", None), ("M8[s]", None)],
)
def test_what_numpy_holds_has_a_datatype_or_none(dtype: str, datatype: str | None) -> None:
    assert find_datatype(np.dtype(dtype)) == datatype
