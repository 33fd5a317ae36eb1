"""Inputs of a file or of JSON, with the types that a service declares."""

from __future__ import annotations

import io
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from scanflow.deployer import Deployer
from scanflow.errors import InvalidError
from scanflow.tables.columns import ReadOptions
from scanflow.transport import PredictionResponse
from scanflow.transport.tensors import as_arrays
from scanflow_client import predict_io
from scanflow_client.cli import characterize_command
from scanflow_client.cli.command_tree import app
from scanflow_client.declared_inputs import Declared, fit_inputs, name_columns
from scanflow_client.predict_io import PredictRequest, read_request, send
from scanflow_client.tuning_target import TuningTarget


def declare(**types: str) -> Declared:
    return [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in types.items()]


def no_texts(_names: Collection[str]) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("value_", "declared", "got"),
    [
        ([1, 0], "FP64", "float64"),
        ([1, 0], "FP32", "float32"),
        ([1.0, 2.0], "INT32", "int32"),
        ([1.5], "INT32", "float64"),
        ([300], "INT8", "int64"),
        ([2**53 + 1], "FP64", "int64"),
        ([1e300], "FP32", "float64"),
        ([float("nan")], "FP32", "float32"),
        ([True], "FP64", "bool"),
        (np.array([2**63 + 1, 1], "uint64"), "INT64", "uint64"),
        ([2**63 + 1, 1], "INT64", "uint64"),
        ([2.0**63], "INT64", "float64"),
        ([9007199254740993.0], "INT64", "float64"),
        ([9007199254740991.0], "INT64", "int64"),
        ([2.0**64], "UINT64", "float64"),
        ([2**63 - 1], "FP64", "int64"),
        ([-1], "UINT64", "int64"),
        ([None, 2.5], "FP64", "float64"),
        ([None, None], "FP32", "float32"),
        ([2, None], "FP64", "float64"),
        ([], "INT64", "int64"),
        (np.array([], object), "FP64", "float64"),
        ([], "BYTES", "object"),
    ],
)
def test_numbers_get_the_declared_type_where_they_stay_the_same(value_: Any, declared: str, got: str) -> None:
    [value] = fit_inputs({"x": value_}, declare(x=declared), no_texts).values()
    assert np.asarray(value).dtype == got


def test_columns_become_the_one_input_of_a_service_where_the_columns_have_no_names() -> None:
    inputs: Declared = [{"name": "input-0", "datatype": "FP32", "shape": [-1, 2]}]
    fitted = fit_inputs({"a": [1, 2], "b": [3, 4]}, inputs, no_texts)
    assert fitted["input-0"].tolist() == [[1, 3], [2, 4]]
    assert fitted["input-0"].dtype == np.float32
    assert fit_inputs({"a": [1], "b": [2], "c": [3]}, inputs, no_texts) == {"a": [1], "b": [2], "c": [3]}


def test_rows_go_by_the_name_of_the_only_input_if_they_have_its_dimensions() -> None:
    column = fit_inputs([1, 2], declare(a="FP64"), no_texts)
    assert (list(column), column["a"].tolist()) == (["a"], [1.0, 2.0])
    assert np.shape(fit_inputs([[1], [2]], declare(a="FP64"), no_texts)) == (2, 1), "a table of one column"
    assert fit_inputs([[1, 2], [3]], declare(a="FP64"), no_texts) == [[1, 2], [3]]
    assert fit_inputs([1, 2], declare(a="FP64", b="FP64"), no_texts) == [1, 2]


def test_columns_of_other_types_are_stacked_without_rounding() -> None:
    tensor: Declared = [{"name": "input-0", "datatype": "INT64", "shape": [-1, 2]}]
    fitted = fit_inputs({"a": [2**53 + 1], "b": np.array([5], "uint64")}, tensor, no_texts)
    assert fitted["input-0"].tolist() == [[2**53 + 1, 5]]


@pytest.mark.parametrize("values", [[1, None], [1.0, float("nan")], pd.array([1, None], "Int64"), [True, None]])
@pytest.mark.parametrize("datatype", ["INT64", "BOOL"])
def test_a_missing_value_is_refused_by_name_where_the_type_has_none(values: Any, datatype: str) -> None:
    with pytest.raises(InvalidError, match=f"The input 'x' is of {datatype}, .* element 1 is missing. Leave such rows"):
        fit_inputs({"x": values}, declare(x=datatype), no_texts)


