"""A real instance before curl and the official client of the Open Inference Protocol."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from scanflow.instance_messages import Limits
from tests.serving import Instance, send_raw
from tests.waiting import patient

CODE = """
import numpy as np

class Model:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]

    def predict(self, X, names=None):
        return X * 2

class Reverse:
    inputs = [{"name": "bytes", "datatype": "UINT8", "shape": [-1]}]

    def predict(self, X, names=None):
        return X[::-1]

class Words:
    def predict(self, X, names=None):
        return np.array([word.upper() for word in X.ravel()], object).reshape(X.shape)
"""
MIB = 1024 * 1024


def start(folder: Path, name: str = "Model", **fields: Any) -> Instance:
    return Instance(folder, CODE, implementation=f"model.py:{name}", **fields).start()


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with start(tmp_path_factory.mktemp("double"), limits=Limits(max_request_bytes=MIB)) as server:
        yield server


@pytest.fixture(scope="module")
def reverse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with start(tmp_path_factory.mktemp("reverse"), "Reverse") as server:
        yield server


@pytest.fixture(scope="module")
def client(double: Instance) -> Iterator[Any]:
    client = triton.InferenceServerClient(double.url.removeprefix("http://"))
    yield client
    client.close()


def curl(*words: str) -> tuple[int, str, bytes]:
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--include", "--max-time", str(patient(60)), *words],
        capture_output=True,
        check=True,
    )
    head, _, body = done.stdout.rpartition(b"\r\n\r\n")
    text = head.decode()
    return int(re.findall(r"HTTP/1.1 (\d+)", text)[-1]), text, body


# -- curl


def test_curl_asks_how_it_is_and_infers_as_with_seldon(double: Instance) -> None:
    assert curl(f"{double.url}/v2/health/ready")[0] == 200
    assert curl("--head", f"{double.url}/v2")[0] == 200
    status, _, body = curl(f"{double.url}/v2/models/w")
    assert (status, json.loads(body)["name"]) == (200, "w")
    status, _, body = curl("--json", '{"data":{"ndarray":[[1,2]]}}', f"{double.url}/api/v1.0/predictions")
    assert (status, json.loads(body)["data"]["ndarray"]) == (200, [[2, 4]])


@pytest.mark.parametrize("more", [[], ["--http1.0"], ["--http2"], ["-H", "Transfer-Encoding: chunked"]])
def test_curl_infers(double: Instance, more: list[str]) -> None:
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    status, _, body = curl(*more, "--json", json.dumps(request), f"{double.url}/v2/models/w/infer")
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [2, 4])


@pytest.mark.parametrize("size", [1, MIB, 16 * MIB])
def test_curl_sends_bytes_and_gets_bytes(reverse: Instance, tmp_path: Path, size: int) -> None:
    source, got = tmp_path / "given", tmp_path / "got"
    source.write_bytes(random.Random(size).randbytes(size))
    kinds = ["-H", "Content-Type: application/octet-stream", "-H", "Accept: application/octet-stream"]
    subprocess.run(
        ["curl", "-sSf", *kinds, "--data-binary", f"@{source}", "-o", got, f"{reverse.url}/v2/models/w/infer"],
        check=True,
    )
    assert got.read_bytes() == source.read_bytes()[::-1]


@pytest.mark.parametrize("more", [[], ["-H", "Expect:"], ["-H", "Expect:", "-H", "Transfer-Encoding: chunked"]])
def test_curl_learns_that_its_body_is_too_large(double: Instance, tmp_path: Path, more: list[str]) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(100 * MIB)
    status, heads, body = curl(*more, "--data-binary", f"@{large}", f"{double.url}/v2/models/w/infer")
    assert (status, json.loads(body)["status"]) == (413, 413)
    assert "application/problem+json" in heads
    assert "100 Continue" not in heads


def test_curl_learns_what_is_there_when_it_asks_for_something_else(double: Instance) -> None:
    status, _, body = curl(f"{double.url}/v2/models/v")
    assert (status, "Known: model, w" in json.loads(body)["detail"]) == (404, True)
    assert curl("--json", "{}", f"{double.url}/v2/models/w/versions/77/infer")[0] == 404
    status, heads, _ = curl("--request", "DELETE", f"{double.url}/v2/models/w/infer")
    assert (status, "allow: POST" in heads) == (405, True)
    assert curl("--request", "BREW", f"{double.url}/v2")[0] == 501


def test_an_instance_lives_on_whatever_it_is_sent(double: Instance) -> None:
    for noise in (
        b"",
        b"\0" * 1000,
        random.Random(7).randbytes(4000),
        b"GET /v2 HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n\r\n" * 9,
    ):
        send_raw(double.port, noise)
    assert curl(f"{double.url}/v2/health/live")[0] == 200


# -- tritonclient


def make_tensor(name: str, array: np.ndarray, datatype: str, *, binary: bool) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def test_the_official_client_finds_the_server_and_its_model_or_learns_what_is_wrong(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("w")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("w")["inputs"][0]["shape"] == [-1, 2]
    assert [model["name"] for model in client.get_model_repository_index()][:1] == ["w"]
    with pytest.raises(InferenceServerException, match="shape"):
        client.infer("w", [make_tensor("x", np.zeros((1, 3), np.float32), "FP32", binary=True)])
    with pytest.raises(InferenceServerException, match="Known: model, w"):
        client.infer("none", [make_tensor("x", np.zeros((1, 2), np.float32), "FP32", binary=True)])


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_the_official_client_infers(client: Any, binary_in: bool, binary_out: bool) -> None:
    array = np.array([[1, 2], [3, 4]], np.float32)
    name = client.infer("w", [make_tensor("x", array, "FP32", binary=binary_in)]).get_response()["outputs"][0]["name"]
    answer = client.infer(
        "w",
        [make_tensor("x", array, "FP32", binary=binary_in)],
        outputs=[triton.InferRequestedOutput(name, binary_data=binary_out)],
        request_id="7",
    )
    assert (answer.as_numpy(name) == array * 2).all()
    assert answer.get_response()["id"] == "7"


def test_the_official_client_sends_texts(tmp_path: Path) -> None:
    with start(tmp_path, "Words") as instance:
        client = triton.InferenceServerClient(instance.url.removeprefix("http://"))
        words = np.array([[b"one", b"drei"]], object)
        answer = client.infer("w", [make_tensor("x", words, "BYTES", binary=True)])
        client.close()
    (output,) = answer.get_response()["outputs"]
    upper: Any = answer.as_numpy(output["name"])
    assert upper.tolist() == [[b"ONE", b"DREI"]]
