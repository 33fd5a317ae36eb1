"""Whatever comes in is answered or refused: no request is an error of the server, and no file a traceback.

Bodies of the model server in JSON, binary, Seldon's protocol and gRPC, mutated from right ones; and files that people
give: tables, labels, applications.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scanflow.app.application_files import load_yaml
from scanflow.errors import InvalidError
from scanflow.protos import get_message_class
from scanflow.tables.table_files import read_columns
from scanflow.transport.tensors import encode_grpc_request, encode_request
from scanflow_client import label_files
from scanflow_serving.grpc_api import read_request, write_response
from scanflow_serving.inference_problems import ProblemError
from tests.laws.model_clients import ServedModel, serve_model
from tests.laws.strategies import SEEDED
from tests.laws.zoo import TARGET, TRAINED, save_sklearn

COLUMNS = {"age": np.array([31.0, 42.0]), "income": np.array([1000.0, 2500.5])}
TABLE = pd.DataFrame({"age": [31, 42], "city": ["Bern", "a,b"], "at": ["2024-01-01", "2024-02-30"]})
DATATYPES = ("BOOL", "UINT8", "INT8", "INT64", "UINT64", "FP16", "FP32", "FP64", "BF16", "BYTES", "fp64", "", "X")
NUMBERS = st.integers(-3, 5) | st.sampled_from([2**31, 2**63 - 1, -(2**63), 2**64, 10**400])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    from sklearn.linear_model import LinearRegression

    folder, numbers = tmp_path_factory.mktemp("parsers") / "model", TRAINED[["age", "income"]].astype(float)
    save_sklearn(LinearRegression().fit(numbers, TARGET), numbers, folder)
    with serve_model(folder) as served:
        yield served


@st.composite
def mutate(draw: st.DrawFn, content: bytes) -> bytes:
    """Return bytes with some of them changed, left out, doubled or put in."""
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 2, 8, 64])))
        match draw(st.sampled_from(["replace", "drop", "double", "cut"])):
            case "replace":
                content = content[:start] + draw(st.binary(max_size=8)) + content[end:]
            case "drop":
                content = content[:start] + content[end:]
            case "double":
                content = content[:end] + content[start:end] * draw(st.integers(1, 50)) + content[end:]
            case _:
                content = content[:start]
    return content


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A request of the protocol, some of whose fields are anything."""
    tensors: list[Any] = []
    for name in draw(st.lists(st.sampled_from(["age", "income", "age", "x", ""]), max_size=3)):
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": draw(st.sampled_from(DATATYPES)),
            "shape": draw(st.lists(NUMBERS, max_size=3) | st.just([2]) | VALUES),
            "data": draw(st.lists(NUMBERS | st.floats(), max_size=4) | VALUES),
        }
        if draw(st.booleans()):
            tensor["parameters"] = draw(VALUES | st.fixed_dictionaries({"binary_data_size": NUMBERS}))
        for field in draw(st.sets(st.sampled_from(list(tensor)), max_size=1)):
            del tensor[field]
        tensors.append(tensor)
    document: dict[str, Any] = {"inputs": draw(st.just(tensors) | VALUES)}
    for field in draw(st.sets(st.sampled_from(["id", "parameters", "outputs", "x"]))):
        document[field] = draw(VALUES)
    return document


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """The path, the body and the headers of a request."""
    path = draw(st.sampled_from(["/v2/models/m/infer", "/v2/models/m/versions/r1/infer"]))
    kind = draw(st.sampled_from(["JSON", "binary", "bytes", "Seldon", "form"]))
    if kind == "JSON":
        written = json.dumps(draw(documents())).encode()
        return path, draw(mutate(written)) if draw(st.booleans()) else written, {}
    if kind == "binary":
        body, headers = encode_request(COLUMNS)
        length = draw(
            st.just(headers["inference-header-content-length"]) | NUMBERS.map(str) | st.text("0x -", max_size=4)
        )
        return path, draw(mutate(body)), {**headers, "inference-header-content-length": length}
    if kind == "bytes":
        media = draw(st.sampled_from(["application/octet-stream", "text/plain", "application/json", "a"]))
        return path, draw(st.binary(max_size=64)), {"content-type": media}
    if kind == "form":
        body = b'--b\r\ncontent-disposition: form-data; name="json"\r\n\r\n{"data": {"ndarray": [[1, 2]]}}\r\n--b--\r\n'
        return "/api/v1.0/predictions", draw(mutate(body)), {"content-type": "multipart/form-data; boundary=b"}
    key = draw(st.sampled_from(["ndarray", "tensor", "tftensor", "x"]))
    value = draw(VALUES | st.fixed_dictionaries({"shape": st.lists(NUMBERS, max_size=3), "values": VALUES}))
    field = draw(st.sampled_from(["data", "binData", "strData", "jsonData", "x"]))
    document = {
        field: {key: value, "names": draw(VALUES)} if draw(st.booleans()) else draw(VALUES),
        "meta": draw(VALUES),
    }
    return "/api/v1.0/predictions", json.dumps(document).encode(), {}