def test_a_missing_date_is_sent_as_one() -> None:
    declared: Declared = [{"name": "x", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "datetime"}}]
    for values in (["2026-01-01", None], np.array(["2026-01-01", None], dtype=object), ["2026-01-01", float("nan")]):
        assert list(fit_inputs({"x": values}, declared, no_texts)["x"]) == ["2026-01-01", "NaT"]
    assert list(fit_inputs({"x": [None]}, declared, no_texts)["x"]) == ["NaT"]


def test_a_series_is_the_column_of_its_name() -> None:
    assert {name: list(values) for name, values in name_columns(pd.Series([1.5], name="a")).items()} == {"a": [1.5]}
    assert name_columns(pd.Series([1.5])).tolist() == [1.5]


def test_a_row_of_a_table_is_one_value_for_each_column() -> None:
    rows = pd.DataFrame({"age": [3, 4], "city": ["a", "b"]})
    assert name_columns(rows.iloc[1]) == {"age": [4], "city": ["b"]}
    assert name_columns(rows[rows["age"] > 3].iloc[0]) == {"age": [4], "city": ["b"]}
    assert set(name_columns(rows.set_index("city")["age"])) == {"age"}


@pytest.mark.parametrize(
    "inputs", [pd.DataFrame([[1, 2]], columns=[1, "1"]), pd.DataFrame([[1, 2]], columns=["1", "1"]), [{1: 1, "1": 2}]]
)
def test_columns_of_one_name_are_refused(inputs: Any) -> None:
    with pytest.raises(InvalidError, match=r"The columns .?1.? and '1' have the same name"):
        name_columns(inputs)


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(InvalidError, match=r"has no input 'agee'. Did you mean 'age'\? It has age, city"):
        fit_inputs({"agee": [1], "city": ["x"]}, declare(age="FP64", city="BYTES"), no_texts)


def test_a_column_of_digits_is_text_where_the_model_has_text() -> None:
    texts = {"code": np.array(["007"], object)}
    fitted = fit_inputs(
        {"code": np.array([7])}, declare(code="BYTES"), lambda names: {name: texts[name] for name in names}
    )
    assert list(fitted["code"]) == ["007"]


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "feather", "jsonl", "json"])
def test_a_table_and_records_are_columns(tmp_path: Path, ending: str) -> None:
    frame, path = pd.DataFrame({"age": [1, 2], "city": ["a", "b"]}), tmp_path / f"rows.{ending}"
    match ending.partition(".")[0]:
        case "csv":
            frame.to_csv(path, index=False)
        case "parquet":
            frame.to_parquet(path)
        case "feather":
            frame.to_feather(path)
        case _:
            frame.to_json(path, orient="records", lines=ending == "jsonl")
    with (tmp_path / "none").open("wb+") as stdin:
        request = read_request(file=str(path), data=None, npy=None, stdin=stdin)
    columns = name_columns(request.inputs)
    assert {name: list(values) for name, values in columns.items()} == {"age": [1, 2], "city": ["a", "b"]}
    assert request.rows == 2


def fit_table(path: Path, content: str, declared: Declared, options: ReadOptions | None = None) -> dict[str, Any]:
    path.write_text(content)
    return fit_file(path, declared, options)


