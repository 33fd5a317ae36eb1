"""What components return, as outputs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.results import to_raw_bytes, to_tensors
from scanflow_serving.signature import TensorSpec

WHO = "The node 'n'"


def describe(value: Any, *declared: TensorSpec) -> list[tuple[str, str, list[int]]]:
    return [(tensor.name, tensor.datatype, list(tensor.data.shape)) for tensor in to_tensors(value, declared, WHO)]


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
    assert describe(value) == outputs


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


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (np.array([1, -36], "m8[h]"), ["P0DT1H0M0S", "-P1DT12H0M0S"]),
        (np.array([86400500], "m8[ms]"), ["P1DT0H0M0.5S"]),
        (np.array([3], "m8[Y]"), ["P3Y"]),
        ([timedelta(days=400, microseconds=5)], ["P400DT0H0M0.000005S"]),
        (pd.Series(pd.to_timedelta([1, 86400], unit="s")), ["P0DT0H0M1S", "P1DT0H0M0S"]),
        ([pd.Timedelta(-1, "ns")], ["-P0DT0H0M0.000000001S"]),
        ([{"at": np.timedelta64(1, "D")}], ["P1DT0H0M0S"]),
    ],
)
def test_durations_are_whole_text_in_iso_8601(value: Any, texts: list[str]) -> None:
    (output,) = to_tensors(value, (), WHO)
    assert ([text.decode() for text in output.data], output.holds_text) == (texts, True)
    if "Y" not in texts[0]:
        assert pd.Timedelta(texts[0]) == pd.Timedelta(value.iloc[0] if isinstance(value, pd.Series) else _first(value))


def _first(value: Any) -> Any:
    return value[0]["at"] if isinstance(value[0], dict) else value[0]


def test_moments_keep_their_nanoseconds() -> None:
    (output,) = to_tensors([pd.Timestamp("2024-01-01T00:00:00.000000005")], (), WHO)
    assert output.data.tolist() == [b"2024-01-01T00:00:00.000000005"]
    (output,) = to_tensors([{"at": [pd.Timedelta(5, "ns")]}, {"to": np.array([1], "m8[D]")}], (), WHO)
    assert output.data.tolist() == [b'{"at":["P0DT0H0M0.000000005S"]}', b'{"to":["P1DT0H0M0S"]}']


@pytest.mark.parametrize(
    ("value", "datatype", "values"),
    [
        (np.ma.array([1.0, 2.0], mask=[False, True]), "FP64", [1.0, None]),
        (np.ma.array([1, 2], mask=[False, True]), "FP64", [1.0, None]),
        (np.ma.array([1, 2]), "INT64", [1, 2]),
        (np.ma.array([True, False], mask=[False, True]), "BYTES", [b"true", b"null"]),
        (np.ma.array(["a", "b"], mask=[False, True]), "BYTES", [b'"a"', b"null"]),
        ([{"a": np.ma.array([1, 2], mask=[False, True])}, {}], "BYTES", [b'{"a":[1,null]}', b"{}"]),
        ([2**63 + 5, 1], "UINT64", [2**63 + 5, 1]),
        ([2**63 + 5, -1], "BYTES", [b"9223372036854775813", b"-1"]),
        ([2**53 + 1, None], "BYTES", [b"9007199254740993", b"null"]),
        ([2**53 + 1, 0.5], "BYTES", [b"9007199254740993", b"0.5"]),
        ([10**400, 0.5], "BYTES", [b"1" + b"0" * 400, b"0.5"]),
        (pd.Series(pd.array([2**53 + 1, None], "Int64")), "BYTES", [b"9007199254740993", b"null"]),
        (pd.Series(pd.array([1, None], "Int64")), "FP64", [1.0, None]),
    ],
)
def test_an_answer_is_neither_rounded_nor_revealed(value: Any, datatype: str, values: list[Any]) -> None:
    (output,) = to_tensors(value, (), WHO)
    assert output.datatype == datatype
    assert [None if element != element else element for element in output.data.tolist()] == values


@pytest.mark.parametrize(
    ("value", "holds_text"),
    [
        ("a", True),
        (["a", "b"], True),
        (np.array(["a"]), True),
        (np.array(["2024-01-01"], "M8[D]"), True),
        (b"a", False),
        ([b"a"], False),
        (np.array(["a", b"b"], dtype=object), False),
    ],
)
def test_text_is_marked_and_bytes_are_not(value: Any, *, holds_text: bool) -> None:
    (output,) = to_tensors(value, (), WHO)
    assert output.holds_text is holds_text


def test_outputs_of_one_name_are_refused() -> None:
    for value in ({1: [1], "1": [2]}, [{1: 1, "1": 2}]):
        with pytest.raises(ProblemError, match="outputs 1 and '1'"):
            to_tensors(value, (), WHO)


def test_outputs_are_called_as_declared() -> None:
    y, z = TensorSpec("y", "FP32", (-1,)), TensorSpec("z", "FP32", (-1,))
    assert describe(np.zeros(1), y)[0][0] == "y"
    assert [name for name, _, _ in describe((np.zeros(1), np.zeros(1)), y, z)] == ["y", "z"]


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


def make_sparse() -> Any:
    return pytest.importorskip("scipy.sparse").csr_matrix(np.eye(2))


@pytest.mark.parametrize(
    ("make", "kind", "instead"),
    [
        (make_sparse, "csr_matrix", "x.toarray()"),
        (lambda: np.ones(2) * 1j, "complex128", "{'real': x.real, 'imag': x.imag}"),
        (lambda: np.array([1j, None], object), "complex", "{'real': x.real, 'imag': x.imag}"),
        (lambda: 1j, "complex", "{'real': x.real, 'imag': x.imag}"),
        (lambda: pd.Series(pd.period_range("2024-01", periods=2, freq="M")), "Period", "x.astype(str)"),
        (lambda: pd.DataFrame({"a": pd.period_range("2024-01", periods=2, freq="M")}), "Period", "x.astype(str)"),
        (lambda: pd.Series(pd.interval_range(0, 2)), "Interval", "x.astype(str)"),
        (lambda: {1, 2}, "set", "sorted(x)"),
        (lambda: frozenset({"a"}), "frozenset", "sorted(x)"),
        (lambda: np.zeros(2, [("a", "i4"), ("b", "f4")]), "void", "x.dtype.names"),
        (lambda: np.ones(2, np.longdouble), np.dtype(np.longdouble).name, "x.astype('float64')"),
        (object, "object", ""),
        (lambda: None, "nothing", ""),
    ],
)
@pytest.mark.parametrize("packed", [lambda value: value, lambda value: {"y": value}, lambda value: (value, 1)])
def test_what_no_datatype_holds_is_refused_with_what_to_return(
    make: Callable[[], Any], kind: str, instead: str, packed: Callable[[Any], Any]
) -> None:
    with pytest.raises(ProblemError) as refused:
        to_tensors(packed(make()), (), WHO)
    text = refused.value.detail
    assert (kind in text, instead in text) == (True, True), text
    assert text.endswith("Let it return an array, a list, a dict of them, a DataFrame, bytes or text."), text
