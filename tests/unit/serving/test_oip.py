"""Requests and answers of the Open Inference Protocol over HTTP."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow_serving import oip
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import InferRequest, InferResponse, RequestedOutput, Response, Tensor
from scanflow_serving.signature import NodeSignature, TensorSpec
from tests.unit.serving.serving_harness import attempt, expect_problem


def body(*, inputs: Any = None, **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    return json.dumps({"inputs": [tensor] if inputs is None else inputs, **more}).encode()


def with_binary(head: dict[str, Any], *parts: bytes) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(head).encode()
    return text + b"".join(parts), {oip.HEADER_LENGTH: str(len(text))}


def decode(content: bytes, headers: dict[str, str] | None = None, *, allow_nan: bool = False) -> InferRequest:
    return oip.decode(content, headers or {}, allow_nan=allow_nan)


def read_body(response: Response) -> dict[str, Any]:
    assert isinstance(response.body, bytes)
    document: dict[str, Any] = json.loads(response.body)
    return document


def test_a_request_is_read_with_all_that_it_says() -> None:
    request = decode(
        body(
            id="7",
            parameters={"timeout": 1500, "binary_data_output": True},
            outputs=[{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}],
        )
    )
    assert request.id == "7"
    assert request.inputs[0].data.tolist() == [[1, 2]]
    assert request.timeout_s == pytest.approx(0.0015)
    assert request.binary_output
    assert request.outputs is not None
    assert [(output.name, output.binary) for output in request.outputs] == [("y", False), ("z", True)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "The body is empty"),
        (b"   ", "not JSON"),
        (b"{", "not JSON"),
        (b'{"inputs": [{"name": "x", "shape": [1', "not JSON"),
        (b"[1, 2, 3]", "should be an object with 'inputs'"),
        (b"7", "should be an object"),
        (b"{}", "inputs"),
        (b'{"inputs": {}}', "at inputs"),
        (b'{"inputs": []}', "nothing to infer from"),
        (b'{"inputs": [7]}', "at inputs[0]"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"inputs": [{"name": "\xff", "datatype": "FP32", "shape": [1], "data": [1]}]}', "not JSON"),
        (b"[" * 100_000, "should be an object"),
        (b'{"inputs": [{"data": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (body(inputs=[{"name": "x"}]), "datatype"),
        (body(inputs=[{"name": "x", "datatype": "FP32", "shape": [1]}]), "has no 'data'"),
        (body(inputs=[{"name": "x", "datatype": "FP32", "shape": ["1"], "data": [1]}]), "inputs[0].shape[0]"),
        (body(inputs=[{"name": "x", "datatype": "FP32", "shape": [2**70], "data": [1]}]), ""),
        (body(inputs=[{"name": 5, "datatype": "FP32", "shape": [1], "data": [1]}]), "inputs[0].name"),
        (body(inputs=[{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}] * 2), "the same name"),
        (body(parameters={"timeout": "soon"}), "'timeout' must be a positive number of microseconds"),
        (body(parameters={"timeout": -1}), "'timeout'"),
        (body(parameters={"timeout": True}), "'timeout'"),
        (body(parameters={"sequence_id": 7}), "'sequence_id' is not supported"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, NaN]}]}', "neither NaN"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, -Infinity]}]}', "Infinity"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(content: bytes, words: str) -> None:
    with expect_problem(words):
        decode(content)


@given(st.binary(max_size=200), st.none() | st.text(max_size=6))
def test_no_bytes_are_more_than_a_bad_request(content: bytes, length: str | None) -> None:
    headers = {} if length is None else {oip.HEADER_LENGTH: length}
    for allow_nan in (False, True):
        with pytest.raises(ProblemError) as caught:
            decode(content, headers, allow_nan=allow_nan)
        assert caught.value.status == 400
        assert read_body(caught.value.build_response())["detail"]


@given(st.data())
def test_a_body_cut_or_changed_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    whole = body(id="é", parameters={"a": [1.5, None, True]}, outputs=[{"name": "y"}])
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + data.draw(st.binary(max_size=3)) + whole[place + data.draw(st.integers(0, 3)) :]
    read = attempt(lambda: decode(changed))
    assert read.status == 400 if isinstance(read, ProblemError) else read.inputs


def test_nan_is_read_where_it_is_allowed() -> None:
    content = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, NaN, -Infinity]}]}'
    data = decode(content, allow_nan=True).inputs[0].data
    assert np.isnan(data[1])
    assert np.isneginf(data[2])


def test_tensors_follow_the_json_as_bytes() -> None:
    content, headers = with_binary(
        {
            "inputs": [
                {"name": "a", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}},
                {"name": "b", "datatype": "FP32", "shape": [1], "data": [5]},
                {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}},
            ]
        },
        np.array([1, 2], "i2").tobytes(),
        b"\x03\x00\x00\x00abc",
    )
    request = decode(content, headers)
    assert [tensor.data.tolist() for tensor in request.inputs] == [[1, 2], [5], [b"abc"]]
    assert request.inputs[0].data.flags.writeable


@pytest.mark.parametrize(
    ("size", "rest", "words"),
    [
        (8, b"1234", "binary_data_size is 8, but 4 bytes are left"),
        (4, b"12345678", "4 more bytes"),
        (-4, b"1234", "should be a number of bytes"),
        ("4", b"1234", "should be a number of bytes"),
        (2**70, b"1234", "are left"),
        (3, b"123", "takes 4 bytes, but there are 3"),
    ],
)
def test_bytes_that_do_not_add_up_are_refused(size: Any, rest: bytes, words: str) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}}
    content, headers = with_binary({"inputs": [tensor]}, rest)
    with expect_problem(words):
        decode(content, headers)
    with pytest.raises(ProblemError, match="no header Inference-Header-Content-Length"):
        decode(body(inputs=[tensor | {"parameters": {"binary_data_size": 4}}]))


@pytest.mark.parametrize("length", ["-1", "x", "99999", "1e3", "٣", ""])
def test_a_header_length_that_is_none_is_refused(length: str) -> None:
    with pytest.raises(ProblemError, match="Inference-Header-Content-Length"):
        decode(body(), {oip.HEADER_LENGTH: length})


SPEC = TensorSpec("image", "FP32", (-1, 2))


@pytest.mark.parametrize(
    ("declared", "content", "shape", "datatype"),
    [
        (NodeSignature(), b"abc", [3], "UINT8"),
        (NodeSignature(), b"", [0], "UINT8"),
        (NodeSignature((SPEC,)), b"12345678", [1, 2], "FP32"),
        (NodeSignature((TensorSpec("x", "UINT8", (-1, 2, 2)),)), b"12345678", [2, 2, 2], "UINT8"),
        (NodeSignature((TensorSpec("x", "UINT8", (4,)),)), b"1234", [4], "UINT8"),
        (NodeSignature((TensorSpec("x", "BYTES", (-1, 1)),)), b"jpeg", [1, 1], "BYTES"),
    ],
)
def test_a_raw_body_is_the_one_input(declared: NodeSignature, content: bytes, shape: list[int], datatype: str) -> None:
    (tensor,) = oip.decode_raw(content, declared, allow_nan=True).inputs
    assert (list(tensor.data.shape), tensor.datatype) == (shape, datatype)


@pytest.mark.parametrize(
    ("declared", "content", "words"),
    [
        (NodeSignature((SPEC, TensorSpec("b", "FP32", (1,)))), b"1234", "2 are declared"),
        (NodeSignature((SPEC,)), b"1234", "4 bytes are not a FP32 [-1, 2]"),
        (NodeSignature((SPEC,)), b"123456789", "9 bytes are no"),
        (NodeSignature((SPEC,)), np.array([np.nan, 1], "f4").tobytes(), "NaN"),
    ],
)
def test_a_raw_body_that_does_not_fit_is_refused(declared: NodeSignature, content: bytes, words: str) -> None:
    with expect_problem(words):
        oip.decode_raw(content, declared, allow_nan=False)


def answer(*tensors: Tensor) -> InferResponse:
    return InferResponse("m", "3", list(tensors), id="7")


Y = Tensor("y", "FP32", np.array([[1.5, 2.5]], "f4"))
Z = Tensor("z", "BYTES", np.array([b"a", b"bc"], dtype=object))


def test_an_answer_is_json() -> None:
    response = oip.encode(answer(Y, Z), InferRequest([]), (("x-here", "1"),))
    assert response.content_type == "application/json"
    assert response.headers == (("x-here", "1"),)
    assert read_body(response) == {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5]},
            {"name": "z", "datatype": "BYTES", "shape": [2], "data": ["a", "bc"]},
        ],
    }


def test_outputs_requested_in_binary_follow_the_json() -> None:
    request = InferRequest([], outputs=[RequestedOutput("z", binary=True), RequestedOutput("y")])
    response = oip.encode(answer(*oip.pick_outputs([Y, Z], request.outputs)), request)
    assert not isinstance(response.body, bytes)
    head, *parts = response.body
    document = json.loads(bytes(head))
    assert dict(response.headers)[oip.HEADER_LENGTH] == str(len(head))
    assert document["outputs"][0]["parameters"] == {"binary_data_size": 11}
    assert document["outputs"][1]["data"] == [1.5, 2.5]
    assert b"".join(parts) == b"\x01\x00\x00\x00a\x02\x00\x00\x00bc"


def test_an_output_that_is_not_there_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"no output 'yy'.*Given: 'y', 'z'"):
        oip.pick_outputs([Y, Z], [RequestedOutput("yy")])