def fit_file(path: Path, declared: Declared, options: ReadOptions | None = None) -> dict[str, Any]:
    """Return what is sent of a file to a service that declares these inputs."""

    class Service:
        def connect(self, _name: str) -> AbstractContextManager[Any]:
            return nullcontext(self)

        def document(self, _path: str) -> dict[str, Any]:
            return {"inputs": declared}

        def infer(self, _model: str, inputs: Any, **_: Any) -> PredictionResponse:
            return PredictionResponse(outputs=as_arrays(inputs), instance="1", revision="r1")

    request = read_request(file=str(path), data=None, npy=None, stdin=io.BytesIO(), options=options)
    answer = send(cast(Deployer, Service()), "x", request, node=None, dtype=None, seldon=False)
    return {name: (values.dtype.name, values.tolist()) for name, values in answer.outputs.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_smallest_and_the_largest_whole_number_stay_negative_and_positive(tmp_path: Path, ending: str) -> None:
    path, texts = tmp_path / f"a.{ending}", [str(-(2**63)), str(2**63 - 1), "0"]
    frame = pd.DataFrame({"i": texts, "n": [1, 2, 3]})
    frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    assert fit_file(path, declare(i="INT64", n="INT64"))["i"] == ("int64", [-(2**63), 2**63 - 1, 0])
    assert fit_file(path, declare(i="UINT64", n="INT64"))["i"][1][0] < 0, "it is no large number"


@pytest.mark.parametrize(
    "written", ["true,false", "TRUE,FALSE", "T,F", "yes,no", "Yes,NO", "y,n", "Y,N", "1,0", "1.0,0.0"]
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_truth_values_of_a_file_are_taken_however_they_are_written(tmp_path: Path, written: str, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    pd.DataFrame({"b": [*written.split(",")] * 3, "n": range(6)}).to_csv(tmp_path / "a.csv", index=False)
    if ending == "parquet":
        pd.read_csv(tmp_path / "a.csv").to_parquet(path)
    sent = fit_file(path, declare(b="BOOL", n="INT64"))
    assert sent["b"] == ("bool", [True, False] * 3)


@pytest.mark.parametrize("other", ["maybe", "2", "0.5", "on"])
def test_what_is_no_truth_value_is_refused_with_what_to_write(tmp_path: Path, other: str) -> None:
    with pytest.raises(InvalidError, match=r"takes truth values in 'b', and it has .*Write true or false \(or yes"):
        fit_table(tmp_path / "a.csv", f"b,n\n{other},1\n{other},0\n", declare(b="BOOL", n="INT64"))


def test_a_missing_truth_value_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="'b' is of BOOL, which has no missing values, but element 1 is missing"):
        fit_table(tmp_path / "a.csv", "b,n\nyes,1\n,0\n", declare(b="BOOL", n="INT64"))


def test_whole_numbers_of_a_text_file_are_exact_where_the_model_has_whole_ones(tmp_path: Path) -> None:
    content = "i,u,d\n9007199254740993.0,9223372036854775809,9007199254740993.0\n2.0,1,0.5\n"
    sent = fit_table(tmp_path / "a.csv", content, declare(i="INT64", u="UINT64", d="FP64"))
    assert sent["i"] == ("int64", [2**53 + 1, 2])
    assert sent["u"] == ("uint64", [2**63 + 1, 1])
    assert sent["d"] == ("float64", [float(2**53), 0.5])
    with pytest.raises(InvalidError, match="'i' is of INT64, which has no missing values, but element 1 is missing"):
        fit_table(tmp_path / "a.csv", "i,d\n9007199254740993,1\n,2\n", declare(i="INT64", d="FP64"))


def test_truth_values_with_blanks_are_no_numbers(tmp_path: Path) -> None:
    sent = fit_table(tmp_path / "a.csv", "x, d\n1, True\n2, False\n", declare(x="INT64", d="FP64"))
    assert sent["d"] == ("bool", [True, False])
    with pytest.raises(InvalidError, match="'d' has no value at element 1"):
        fit_table(tmp_path / "a.csv", "x, d\n1, True\n2, \n", declare(x="INT64", d="FP64"))


def test_a_date_that_is_missing_is_sent_as_such_where_the_model_has_dates(tmp_path: Path) -> None:
    times = [{**declare(t="BYTES")[0], "parameters": {"content_type": "datetime"}}]
    content = "x,t\n1,2024-03-01\n2,\n"
    sent = fit_table(tmp_path / "a.csv", content, [*declare(x="INT64"), *times])
    assert sent["t"] == ("object", ["2024-03-01", "NaT"])
    with pytest.raises(
        InvalidError, match=r"a.csv: 't' has no date in row 2, and the model takes text there. Fill or drop"
    ):
        fit_table(tmp_path / "a.csv", content, declare(x="INT64", t="BYTES"))


def test_numbers_with_text_are_text_where_the_model_has_text_and_else_refused(tmp_path: Path) -> None:
    content = "x,y\n1,1\nERR,2\n3,3\n"
    sent = fit_table(tmp_path / "a.csv", content, declare(x="BYTES", y="INT64"))
    assert sent["x"] == ("object", ["1", "ERR", "3"])
    with pytest.raises(InvalidError, match=r"a.csv: 'x' is of numbers, and has 'ERR' too. Mend or drop that row."):
        fit_table(tmp_path / "a.csv", content, declare(x="INT64", y="INT64"))


def test_options_say_how_a_table_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="--decimal"):
        fit_table(tmp_path / "a.csv", "x;s\n1,234;š\n", declare(x="FP64", s="BYTES"))
    options = ReadOptions(separator=";", decimal=",", encoding="utf-8")
    sent = fit_table(tmp_path / "a.csv", "x;s\n1,234;š\n", declare(x="FP64", s="BYTES"), options)
    assert sent == {"x": ("float64", [1.234]), "s": ("object", ["š"])}


@pytest.mark.parametrize(
    "command", ["predict digits", "load digits", "tune digits --fresh", "characterize digits --file"]
)
def test_every_command_that_sends_a_table_takes_how_it_is_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b;c,d\n1,2;3,4\n", encoding="utf-8")
    target = SimpleNamespace(record=None, workflow=SimpleNamespace(type="online"))
    monkeypatch.setattr(TuningTarget, "find", lambda *_, **__: target)
    monkeypatch.setattr(characterize_command, "find_workflow", lambda *_, **__: target)
    sent: list[PredictRequest] = []

    def read(**arguments: Any) -> PredictRequest:
        sent.append(read_request(**arguments))
        raise InvalidError("it was read")

    monkeypatch.setattr(predict_io, "read_request", read)
    words = [*command.split(), str(path)]
    refused = CliRunner().invoke(app, words)
    assert "--separator" in str(refused.exception)
    done = CliRunner().invoke(app, [*words, "--separator", ";", "--decimal", ",", "--encoding", "utf-8"])
    assert "it was read" in str(done.exception)
    assert {name: column.tolist() for name, column in sent[0].inputs.items()} == {"a,b": [1.2], "c,d": [3.4]}


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_text_that_looks_like_dates_goes_as_it_stands_where_no_type_is_declared(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    frame = pd.DataFrame({"day": [" 2024-01-05", "2024-02-06"], "word": ["a ", "b"], "n": [1.5, 2.0]})
    match ending:
        case "csv":
            frame.to_csv(path, index=False)
        case "parquet":
            frame.to_parquet(path)
        case _:
            frame.to_json(path, orient="records", lines=True)
    sent = fit_file(path, [])
    assert sent["day"] == ("object", [" 2024-01-05", "2024-02-06"])
    assert (sent["word"], sent["n"]) == (("object", ["a ", "b"]), ("float64", [1.5, 2.0]))
    frame.assign(day=pd.to_datetime(frame["day"].str.strip())).to_parquet(path)
    if ending == "parquet":
        assert fit_file(path, [])["day"][0].startswith("datetime64")


def test_the_elements_of_a_list_go_as_json_where_that_is_what_the_model_takes() -> None:
    lists: Declared = [{**declare(all="BYTES")[0], "parameters": {"content_type": "application/json"}}]
    for value, sent in (
        ([[1.0, 2.0], [3.0]], ["[1.0, 2.0]", "[3.0]"]),
        ([{"a": 1}, {"a": 2}], ['{"a": 1}', '{"a": 2}']),
        ([{"all": [1]}, {"all": [2]}], ["[1]", "[2]"]),
        (["[1]"], ["[1]"]),
    ):
        assert fit_inputs(value, lists) == {"all": sent}


def test_records_of_unlike_names_are_refused_unless_each_is_an_element_of_its_own() -> None:
    records = [{"a": 1, "b": 2}, {"a": 1}]
    with pytest.raises(InvalidError, match="Record 1 has no 'b'"):
        fit_inputs(records, declare(a="INT64", b="INT64"))
    elements: Declared = [{**declare(maps="BYTES")[0], "parameters": {"content_type": "application/json"}}]
    assert fit_inputs(records, elements) == {"maps": ['{"a": 1, "b": 2}', '{"a": 1}']}


def test_a_data_frame_and_records_are_named_columns() -> None:
    frame = pd.DataFrame({"b": [1.5], "a": ["x"]})
    assert {name: list(values) for name, values in name_columns(frame).items()} == {"b": [1.5], "a": ["x"]}
    assert name_columns([{"b": 1.5, "a": "x"}]) == {"b": [1.5], "a": ["x"]}
    for other in ([[1, 2]], {"a": [1]}, [], np.zeros(3)):
        assert name_columns(other) is other


def test_a_mapping_of_names_to_single_values_is_one_row() -> None:
    row = {"age": 30, "code": "007", "when": pd.Timestamp("2026-11-30"), "gone": None, "share": np.float64(0.5)}
    declared = declare(age="FP64", code="BYTES", when="BYTES", gone="FP64", share="FP64")
    single, listed = fit_inputs(row, declared), fit_inputs({name: [value] for name, value in row.items()}, declared)
    assert repr(single) == repr(listed)
    assert np.shape(single["age"]) == (1,)
    scalar = [{"name": "age", "datatype": "FP64", "shape": []}]
    assert np.shape(fit_inputs({"age": 30}, scalar)["age"]) == (), "a service may take one number"
    assert np.shape(fit_inputs({"age": 30}, [])["age"]) == ()
    assert fit_inputs({"a": 1, "b": 2}, [{"name": "x", "datatype": "FP64", "shape": [-1, 2]}])["x"].tolist() == [[1, 2]]
