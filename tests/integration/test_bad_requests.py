"""What a caller gets who sends something wrong, and that nobody else notices: against a deployed service."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from scanflow.backends.service_records import ServiceRecord
from scanflow_client.client import Client
from tests.http_requests import HTTP, http_client
from tests.waiting import patient, wait_until

pytestmark = pytest.mark.slow

APP = '''
import ctypes, os, threading
import numpy as np
import scanflow as sf


class Doubler:
    """Doubles its input; the first number says how to misbehave."""

    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]

    def predict(self, X, names=None):
        match int(X.flat[0]):
            case -1:
                raise ValueError("the first number is -1")
            case -2:
                threading.Event().wait()
            case -3:
                os._exit(3)
            case -4:
                ctypes.string_at(0)  # as a faulty extension does; a signal that one sends takes effect some time later
            case -5:
                raise SystemExit(5)
            case -6:
                return self.predict(X)
            case -7:
                return np.ones(10**15)
            case -8:
                return object()
        return X * 2


serve = sf.Workflow(
    name="doubler",
    type="online",
    nodes=[sf.Service(name="double", implementation="app.py:Doubler", instances=2)],
    serving=sf.Serving(deadline=3, max_request="1Mi", queue=16),
)
app = sf.Application(name="bad", team="tests", workflows=[serve])
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def deployer(folder: Path) -> Client:
    return Client(home=folder / "home", progress=False)


@pytest.fixture(scope="module")
def service(folder: Path, deployer: Client) -> Iterator[ServiceRecord]:
    (folder / "app.py").write_text(APP)
    from scanflow.application_loading import load_application

    app, _, _ = load_application(str(folder / "app.py"))
    record = deployer.deploy(app)
    try:
        yield record
    finally:
        deployer.delete(record.name)


def tensor(*rows: list[float], **changes: object) -> dict[str, object]:
    described = {
        "name": "x",
        "datatype": "FP32",
        "shape": [len(rows), 2],
        "data": [number for row in rows for number in row],
    }
    return {"inputs": [described | changes]}


def infer(service: ServiceRecord, body: object, **options: object) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HTTP.post(f"{service.url}/v2/models/doubler/infer", content=content, timeout=patient(60), **options)  # type: ignore[arg-type]


def assert_problem(answer: httpx2.Response, status: int) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, object] = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


def assert_well(service: ServiceRecord) -> None:
    for _ in range(20):
        answer = infer(service, tensor([1, 2]))
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == [2, 4]


WRONG: list[tuple[object, str]] = [
    (b"", "empty"),
    (b'{"inputs": [{"name": "x", "shape": [1', ""),
    (b"[1, 2, 3]", ""),
    (b"\xff\xfe\x00", ""),
    (tensor([1, 2], shape=[1, 3]), "3"),
    (tensor([1, 2], shape=[-1, 2]), ""),
    (tensor([1, 2], shape=[2**62, 2**62]), ""),
    (tensor([1, 2], datatype="FP128"), "FP128"),
    (tensor([1, 2], data=["one", "two"]), ""),
    (tensor([1, 2], datatype="UINT8", data=[1, 300]), "300"),
    (tensor([1, 2], name="y"), "x"),
    (tensor([1, 2], shape=[1, 1, 2]), "shape"),
    (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, NaN]}]}', ""),
    (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 1e999]}]}', ""),
    ({"inputs": []}, ""),
    ({}, "inputs"),
]


def test_a_wrong_body_is_answered_with_what_is_wrong_with_it(service: ServiceRecord) -> None:
    for body, words in WRONG:
        answer = infer(service, body)
        assert answer.status_code in {400, 422}, body
        assert words in str(assert_problem(answer, answer.status_code)["detail"])
    binary = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [binary]}).encode()
    body = head + struct.pack("<2f", 1.0, float("nan"))
    answer = infer(service, body, headers={"inference-header-content-length": str(len(head))})
    assert answer.status_code in {400, 422}
    assert "NaN" in str(assert_problem(answer, answer.status_code)["detail"])
    assert_problem(infer(service, b" " * (2 << 20)), 413)  # refused before it is read
    assert_well(service)


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (-1, 500, "the first number is -1"),
        (-2, 504, "3"),
        (-5, 500, "SystemExit"),
        (-6, 500, "RecursionError"),
        (-7, 500, "MemoryError"),
        (-8, 500, "object"),
    ],
)
def test_a_component_that_misbehaves_answers_for_itself_alone(
    service: ServiceRecord, command: int, status: int, words: str
) -> None:
    answer = infer(service, tensor([command, 0]))
    assert words in str(assert_problem(answer, status)["detail"])
    assert_well(service)


@pytest.mark.parametrize("command", [-3, -4])
def test_a_component_that_kills_its_process_fails_what_that_had_read_only(
    deployer: Client, service: ServiceRecord, command: int
) -> None:
    wait_until(lambda: deployer.service(service.name).state == "ready", "what an earlier test killed is there again")
    stop, under_way = threading.Event(), threading.Barrier(5, timeout=patient(120))

    def neighbour() -> list[int]:
        """Return the statuses that came; 0: the connection was closed without a response."""
        seen: list[int] = []
        with http_client(timeout=patient(60)) as client:
            while not stop.is_set():
                if len(seen) == 1:
                    under_way.wait()
                try:
                    response = client.post(f"{service.url}/v2/models/doubler/infer", json=tensor([1, 2]))
                    seen.append(response.status_code)
                except (httpx2.RemoteProtocolError, httpx2.ReadError):
                    seen.append(0)
        return seen

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(neighbour) for _ in range(4)]
        try:
            under_way.wait()
            with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
                infer(service, tensor([command, 0]))
            wait_until(lambda: infer(service, tensor([1, 2])).status_code == 200, "the other instance answers on")
        finally:
            stop.set()
        for other in others:
            seen = other.result(timeout=patient(120))
            assert set(seen) <= {0, 200}
            assert seen.count(0) <= 1, "one instance died, and each caller has one request at a time"
    assert_well(service)


def test_stuck_components_do_not_stop_the_service_and_a_full_queue_says_when_to_come_again(
    service: ServiceRecord,
) -> None:
    with ThreadPoolExecutor(80) as pool:
        answers = list(pool.map(lambda _: infer(service, tensor([-2, 0])), range(80)))
    refused = [answer for answer in answers if answer.status_code in {429, 503}]
    assert refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert {answer.status_code for answer in answers} <= {429, 503, 504}
    wait_until(lambda: infer(service, tensor([1, 2])).status_code == 200, "the service answers again")
    assert_well(service)


def test_a_caller_that_goes_away_is_no_matter(service: ServiceRecord) -> None:
    place = urlsplit(service.url)
    body = json.dumps(tensor([1, 2])).encode()
    head = f"POST /v2/models/doubler/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for cut in (10, len(head), len(head) + 5, len(head) + len(body)):
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=patient(60)) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.sendall((head + body)[:cut])
    assert_well(service)
