"""What is asked of a service on a command line: JSON, arrays, bytes, whole messages."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from scanflow.deployer import Deployer
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.transport import PredictionResponse, Reply
from scanflow.transport.tensors import as_arrays
from scanflow_client.predict_io import PredictRequest, format_response, read_request, send


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


TENSORS = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}


def read(
    file: str | None = None, *, data: str | None = None, npy: Path | None = None, stdin: bytes | None = None
) -> PredictRequest:
    return read_request(file=file, data=data, npy=npy, stdin=Terminal() if stdin is None else io.BytesIO(stdin))


def save_bytes(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def test_rows_are_json_and_whole_messages_are_sent_as_they_are() -> None:
    assert read(data="[[1, 2]]").inputs == read("-", stdin=b" [[1, 2]]\n").inputs == read(stdin=b"[[1, 2]]").inputs
    assert read(data='{"a": [1], "inputs": [2]}').inputs == {"a": [1], "inputs": [2]}
    assert read(data=json.dumps(TENSORS)).message == TENSORS
    assert read(data='{"data": {"ndarray": [[1]]}}').message == {"data": {"ndarray": [[1]]}}


def test_files_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    (tmp_path / "rows.npy").write_bytes(save_bytes(np.save, array))
    (tmp_path / "rows.npz").write_bytes(save_bytes(np.savez, a=array))
    (tmp_path / "rows.json").write_text("[[1]]")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "text.txt").write_bytes(b"[sic] it is text")
    assert read(str(tmp_path / "rows.npy")).inputs.tolist() == array.tolist()
    assert read(npy=tmp_path / "rows.npy").inputs.dtype == np.uint8
    assert list(read(str(tmp_path / "rows.npz")).inputs) == ["a"]
    assert read(str(tmp_path / "rows.json")).inputs == [[1]]
    assert read(str(tmp_path / "picture.png")).raw == b"\x89PNG"
    assert read(str(tmp_path / "text.txt")).raw == b"[sic] it is text"
    assert read("-", stdin=save_bytes(np.save, array)).inputs.shape == (2, 3)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({}, UsageError, "No input is given"),
        ({"file": "a.npy", "data": "[1]"}, UsageError, "Several inputs are given"),
        ({"file": "nothere.npy"}, NotFoundError, "There is no file 'nothere.npy'"),
        ({"file": "/dev/zero"}, InvalidError, "'/dev/zero' cannot be read: it is a device"),
        ({"npy": Path("/dev/zero")}, InvalidError, "'/dev/zero' cannot be read: it is a device"),
        ({"data": "[[1, 2]"}, InvalidError, "--data is not JSON"),
        ({"npy": Path("objects.npy")}, InvalidError, "contains no array that can be sent"),
        ({"file": "cut.npy"}, InvalidError, "contains no array that can be sent"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("objects.npy").write_bytes(save_bytes(np.save, np.array([object()], dtype=object)))
    Path("cut.npy").write_bytes(save_bytes(np.save, np.arange(100))[:100])
    with pytest.raises(error, match=message):
        read(**value)


class Listening:
    def __init__(self, content_type: str = "application/json") -> None:
        self.content_type = content_type
        self.declared: list[str] = []
        self.outputs: list[str] = []
        self.asked: list[tuple[str, bytes]] = []

    def connect(self, _name: str) -> AbstractContextManager[Listening]:
        return nullcontext(self)

    def post(self, path: str, body: bytes, _headers: Mapping[str, str]) -> Reply:
        self.asked.append((path, body))
        return Reply(content=body, headers={"content-type": self.content_type})

    def document(self, _path: str) -> dict[str, Any]:
        outputs = [{"name": "y", "datatype": datatype} for datatype in self.outputs]
        return {"inputs": [{"name": "x", "datatype": datatype} for datatype in self.declared], "outputs": outputs}

    def infer(self, _model: str, inputs: Any, *, dtype: str | None, **_: bool) -> PredictionResponse:
        return PredictionResponse(outputs=as_arrays({"y": inputs}, dtype=dtype), instance="1", revision="r1")


def predict_through(
    listening: Listening, question: PredictRequest, *, seldon: bool = False, node: str | None = None
) -> Any:
    return send(cast(Deployer, listening), "digits", question, node=node, dtype=None, seldon=seldon)


def test_each_kind_of_request_goes_where_it_is_understood() -> None:
    there = Listening()
    assert predict_through(there, PredictRequest(message=TENSORS)) == TENSORS
    assert predict_through(there, PredictRequest(message={"strData": "a"})) == {"strData": "a"}
    assert predict_through(there, PredictRequest(inputs=np.array([[1, 2]])), seldon=True) == {
        "data": {"ndarray": [[1, 2]]}
    }
    assert predict_through(there, PredictRequest(raw=b"\x00"), seldon=True) == {"binData": "AA=="}
    assert predict_through(there, PredictRequest(message=TENSORS), node="a/b") == TENSORS
    predictions, infer = "/api/v1.0/predictions", "/v2/models/digits/infer"
    assert [path for path, _ in there.asked] == [
        infer, predictions, predictions, predictions, "/v2/models/a%2Fb/infer",
    ]  # fmt: skip
    with pytest.raises(InvalidError, match="Seldon's protocol takes one input"):
        predict_through(there, PredictRequest(inputs={"a": [1]}), seldon=True)


def test_whole_numbers_that_are_typed_are_what_the_model_declares() -> None:
    there = Listening()
    for declared, got in ([], "int64"), (["FP64"], "float64"), (["INT8"], "int8"), (["FP32", "FP64"], "int64"):
        there.declared = declared
        answer = predict_through(there, PredictRequest(inputs=[[1, 2]]))
        assert answer.outputs["y"].dtype == got
    there.declared = ["FP64"]
    assert predict_through(there, PredictRequest(inputs=np.array([1], dtype="int8"))).outputs["y"].dtype == "int8"


def test_bytes_come_back_as_bytes_unless_the_answer_is_a_document() -> None:
    assert predict_through(Listening("application/octet-stream"), PredictRequest(raw=b"abc")) == b"abc"
    assert predict_through(Listening(), PredictRequest(raw=b'{"a": 1}')) == {"a": 1}


def test_numbers_that_a_picture_is_answered_with_are_shown_as_numbers() -> None:
    body = json.dumps({"outputs": [{"name": "y", "datatype": "INT64", "shape": [1], "data": [7]}]}).encode()
    there = Listening()
    there.outputs = ["INT64"]
    assert predict_through(there, PredictRequest(raw=body)).outputs["y"].tolist() == [7]
    there = Listening("application/octet-stream")
    there.outputs = ["UINT8"]
    assert predict_through(there, PredictRequest(raw=b"abc")) == b"abc"


def test_an_answer_is_shown_with_its_types_and_who_gave_it() -> None:
    answer = predict_through(Listening(), PredictRequest(inputs=[[1, 2]]))
    assert format_response(answer, as_json=False) == ["y  int64 (1, 2)", "[[1, 2]]", "from instance 1, revision r1"]
    document = {"outputs": {"y": [[1, 2]]}, "instance": "1", "revision": "r1"}
    assert json.loads(format_response(answer, as_json=True)[0]) == document
    large = predict_through(Listening(), PredictRequest(inputs=np.zeros((100, 100))))
    assert len("\n".join(format_response(large, as_json=False))) < 1000
    assert len(json.loads(format_response(large, as_json=True)[0])["outputs"]["y"]) == 100
    words = np.empty(2, dtype=object)
    words[:] = [b"yes", b"n\xff"]
    text = PredictionResponse(outputs={"y": words}, instance=None, revision=None)
    assert json.loads(format_response(text, as_json=True)[0])["outputs"]["y"] == ["yes", "n\ufffd"]


@pytest.mark.parametrize("name", ["rows.xlsx", "rows.bin.zip", "rows.dat.zst", "rows.gz", "ROWS.ODS"])
def test_a_file_that_may_be_a_table_of_another_format_is_refused_with_those_there_are(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 anything")
    with pytest.raises(InvalidError, match=f"'{name}' is no table.*CSV, Parquet, Feather or JSON lines.*: - < {name}"):
        read(str(tmp_path / name))


@pytest.mark.parametrize(
    ("raw", "datatypes", "refused"),
    [
        (b"a;b\n1;2\n", ["FP64", "FP64"], True),
        (b"\x00\x01", ["FP64", "FP64"], True),
        (b"1.5\n2.5\n", ["FP64"], True),
        (b"\x00" * 8, ["FP64"], False),
        (b"some text", ["BYTES"], False),
        (b"some text", ["UINT8"], False),
        (b"some text", [], False),
    ],
)
def test_bytes_are_sent_where_one_input_takes_them(raw: bytes, datatypes: list[str], *, refused: bool) -> None:
    there = Listening("application/octet-stream")
    there.declared = datatypes
    if not refused:
        assert predict_through(there, PredictRequest(raw=raw)) == raw
        return
    with pytest.raises(InvalidError, match=r"The service takes columns \('x'.*CSV, Parquet"):
        predict_through(there, PredictRequest(raw=raw))
