"""A real instance before the official gRPC client of the Open Inference Protocol."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from scanflow.instance_messages import Limits
from scanflow.load.load_process import LoadGenerator, LoadPlan
from scanflow.transport.tensors import INFER_METHOD, encode_grpc_request
from tests.serving import Instance, reserve_port
from tests.waiting import patient

CODE = """
import threading

class Model:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]

    def predict(self, X, names=None):
        match X.flat[0]:
            case -1:
                raise ValueError("the first number is -1")
            case -2:
                threading.Event().wait(2)
        return X * 2
"""


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    limits = Limits(max_request_bytes=1024 * 1024)
    with (
        reserve_port() as port,
        Instance(tmp_path_factory.mktemp("grpc"), CODE, grpc_port=port, limits=limits) as instance,
    ):
        yield instance


@pytest.fixture
def client(instance: Instance) -> Iterator[Any]:
    client = triton.InferenceServerClient(f"127.0.0.1:{instance.grpc_port}")
    yield client
    client.close()


def make_tensor(array: np.ndarray) -> Any:
    tensor = triton.InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def first(array: np.ndarray, client: Any, **more: Any) -> np.ndarray:
    answer = client.infer("w", [make_tensor(array)], **more)
    values: np.ndarray = answer.as_numpy(answer.get_response().outputs[0].name)
    return values


def test_the_official_client_finds_the_server_and_its_model(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("w")
    assert client.get_model_metadata("w").name == "w"


def test_the_official_client_infers(client: Any) -> None:
    array = np.array([[1, 2], [3, 4]], np.float32)
    assert (first(array, client) == array * 2).all()


@pytest.mark.parametrize(("first_number", "statuses"), [(1, {200: 20}), (-1, {500: 20})])
def test_a_load_over_grpc_is_served(instance: Instance, first_number: int, statuses: dict[int, int]) -> None:
    message = encode_grpc_request("w", {"x": np.array([[first_number, 2]], np.float32)})
    plan = LoadPlan(
        url=f"grpc://127.0.0.1:{instance.grpc_port}{INFER_METHOD}",
        bodies=(base64.b64encode(message).decode(),),
        connections=2,
        requests=20,
        timeout_s=patient(60),
    )
    with LoadGenerator(plan, start_s=patient(120)) as load:
        result = load.read_result()
    assert result.statuses == statuses, result.reasons


@pytest.mark.parametrize(
    ("array", "model", "timeout_s", "status"),
    [
        (np.zeros((1, 3), np.float32), "w", None, "INVALID_ARGUMENT"),
        (np.zeros((1, 2), np.float32), "v", None, "NOT_FOUND"),
        (np.full((1, 2), -1, np.float32), "w", None, "INTERNAL"),
        (np.full((1, 2), -2, np.float32), "w", 0.2, "DEADLINE_EXCEEDED"),
        (np.zeros((200_000, 2), np.float32), "w", None, "RESOURCE_EXHAUSTED"),
    ],
)
def test_the_official_client_learns_what_is_wrong(
    client: Any, array: np.ndarray, model: str, timeout_s: float | None, status: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [make_tensor(array)], client_timeout=timeout_s)
    assert status in str(caught.value.status())
    assert (first(np.ones((1, 2), np.float32), client) == 2).all()


def test_a_drained_instance_says_goodbye_to_its_callers(tmp_path: Path) -> None:
    with reserve_port() as port, Instance(tmp_path, CODE, name="two", grpc_port=port) as second:
        client = triton.InferenceServerClient(f"127.0.0.1:{port}")
        with Instance(tmp_path, CODE, grpc_port=port) as instance:
            assert (first(np.ones((1, 2), np.float32), client) == 2).all()
            instance.process.send_signal(signal.SIGTERM)
            assert instance.process.wait(patient(60)) == 0
        # Both listened on the one port; whoever was at the first finds the second by itself.
        for _ in range(5):
            assert (first(np.ones((1, 2), np.float32), client) == 2).all()
        client.close()
        assert second.process.poll() is None


def measure_memory(pid: int) -> int:
    """Return the KiB of a process and its children, pages that are shared counted in proportion."""
    whole = psutil.Process(pid)
    texts = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in (whole, *whole.children())]
    return sum(int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) for text in texts)


@pytest.mark.slow
def test_an_idle_instance_with_grpc_is_not_much_larger_than_what_it_imports(instance: Instance) -> None:
    code = "import grpc, numpy; print(flush=True); input()"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as imports:
        assert imports.stdin is not None
        assert imports.stdout is not None
        imports.stdout.readline()
        reference = measure_memory(imports.pid)
        imports.stdin.write("\n")
    assert measure_memory(instance.process.pid) < 3 * reference
