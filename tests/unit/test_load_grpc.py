"""Load over gRPC, before a server that answers as one is told to: what is sent, and what is called a failure."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from scanflow.backends.service_records import ServiceRecord, Shape
from scanflow.errors import InvalidError, UnsupportedError, UsageError
from scanflow.load.arrivals import build_constant_rate
from scanflow.load.grpc_connection import describe_failure
from scanflow.load.load_process import LoadError, LoadGenerator, LoadPlan
from scanflow.load.mlperf import MlperfSettings, Scenario
from scanflow.protos import get_message_class
from scanflow.transport.tensors import INFER_METHOD, encode_grpc_request
from scanflow_client.load_report import LoadSpec, format_load
from scanflow_client.predict_io import GrpcRequest, PredictRequest, to_call
from scanflow_client.service_load import load_service
from tests.load import wait_for
from tests.waiting import PATIENCE_S, patient

pytestmark = pytest.mark.processes

Answer = Callable[[bytes, Any], bytes]
ROWS = np.array([[1.0, 2.0]])
REQUEST = encode_grpc_request("digits", {"x": ROWS})


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """Serve ``ModelInfer`` by a function of the serialized message and gRPC's context; yield its ``host:port``."""
    service, _, method = INFER_METHOD.removeprefix("/").partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    with ThreadPoolExecutor(4) as pool:
        serving = grpc.server(pool)
        serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = serving.add_insecure_port("127.0.0.1:0")
        serving.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            serving.stop(0).wait()


def make_load(
    address: str, *, rate: float | None = None, requests: int | None = None, timeout_s: float = patient(60), **more: Any
) -> LoadGenerator:
    plan = LoadPlan(
        url=f"grpc://{address}{INFER_METHOD}",
        bodies=(base64.b64encode(REQUEST).decode(),),
        connections=2,
        requests=requests,
        timeout_s=timeout_s,
        **more,
    )
    return LoadGenerator(
        plan, None if rate is None else build_constant_rate(rate, 1).generate_arrivals(), start_s=patient(120)
    )


def record(grpc_address: str | None) -> ServiceRecord:
    return ServiceRecord(
        name="digits",
        url="http://127.0.0.1:1",
        grpc=grpc_address,
        app="a",
        team="t",
        state="ready",
        generation=1,
        shape=Shape(instances=1),
    )


def test_a_message_has_the_model_its_tensors_and_their_raw_contents() -> None:
    read = get_message_class("ModelInferRequest").FromString(
        encode_grpc_request("m", {"x": ROWS, "t": np.array(["ab"])})
    )
    assert read.model_name == "m"
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in read.inputs] == [
        ("x", "FP64", [1, 2]),
        ("t", "BYTES", [1]),
    ]
    assert list(read.raw_input_contents) == [ROWS.tobytes(), b"\2\0\0\0ab"]


def test_each_call_of_a_closed_loop_is_counted_and_carries_what_the_plan_says() -> None:
    seen: set[tuple[bytes, object]] = set()

    def answer(content: bytes, context: Any) -> bytes:
        seen.add((content, dict(context.invocation_metadata()).get("authorization")))
        return b"right"

    with (
        server(answer) as address,
        make_load(address, requests=50, expect="right", headers={"Authorization": "Bearer secret"}) as load,
    ):
        result = load.read_result()
    assert (result.requests, result.failed, result.statuses) == (50, 0, {200: 50})
    assert seen == {(REQUEST, "Bearer secret")}


