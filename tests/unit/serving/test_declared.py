"""What nodes declare, and what is checked against it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from scanflow.errors import InvalidError
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import Tensor
from scanflow_serving.signature import NodeSignature, TensorSpec, read_declaration, read_mlmodel_signature
from tests.unit.serving.serving_harness import expect_problem

X = TensorSpec("x", "FP32", (-1, 4))
TABLE = NodeSignature((TensorSpec("a", "FP64", (-1,)), TensorSpec("b", "FP64", (-1,))), table=True)


def tensor(name: str, datatype: str, *shape: int) -> Tensor:
    return Tensor(name, datatype, np.zeros(shape))


class Component:
    def __init__(self, inputs: Any = None, outputs: Any = None) -> None:
        self.inputs, self.outputs = inputs, outputs


def test_a_class_declares_its_inputs_and_outputs() -> None:
    declared = read_declaration(Component([{"name": "x", "datatype": "TYPE_FP32", "shape": [-1, 4]}]), "The node 'n'")
    assert declared == NodeSignature((X,))
    assert read_declaration(object(), "The node 'n'") == NodeSignature()


@pytest.mark.parametrize(
    "inputs",
    [
        "x",
        [7],
        [{"name": "x"}],
        [{"name": "x", "datatype": "float", "shape": [1]}],
        [{"name": "x", "datatype": "FP32", "shape": [-2]}],
        [{"name": "x", "datatype": "FP32", "shape": 3}],
        [{"name": "x", "datatype": "FP32", "shape": [1]}] * 2,
    ],
)
def test_a_wrong_declaration_is_refused(inputs: Any) -> None:
    with pytest.raises(InvalidError, match="The node 'n': inputs"):
        read_declaration(Component(inputs), "The node 'n'")


def signature(*inputs: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": json.dumps(inputs), "outputs": None}


def test_a_signature_of_tensors_is_read() -> None:
    spec = {"dtype": "float32", "shape": [-1, 4]}
    named = read_mlmodel_signature(signature({"type": "tensor", "name": "x", "tensor-spec": spec}), "m")
    assert named == NodeSignature((X,))
    unnamed = read_mlmodel_signature(signature({"type": "tensor", "tensor-spec": spec}), "m")
    assert unnamed == NodeSignature((TensorSpec("input-0", "FP32", (-1, 4)),), anonymous=True)
    assert read_mlmodel_signature(None, "m") == NodeSignature()


def test_a_signature_of_columns_is_a_table() -> None:
    declared = read_mlmodel_signature(
        signature(
            {"type": "double", "name": "a", "required": True}, {"type": "string", "name": "b", "required": False}
        ),
        "m",
    )
    assert declared.table
    assert declared.inputs == (TensorSpec("a", "FP64", (-1,)), TensorSpec("b", "BYTES", (-1,), optional=True))


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": "{"},
        {"inputs": "7"},
        {"inputs": '[{"type": "tensor", "tensor-spec": {"dtype": "complex64", "shape": [1]}}]'},
    ],
)
def test_a_signature_that_cannot_be_read_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="signature"):
        read_mlmodel_signature(document, "m")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([tensor("x", "FP64", 1, 4)], "wrong datatype: it is declared as FP32 [-1, 4], but is FP64 [1, 4]"),
        ([tensor("x", "FP32", 1, 5)], "wrong shape: it is declared as FP32 [-1, 4], but is FP32 [1, 5]"),
        ([tensor("x", "FP32", 4)], "but is FP32 [4]"),
        ([tensor("y", "FP32", 1, 4)], "There is no input 'y'"),
        ([tensor("x", "FP32", 1, 4), tensor("z", "FP32", 1)], "There is no input 'z'"),
    ],
)
def test_what_does_not_fit_is_refused_by_both_names(sent: list[Tensor], words: str) -> None:
    with expect_problem(words):
        NodeSignature((X,)).check(sent)


def test_a_missing_input_is_named() -> None:
    with pytest.raises(ProblemError, match="The input 'b' is missing"):
        TABLE.check([tensor("a", "FP64", 3)])


def test_an_input_without_a_name_takes_any() -> None:
    declared = NodeSignature((X,), anonymous=True)
    declared.check([tensor("whatever", "FP32", 2, 4)])
    with pytest.raises(ProblemError, match="wrong shape"):
        declared.check([tensor("whatever", "FP32", 2, 3)])


def test_a_table_comes_by_columns_or_whole() -> None:
    TABLE.check([tensor("a", "FP64", 3), tensor("b", "FP64", 3, 1)])
    TABLE.check([tensor("all", "FP64", 3, 2)])
    with pytest.raises(ProblemError, match="not a table of the columns"):
        TABLE.check([tensor("all", "FP64", 3, 5)])
    with pytest.raises(ProblemError, match="differ in length"):
        TABLE.check([tensor("a", "FP64", 3), tensor("b", "FP64", 4)])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.ones((2, 4)), "float32"),
        (np.ones((2, 4), "u1"), "float32"),
        ([[1, 2, 3, 4]], "float32"),
        ({"x": np.ones((1, 4), "f2")}, "float32"),
    ],
)
def test_numbers_from_another_node_are_cast(value: Any, dtype: str) -> None:
    adapted = NodeSignature((X,)).adapt(value, "The node 'n'")
    assert (adapted["x"] if isinstance(adapted, dict) else adapted).dtype == dtype


@pytest.mark.parametrize(
    ("declared", "value", "words"),
    [
        (NodeSignature((X,)), np.ones((2, 5)), "takes FP32 [-1, 4], but got float64 [2, 5]: the shape is wrong"),
        (NodeSignature((X,)), [[1, 2], [3]], "rows of different lengths"),
        (NodeSignature((X,)), "text", "got one value of type str"),
        (NodeSignature((X,)), {"y": np.ones(1)}, "takes an input 'x', but got 'y'"),
        (NodeSignature((TensorSpec("i", "INT8", (-1,)),)), np.array([300]), "without loss"),
        (NodeSignature((TensorSpec("i", "INT8", (-1,)),)), np.array([1.5]), "without loss"),
        (NodeSignature((TensorSpec("i", "INT8", (-1,)),)), np.array([np.nan]), "without loss"),
        (NodeSignature((TensorSpec("i", "INT8", (-1,)),)), np.array([1e300]), "without loss"),
        (NodeSignature((TensorSpec("i", "INT64", (-1,)),)), np.array([2.0**63]), "without loss"),
        (NodeSignature((TensorSpec("i", "INT64", (-1,)),)), np.array([9007199254740993.0]), "without loss"),
        (TABLE, np.ones((2, 3)), "tables of 2 columns"),
    ],
)
def test_what_another_node_gives_and_does_not_fit_is_said(declared: NodeSignature, value: Any, words: str) -> None:
    with expect_problem(words, 422):
        declared.adapt(value, "The node 'n'")


def test_whole_numbers_may_come_as_floats() -> None:
    assert NodeSignature((TensorSpec("i", "INT8", (-1,)),)).adapt([1.0, -2.0], "n").dtype == "int8"


def test_an_example_fits_what_is_declared() -> None:
    assert NodeSignature((X,)).make_example().shape == (1, 4)
    example = TABLE.make_example()
    assert {name: tensor.shape for name, tensor in example.items()} == {"a": (1,), "b": (1,)}
    assert TensorSpec("s", "BYTES", (-1,)).make_example().tolist() == [b""]
    assert NodeSignature().make_example() is None
