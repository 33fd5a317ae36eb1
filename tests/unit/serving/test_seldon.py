"""Seldon's protocol."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.instance_messages import Node
from scanflow_serving import seldon_protocol
from scanflow_serving.component_graph import Graph, GraphStep, GraphTraversal, Outcome
from scanflow_serving.components import Component
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.seldon_protocol import Prediction
from tests.unit.serving.serving_harness import attempt, expect_problem

NODE = Node(name="n", implementation="a.py:A")


def decode(content: Any, *, allow_nan: bool = False) -> Prediction:
    return seldon_protocol.decode(
        content if isinstance(content, bytes) else json.dumps(content).encode(), allow_nan=allow_nan
    )


def encode(asked: Prediction, value: Any, names: Any = ()) -> dict[str, Any]:
    step = GraphStep(0, NODE, Component(NODE, lambda value, _names, _meta: value))
    document: dict[str, Any] = json.loads(
        seldon_protocol.encode(asked, Outcome(value, names, step), GraphTraversal(), "r1")
    )
    return document


def test_an_array_comes_with_its_names_and_meta() -> None:
    asked = decode({"data": {"names": ["a", "b"], "ndarray": [[1, 2.5]]}, "meta": {"puid": "7"}})
    assert isinstance(asked.value, np.ndarray)
    assert asked.value.tolist() == [[1, 2.5]]
    assert (asked.names, asked.meta) == (["a", "b"], {"puid": "7"})


ONE = {"dim": [{"size": 1}]}
TF = {"dtype": "DT_INT64", "tensorShape": {"dim": [{"size": "1"}, {"size": "2"}]}, "int64Val": ["1", "2"]}


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({"strData": "text"}, "text"),
        ({"binData": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00"),
        ({"jsonData": {"a": [1, None]}}, {"a": [1, None]}),
        ({"data": {"tensor": {"shape": [2, 1], "values": [1, 2]}}}, [[1], [2]]),
        ({"data": {"ndarray": [["a", 1]]}}, [["a", 1]]),
        ({"data": {"tftensor": TF}}, [[1, 2]]),
        (
            {"data": {"tftensor": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": 2}]}, "float_val": [1.5]}}},
            [1.5, 1.5],
        ),
        ({"data": {"tftensor": {"dtype": "DT_INT32", "tensorShape": ONE, "tensorContent": "AQAAAA=="}}}, [1]),
        ({"data": {"tftensor": {"dtype": "DT_STRING", "tensorShape": ONE, "stringVal": ["YQ=="]}}}, [b"a"]),
    ],
)
def test_every_kind_of_data_comes_as_it_is(content: dict[str, Any], value: Any) -> None:
    decoded = decode(content).value
    assert (decoded.tolist() if isinstance(decoded, np.ndarray) else decoded) == value


@pytest.mark.parametrize("data", [{"tftensor": TF}, {"ndarray": [["a", 1, 2.5]]}])
def test_a_tensorproto_and_numbers_among_texts_come_back_as_they_were_sent(data: dict[str, Any]) -> None:
    asked = decode({"data": data})
    answered = encode(asked, asked.value)["data"]
    assert {name: answered[name] for name in data} == data


def test_a_form_holds_a_message() -> None:
    form = b"json=%7B%22data%22%3A%7B%22ndarray%22%3A%5B%5B1%2C2%5D%5D%7D%7D"
    read = seldon_protocol.decode(form, allow_nan=False, media="application/x-www-form-urlencoded; charset=utf-8")
    assert read.value.tolist() == [[1, 2]]
    with pytest.raises(ProblemError, match="one field 'json'"):
        seldon_protocol.decode(b"a=1", allow_nan=False, media="application/x-www-form-urlencoded")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "The body is empty"),
        (b"{", "not JSON"),
        (b"[]", "should be a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"data": {"ndarray": [NaN]}}', "neither NaN"),
        ({}, "none of data, binData"),
        ({"strData": "a", "jsonData": 1}, "has strData and jsonData"),
        ({"strData": 1}, "strData should be text"),
        ({"binData": "%"}, "base64"),
        ({"binData": "\x80"}, "base64"),
        ({"data": [1]}, "either 'ndarray' or 'tensor'"),
        ({"data": {"ndarray": [1], "tensor": {}}}, "either 'ndarray' or 'tensor'"),
        ({"data": {"ndarray": 5}}, "should be a list"),
        ({"data": {"ndarray": [[1], [2, 3]]}}, "different lengths"),
        ({"data": {"ndarray": [[1, None]]}}, "null, a missing number (NaN)"),
        ({"data": {"ndarray": [{}]}}, "numbers or strings"),
        ({"data": {"names": ["a"], "ndarray": [[1, 2]]}}, "data.names has 1 names"),
        ({"data": {"names": "a", "ndarray": [[1]]}}, "list of strings"),
        ({"data": {"tensor": {"shape": [3], "values": [1]}}}, "requires 3 values"),
        ({"data": {"tensor": {"shape": [-1], "values": [1]}}}, "negative"),
        ({"data": {"tensor": {"shape": ["1"], "values": [1]}}}, "whole numbers"),
        ({"data": {"tensor": {"values": ["a"]}}}, "should hold numbers"),
        ({"data": {"tensor": {"shape": [2**70, 2**70], "values": []}}}, "more elements"),
        ({"data": {"tensor": {"shape": [0, 2**63 - 1], "values": []}}}, "more elements"),
        ({"data": {"ndarray": [[2**70]]}}, "beyond 64 bits"),
        ({"data": {"ndarray": [["a", 2**70]]}}, "beyond 64 bits"),
        ({"data": {"tftensor": 1}}, "should be an object with dtype"),
        ({"data": {"tftensor": {"dtype": "DT_X"}}}, "Known: DT_FLOAT"),
        ({"data": {"tftensor": {"tensorShape": {"dim": 1}}}}, "tensorShape should be"),
        ({"data": {"tftensor": {**TF, "int64Val": []}}}, "'int64Val' or a 'tensorContent'"),
        ({"data": {"tftensor": {**TF, "int64Val": ["x", "2"]}}}, "whole numbers"),
        ({"data": {"tftensor": {**TF, "tensorContent": "%"}}}, "base64"),
    ],
)
def test_what_is_wrong_is_said(content: Any, words: str) -> None:
    with expect_problem(words):
        decode(content)


@given(st.binary(max_size=100))
def test_no_bytes_are_more_than_a_bad_request(content: bytes) -> None:
    for read in (seldon_protocol.decode, seldon_protocol.decode_feedback):
        with expect_problem():
            read(content, allow_nan=True)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["shape", "values"]), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["ndarray", "tensor", "tftensor", "names"]), _json, _json)
def test_no_data_does_harm(kind: str, data: Any, names: Any) -> None:
    read = attempt(lambda: decode({"data": {kind: data, "names": names}}))
    assert not isinstance(read, ProblemError) or read.status == 400


ASKED = Prediction(np.zeros((1, 2)), [], {"puid": "7"}, "ndarray")


def test_an_answer_has_the_kind_of_the_request() -> None:
    assert encode(ASKED, np.array([[1.0, 2.0]]))["data"] == {"names": ["t:0", "t:1"], "ndarray": [[1.0, 2.0]]}
    tensor = Prediction(ASKED.value, [], {}, "tensor")
    assert encode(tensor, np.array([[1, 2]]), ["a", "b"])["data"] == {
        "names": ["a", "b"],
        "tensor": {"shape": [1, 2], "values": [1, 2]},
    }
    assert encode(ASKED, "text")["strData"] == "text"
    assert encode(ASKED, b"\xff")["binData"] == "/w=="
    assert encode(ASKED, {"a": np.array([1])})["jsonData"] == {"a": [1]}
    assert encode(ASKED, ["a", "b"])["data"]["ndarray"] == ["a", "b"]


def test_an_answer_names_the_client_and_the_server() -> None:
    meta = encode(ASKED, [1])["meta"]
    assert meta["puid"] == "7"
    assert meta["tags"] == {seldon_protocol.REVISION_TAG: "r1"}
    assert encode(Prediction(None, [], {}, "ndarray"), [1])["meta"]["puid"]


def test_what_no_message_can_hold_is_the_components_fault() -> None:
    with expect_problem(status=500):
        encode(ASKED, {"a": object()})


class Learner:
    def __init__(self) -> None:
        self.feedback: list[tuple[Any, ...]] = []

    def send_feedback(self, features: Any, names: Any, reward: float, truth: Any, routing: int | None = None) -> None:
        self.feedback.append((features.tolist(), names, reward, truth.tolist(), routing))


def test_feedback_reaches_the_nodes_that_took_part() -> None:
    nodes = [
        Node(name="choose", role="ROUTER", implementation="a.py:A"),
        Node(name="a", implementation="a.py:A", parents=("choose",)),
        Node(name="b", implementation="a.py:A", parents=("choose",)),
    ]
    learners = [Learner() for _ in nodes]
    components = [Component(node, lambda value, _n, _m: value) for node in nodes]
    for component, learner in zip(components, learners, strict=True):
        component.feedback = learner.send_feedback
    feedback = seldon_protocol.decode_feedback(
        json.dumps(
            {
                "request": {"data": {"names": ["x"], "ndarray": [[1]]}},
                "response": {"meta": {"routing": {"choose": 1}, "tags": {seldon_protocol.REVISION_TAG: "r1"}}},
                "reward": 0.5,
                "truth": {"data": {"ndarray": [3]}},
            }
        ).encode(),
        allow_nan=False,
    )
    assert feedback.tags == {seldon_protocol.REVISION_TAG: "r1"}
    assert seldon_protocol.give_feedback(Graph(nodes, components), feedback, lambda _coroutine: None) == 2
    assert learners[0].feedback == [([[1]], ["x"], 0.5, [3], 1)]
    assert learners[1].feedback == []
    assert learners[2].feedback == [([[1]], ["x"], 0.5, [3], None)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "Feedback needs a 'reward'"),
        ({"response": {"meta": {"routing": [1]}}, "reward": 1}, "'response.meta.routing' should be an object"),
        ({"reward": int("9" * 400)}, "'reward' should be a 64-bit number"),
        ({"reward": "much"}, "should be a 64-bit number"),
        ({"reward": 1, "request": 5}, "'request' should be"),
        ({"reward": 1, "truth": {"data": {}}}, "'truth'"),
    ],
)
def test_feedback_that_is_none_is_refused(content: dict[str, Any], words: str) -> None:
    with expect_problem(words):
        seldon_protocol.decode_feedback(json.dumps(content).encode(), allow_nan=False)