def test_calls_of_an_open_loop_are_due_whether_or_not_others_are_answered() -> None:
    held = threading.Event()

    def answer(content: bytes, context: Any) -> bytes:
        held.wait(0.4)
        held.set()
        return b""

    with server(answer) as address, make_load(address, rate=100) as load:
        result = load.read_result()
    assert (result.requests, result.failed) == (100, 0)
    assert sum(took > 0.1 for took in result.took) > 20  # two of them were held; the others waited behind these


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "400 INVALID_ARGUMENT: so"),
        (grpc.StatusCode.UNAVAILABLE, "503 UNAVAILABLE: so"),
        (grpc.StatusCode.DATA_LOSS, "500 DATA_LOSS: so"),
        (None, "another answer: wrong"),
    ],
)
def test_a_failed_call_is_counted_with_its_reason(code: grpc.StatusCode | None, reason: str) -> None:
    def answer(content: bytes, context: Any) -> bytes:
        if code is not None:
            context.abort(code, "so")
        return b"wrong"

    with server(answer) as address, make_load(address, requests=10, expect="right") as load:
        result = load.read_result()
    assert (result.requests, result.failed, dict(result.reasons)) == (10, 10, {reason: 10})


def test_a_server_that_ends_leaves_no_status() -> None:
    with server(lambda *_: b"") as address:
        load = make_load(address, duration_s=600.0)
        load.__enter__()
        wait_for(load, 20, timeout_s=PATIENCE_S)
    try:
        wait_for(load, load.progress[0] + 20, timeout_s=PATIENCE_S)
        load.stop()
        result = load.read_result()
    finally:
        load.__exit__(None, None, None)
    # gRPC's core ends the calls in flight: as cancelled (499), or as UNAVAILABLE, "Cancelling all calls" (503).
    assert set(result.statuses) <= {200, 499, 503, 0}, result.reasons
    assert result.statuses[0] > 1, result.reasons


def test_a_lost_connection_is_none_of_the_servers_answers() -> None:
    assert describe_failure("UNAVAILABLE", "full", connected=True) == (503, "503 UNAVAILABLE: full")
    assert describe_failure("UNAVAILABLE", "reset", connected=False) == (0, "closed without an answer: reset")
    assert describe_failure("UNAVAILABLE", "failed to connect to all", connected=False)[1].startswith("no connection")


def test_a_call_that_is_never_answered_is_a_failure() -> None:
    ended = threading.Event()

    def never(content: bytes, context: Any) -> bytes:
        ended.wait(PATIENCE_S)
        return b""

    with server(never) as address:
        with make_load(address, requests=2, timeout_s=0.3) as load:
            result = load.read_result()
        ended.set()
    assert dict(result.reasons) == {"timeout": 2}


@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream", "server", "offline"])
def test_each_scenario_of_loadgen_goes_over_grpc(scenario: Scenario) -> None:
    pytest.importorskip("mlperf_loadgen")
    settings = MlperfSettings(scenario=scenario, queries=20, target_qps=200.0, samples_per_query=2)
    with server(lambda *_: b"") as address:
        report = load_service(record(address), GrpcRequest(INFER_METHOD, REQUEST), LoadSpec(mlperf=settings, grpc=True))
    assert report.result.requests >= 20
    assert report.result.failed == 0
    assert report.result.mlperf is not None
    assert report.summary()["protocol"] == "gRPC"
    assert "over 16 gRPC connections: none failed." in str(format_load(report, bound_s=None)[0])


@pytest.mark.parametrize(
    ("address", "error", "reason"),
    [(None, UnsupportedError, "leave out --grpc"), ("127.0.0.1:1", LoadError, "gRPC cannot connect to 127.0.0.1:1")],
)
def test_a_load_over_grpc_that_cannot_be_is_refused(address: str | None, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        load_service(record(address), GrpcRequest(INFER_METHOD, REQUEST), LoadSpec(grpc=True))


@pytest.mark.parametrize(
    ("request_", "seldon", "error", "reason"),
    [
        (PredictRequest(raw=b"x"), False, InvalidError, "Give rows"),
        (PredictRequest(message={"inputs": []}), False, InvalidError, "Give rows"),
        (PredictRequest(inputs=[[1]]), True, UsageError, "Leave out one of them"),
    ],
)
def test_what_grpc_does_not_carry_is_refused(
    request_: PredictRequest, seldon: bool, error: type[Exception], reason: str
) -> None:
    nobody: Any = None
    with pytest.raises(error, match=reason):
        to_call(nobody, "digits", request_, node=None, dtype=None, seldon=seldon, grpc=True)