def check_body(served: ServedModel, body: tuple[str, bytes, dict[str, str]]) -> None:
    answer = served.post(*body)
    assert answer.status_code < 500 or answer.status_code == 501, (answer.text[:500], body)
    if answer.status_code >= 400:
        assert answer.json()["detail"], body


@settings(SEEDED, max_examples=120)
@example(body=("/api/v1.0/predictions", b'{"jsonData": [null, []], "meta": null}', {}))
@given(body=bodies())
def test_no_body_is_an_error_of_the_model_server(
    served_model: ServedModel, body: tuple[str, bytes, dict[str, str]]
) -> None:
    check_body(served_model, body)


def check_message(served: ServedModel, content: bytes) -> None:
    assert ask_by_grpc(served, content) < 500, content


def ask_by_grpc(served: ServedModel, content: bytes) -> int:
    """Return the status of an answer, as HTTP has it."""
    try:
        request = get_message_class("ModelInferRequest").FromString(content)
    except DecodeError:
        return 400  # gRPC's own answer, before the server's
    try:
        call = served.application.infer("m", "", read_request(request, allow_nan=True), 60)
        answer = asyncio.run_coroutine_threadsafe(call, served.loop).result(60)
        write_response(answer, raw=bool(request.raw_input_contents))
    except ProblemError as problem:
        return problem.status
    return 200


MESSAGE = encode_grpc_request("m", COLUMNS)


@settings(SEEDED, max_examples=120)
@given(content=mutate(MESSAGE))
def test_no_message_is_an_error_of_the_model_server(served_model: ServedModel, content: bytes) -> None:
    check_message(served_model, content)


def _write_table(write: Any, **options: Any) -> bytes:
    content = write(**options)
    return bytes(content if isinstance(content, bytes) else content.encode())


READERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "a.csv": (read_columns, _write_table(TABLE.to_csv, index=False)),
    "a.jsonl": (read_columns, _write_table(TABLE.to_json, orient="records", lines=True)),
    "a.parquet": (read_columns, _write_table(TABLE.to_parquet)),
    "labels.csv": (label_files.read, b"id;label\n1;1,5\n2;cat\n3;[1, 2]\n"),
    "app.yaml": (
        lambda path: load_yaml(path.read_text(encoding="utf-8", errors="replace")),
        b"name: shop\nworkflows:\n- name: w\n  nodes:\n  - name: a\n    mainfile: a.py\n    parameters: {n: 1}\n",
    ),
}


def check_file(folder: Path, name: str, content: bytes) -> None:
    read, _ = READERS[name]
    (folder / name).write_bytes(content)
    with suppress(InvalidError):
        read(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", READERS)
def test_no_file_is_more_than_refused(folder: Path, name: str) -> None:
    @settings(SEEDED, max_examples=60)
    @given(content=mutate(READERS[name][1]))
    def check(content: bytes) -> None:
        check_file(folder, name, content)

    check()


@pytest.mark.slow
def test_ten_thousand_bodies_and_messages_are_answered_or_refused(served_model: ServedModel) -> None:
    @settings(SEEDED, derandomize=False, max_examples=10_000)
    @given(body=bodies())
    def check_bodies(body: tuple[str, bytes, dict[str, str]]) -> None:
        check_body(served_model, body)

    @settings(SEEDED, derandomize=False, max_examples=10_000)
    @given(content=mutate(MESSAGE))
    def check_messages(content: bytes) -> None:
        check_message(served_model, content)

    check_bodies()
    check_messages()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_files_are_read_or_refused(folder: Path, name: str) -> None:
    @settings(SEEDED, derandomize=False, max_examples=10_000)
    @given(content=mutate(READERS[name][1]))
    def check(content: bytes) -> None:
        check_file(folder, name, content)

    check()
