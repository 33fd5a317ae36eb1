"""Date-times for a model: which are its own, and which it cannot have."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from scanflow.instance_messages import ModelFiles, Node
from scanflow_serving.calls import OipCall
from scanflow_serving.component_graph import Graph
from scanflow_serving.components import Component
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import InferRequest, Request, Tensor
from scanflow_serving.model_inputs import ModelInputs, read_moments
from scanflow_serving.signature import NodeSignature, TensorSpec

INPUTS = ModelInputs(NodeSignature((TensorSpec("at", "BYTES", (-1,), content="datetime"),), table=True))


def convert(*values: Any, dtype: str = "O") -> list[str]:
    columns = INPUTS.read_columns({"at": np.array(values, dtype)})
    assert columns is not None
    return [str(value)[:16] for value in columns["at"]]


def test_the_first_and_the_last_moments_that_pandas_counts_are_taken() -> None:
    assert convert("1677-09-22", "2262-04-11T10:00", "NaT") == ["1677-09-22T00:00", "2262-04-11T10:00", "NaT"]
    assert convert("2024-03-01", "NaT", dtype="M8[D]") == ["2024-03-01T00:00", "NaT"]


@pytest.mark.parametrize("moment", ["9999-12-31", "0001-01-01", "1677-09-20", "2262-04-12"])
@pytest.mark.parametrize("dtype", ["O", "M8[s]"])
def test_moments_beyond_are_refused_and_not_turned_into_others(moment: str, dtype: str) -> None:
    with pytest.raises(ProblemError, match=f"{moment}.* is beyond the date-times.*1677-09-21 to 2262-04-11"):
        convert("2024-03-01", moment, dtype=dtype)


@pytest.mark.parametrize("word", ["now", "Today", " now"])
def test_relative_dates_are_refused(word: str) -> None:
    with pytest.raises(ProblemError, match="is not a date and time without a time zone"):
        convert(word)


def make_tensor(*texts: str, content: str = "datetime", unit: str = "") -> Tensor:
    return Tensor("at", "BYTES", np.array([text.encode() for text in texts], object), content=content, unit=unit)


@pytest.mark.parametrize(
    ("texts", "unit", "dtype"),
    [
        (["2024-01-01T06:30:00", "NaT"], "s", "M8[s]"),
        (["2024-01-01"], "", "M8[us]"),
        (["2024-01-01T06:30:00.123456789"], "", "M8[ns]"),
        (["9999-12-31T00:00:00.000000"], "us", "M8[us]"),
        (["NaT"], "ns", "M8[ns]"),
        (["2024-01-01"], "parsec", "M8[us]"),
    ],
)
def test_texts_become_date_times_of_the_unit_that_is_said(texts: list[str], unit: str, dtype: str) -> None:
    moments = read_moments(make_tensor(*texts, unit=unit))
    assert moments.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(moments, np.array(texts, dtype))


@pytest.mark.parametrize(
    ("text", "content", "unit"),
    [
        ("2024-01-01T00:00:00+01:00", "datetime", "us"),
        ("2024-01-01T00:00:00Z", "datetime", ""),
        ("2024-01-01T00:00:00.123456789", "datetime", "us"),
        ("9999-12-31T00:00:00", "datetime", "ns"),
        ("2024-01-01T12:30", "datetime", "D"),
        ("2024-13-01", "datetime", ""),
        ("now", "datetime", ""),
        ("", "datetime", ""),
        ("01.02.2024", "date", ""),
    ],
)
def test_what_would_become_another_moment_is_refused(text: str, content: str, unit: str) -> None:
    with pytest.raises(ProblemError, match=r"input 'at': element 1.*without a time zone.*ISO 8601"):
        read_moments(make_tensor("2024-01-01", text, content=content, unit=unit))


def read_value(*nodes: Node) -> Any:
    """Return what a graph of nodes is given for a request with date-times."""
    graph = Graph(nodes, [Component(node, lambda value, _names, _meta: value) for node in nodes])
    nothing = cast(Any, None)
    call = OipCall(nothing, nothing, False, nothing, nothing, graph, Request("POST", "/"), ())
    call.infer = InferRequest([make_tensor("2024-01-01"), Tensor("n", "INT64", np.array([1]))])
    call.read()
    return call.value["at"].dtype.kind


def test_models_without_a_signature_get_date_times_and_classes_their_text() -> None:
    model = Node(name="model", model=ModelFiles(name="m", version=1, path=""))
    own = Node(name="class", implementation="a.py:A")
    router = Node(name="router", implementation="a.py:R", role="ROUTER")
    after = Node(name="after", model=ModelFiles(name="m", version=1, path=""), parents=("class",))
    assert read_value(model) == "M"
    assert [read_value(own), read_value(own, after)] == ["O", "O"]
    assert read_value(router, Node(name="class", implementation="a.py:A", parents=("router",))) == "O"
    with pytest.raises(ProblemError, match=r"'router' takes as text, .* 'model' would get that text.*infer_signature"):
        read_value(router, Node(name="model", model=model.model, parents=("router",)))
