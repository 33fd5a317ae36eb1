"""Requests of a form: tensors of the types that a service declares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scanflow.errors import InvalidError
from scanflow_server.service_predictions import (
    MAX_SHOWN,
    DeclaredInput,
    format_answer,
    has_fields,
    parse_fields,
    parse_rows,
    read_inputs,
    write_example,
)

AGE = DeclaredInput("age", "INT64", (-1,))
INCOME = DeclaredInput("income", "FP64", (-1, 1))
OWNS = DeclaredInput("owns", "BOOL", (-1,))
JOB = DeclaredInput("job", "BYTES", (-1,))
PICTURE = DeclaredInput("picture", "UINT8", (-1, 2, 2))
DOCUMENT = DeclaredInput("document", "BYTES", (-1,), "application/json")


def strip(tensors: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(tensor["name"], tensor["datatype"], tensor["shape"], tensor["data"]) for tensor in tensors]


def test_fields_become_tensors_of_the_declared_types_and_an_empty_one_is_left_out() -> None:
    form = {"f0": " 41 ", "f1": "1e3", "f2": "false", "f3": ""}
    assert strip(parse_fields([AGE, INCOME, OWNS, JOB], form)) == [
        ("age", "INT64", [1], [41]),
        ("income", "FP64", [1, 1], [1000.0]),
        ("owns", "BOOL", [1], [False]),
    ]


@pytest.mark.parametrize(("item", "text"), [(AGE, "4.5"), (AGE, "x"), (INCOME, "nan"), (INCOME, "inf"), (INCOME, "")])
def test_a_number_that_is_none_is_refused_before_it_is_sent(item: DeclaredInput, text: str) -> None:
    if not text:
        assert parse_fields([item], {"f0": text}) == []
        return
    with pytest.raises(InvalidError, match="takes a"):
        parse_fields([item], {"f0": text})


@pytest.mark.parametrize(
    ("inputs", "text", "tensors"),
    [
        ([AGE, JOB], '[{"age": 1, "job": "x"}]', [("age", "INT64", [1], [1]), ("job", "BYTES", [1], ["x"])]),
        ([INCOME], "[5, 6]", [("income", "FP64", [2, 1], [5, 6])]),
        ([PICTURE], "[[[1, 2], [3, 4]]]", [("picture", "UINT8", [1, 2, 2], [1, 2, 3, 4])]),
        ([], "[[1, 2, 3]]", [("input", "FP64", [1, 3], [1, 2, 3])]),
        ([], '["a"]', [("input", "BYTES", [1], ["a"])]),
        ([DOCUMENT], '[{"a": 1}]', None),
        ([DOCUMENT], '{"document": [{"a": 1}]}', [("document", "BYTES", [1], ['{"a": 1}'])]),
        ([AGE], '{"inputs": [{"name": "age", "datatype": "X", "shape": [1], "data": [1]}]}', [("age", "X", [1], [1])]),
    ],
)  # fmt: skip
def test_rows_become_tensors(inputs: list[DeclaredInput], text: str, tensors: list[tuple[Any, ...]] | None) -> None:
    parsed = strip(parse_rows(inputs, text))
    assert parsed == (tensors or [("a", "FP64", [1], [1])])


@pytest.mark.parametrize(
    ("inputs", "text", "says"),
    [
        ([AGE], "[1,", "not JSON"),
        ([AGE], "[[1, 2], [3]]", "unlike lengths"),
        ([AGE, JOB], "[[1, 2]]", "takes age, job"),
        ([AGE, JOB], '[{"age": 1}, {"job": "x"}]', "has no 'age'"),
        ([AGE], "[" * 20_000, "not JSON"),
        ([AGE], '{"inputs": [1]}', "not JSON"),
    ],
)
def test_rows_that_cannot_be_read_say_why(inputs: list[DeclaredInput], text: str, says: str) -> None:
    with pytest.raises(InvalidError, match=says):
        parse_rows(inputs, text)


def test_what_a_service_declares_is_read_as_far_as_it_is_a_declaration() -> None:
    entries = [{"name": "age", "datatype": "INT64", "shape": [-1]}, {"shape": [1]}, 7, {"name": 5, "shape": ["x"]}]
    assert read_inputs(entries) == [AGE, DeclaredInput("5", "", ())]
    assert read_inputs({"name": "x"}) == []
    assert [has_fields(inputs) for inputs in ([], [AGE, JOB], [PICTURE], [DOCUMENT], [AGE] * 61)] == [0, 1, 0, 0, 0]
    assert json.loads(write_example([PICTURE])) == [[[1, 1], [1, 1]]]
    assert json.loads(write_example([AGE, JOB])) == [{"age": 1, "job": "text"}]


def test_a_long_answer_is_cut_and_another_one_is_shown_as_it_is() -> None:
    outputs = [{"name": "y", "datatype": "FP64", "shape": [9000], "data": [0.25] * 9000}]
    text = format_answer(json.dumps({"outputs": outputs}).encode())
    assert text.startswith("y  FP64 [9000]\n[0.25, ")
    assert len(text) < MAX_SHOWN + 100
    assert format_answer(b'{"detail": "no"}') == '{"detail": "no"}'
    assert format_answer(b"\xff") == "\ufffd"
