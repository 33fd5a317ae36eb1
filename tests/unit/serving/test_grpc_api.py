"""The gRPC API before the official client, with a small core behind it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scanflow.instance_messages import Limits
from scanflow.protos import SERVICE, get_message_class
from scanflow_serving.grpc_api import GrpcApi, read_request
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.messages import InferRequest, InferResponse, Request, Response, Tensor
from tests.serving import reserve_port
from tests.waiting import PATIENCE_S

DOCUMENTS = {
    "/v2": {"name": "scanflow", "version": "0", "extensions": ["binary_tensor_data"]},
    "/v2/models/double": {
        "name": "double",
        "versions": ["3"],
        "platform": "python",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    },
    "/v2/models/double/ready": {},
}


class Core:
    async def handle(self, request: Request) -> Response:
        document = DOCUMENTS.get(request.path)
        if document is None:
            return ProblemError(404, f"There is no model at {request.path}.").build_response()
        return Response(200, json.dumps(document).encode())

    async def infer(self, model: str, version: str, request: InferRequest, deadline_s: float) -> InferResponse:
        assert 0 < deadline_s <= PATIENCE_S
        if model == "busy":
            raise ProblemError(429, "The queue is full.", retry_after_s=2)
        outputs = [
            Tensor(
                f"{tensor.name}-out", tensor.datatype, tensor.data if tensor.datatype == "BYTES" else tensor.data * 2
            )
            for tensor in request.inputs
        ]
        return InferResponse(model, version or "3", outputs, id=request.id, parameters={"n": 1, "s": "text"})

    def ready(self) -> bool:
        return True

    def live(self) -> bool:
        return True


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    started, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve(port: int) -> None:
        face = GrpcApi(Core(), "127.0.0.1", port, Limits(deadline_s=PATIENCE_S), service="double")
        await face.start()
        over = asyncio.Event()
        loops.append((asyncio.get_running_loop(), over))
        started.set()
        await over.wait()
        await face.stop()

    with reserve_port() as port:
        thread = threading.Thread(target=lambda: asyncio.run(serve(port)))
        thread.start()
        assert started.wait(PATIENCE_S)
        yield f"127.0.0.1:{port}"
        loop, over = loops[0]
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    client = triton.InferenceServerClient(address)
    yield client
    client.close()


def make_tensor(name: str, array: np.ndarray, datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def test_the_official_client_finds_the_server_and_its_model(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.get_server_metadata().name == "scanflow"
    metadata = client.get_model_metadata("double")
    assert metadata.versions == ["3"]
    assert list(metadata.inputs[0].shape) == [-1, 2]


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", np.array([[1, 2]], np.float32)),
        ("FP16", np.array([[1, 2]], np.float16)),
        ("INT64", np.array([[1, 2]], np.int64)),
        ("UINT8", np.array([[1, 2]], np.uint8)),
    ],
)
def test_the_official_client_infers(client: Any, datatype: str, array: np.ndarray) -> None:
    answer = client.infer("double", [make_tensor("x", array, datatype)], request_id="7")
    assert (answer.as_numpy("x-out") == array * 2).all()
    assert answer.get_response().id == "7"


def test_the_official_client_sends_texts(client: Any) -> None:
    words = np.array([b"one", b"", "drei"], object)
    answer = client.infer("double", [make_tensor("x", words, "BYTES")])
    assert answer.as_numpy("x-out").tolist() == [b"one", b"", b"drei"]


def request(**tensor: Any) -> Any:
    message_class = get_message_class("ModelInferRequest")(model_name="m")
    message_class.inputs.add(**{"name": "x", "datatype": "FP32", "shape": [2]} | tensor)
    return message_class


def test_contents_that_are_not_raw_are_read() -> None:
    request_ = request()
    request_.inputs[0].contents.fp32_contents.extend([1, 2])
    (tensor,) = read_request(request_, allow_nan=False).inputs
    assert tensor.data.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (get_message_class("ModelInferRequest")(), "empty"),
        (request(), "2 elements"),
        (request(datatype="FP16"), "raw"),
        (request(datatype="FP99"), "FP99"),
        (request(shape=[-1]), "shape"),
    ],
)
def test_a_wrong_request_learns_what_is_wrong(message: Any, words: str) -> None:
    with pytest.raises(ProblemError, match=words) as caught:
        read_request(message, allow_nan=False)
    assert caught.value.status == 400


def test_nan_is_refused_in_both_forms() -> None:
    plain, raw = request(), request()
    plain.inputs[0].contents.fp32_contents.extend([1, float("nan")])
    raw.raw_input_contents.append(np.array([1, np.nan], np.float32).tobytes())
    for message in (plain, raw):
        with pytest.raises(ProblemError, match="NaN"):
            read_request(message, allow_nan=False)


def test_bytes_that_are_no_message_are_an_invalid_argument(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_full_queue_says_when_to_retry(address: str) -> None:
    request = get_message_class("ModelInferRequest")(model_name="busy")
    request.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1)
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE}/ModelInfer")(request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ("grpc-retry-pushback-ms", "2000") in caught.value.trailing_metadata()


@pytest.mark.parametrize("name", ["", "double", SERVICE])
def test_the_health_service_says_that_it_serves(address: str, name: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
