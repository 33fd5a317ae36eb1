"""What the demo says of its service."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import numpy as np
import pytest

from scanflow.backends.records import RunRecord
from scanflow.backends.service_records import InstanceRecord, ServiceRecord, Shape
from scanflow.deployer import Deployer
from scanflow.names import RunName
from scanflow.transport.tensors import decode_answer, encode_request
from scanflow_client.serving_demo import PICTURES, Served, question_all, served_lines


def record(url: str = "http://127.0.0.1:9") -> ServiceRecord:
    return ServiceRecord(
        name="serve",
        app="mnist",
        team="data",
        state="ready",
        url=url,
        folder="/",
        generation=1,
        shape=Shape(instances=2, cores=1, affinity="cpu"),
        instances=tuple(InstanceRecord(instance=str(one), state="ready", cpus=(one - 1,)) for one in (1, 2)),
    )


def served(**fields: Any) -> Served:
    known: dict[str, Any] = {
        "record": record(),
        "sent": 1000,
        "different": 1000,
        "right": 964,
        "latencies_s": tuple(number / 1000 for number in range(1, 101)),
        "by_instance": {"1": 498, "2": 502},
    }
    return Served(**{**known, **fields})


def test_it_says_accuracy_latency_and_the_cores_that_were_granted() -> None:
    assert served_lines(served()) == [
        "",
        "  served     2 instances × 1 core, cpu; read back: instance 1 on core 0, instance 2 on core 1",
        "  accuracy   0.9640 on 1,000 pictures, one a request",
        "  latency    p50 51.0 ms, p99 100.0 ms, with 4 callers; answered by instance 1: 498, 2: 502",
    ]


def test_it_says_when_pictures_were_sent_again() -> None:
    assert "360 were held out, so they were sent again" in served_lines(served(different=360))[2]


def test_programs_get_the_same() -> None:
    told = served().as_json()
    assert (told["accuracy"], told["p50_s"], told["p99_s"]) == (0.964, 0.051, 0.1)


class Reader(BaseHTTPRequestHandler):
    """Reads a digit off a picture whose every pixel is that digit; a 7 it takes for a 1."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        size = int(self.headers["inference-header-content-length"])
        picture = decode_answer(body[:size].replace(b'"inputs"', b'"outputs"') + body[size:], str(size + 1))["input"]
        digit = int(picture[0, 0, 0])
        scores = np.eye(10)[1 if digit == 7 else digit][None]
        answer, _ = encode_request({"y": scores}, binary=False)
        answer = answer.replace(b'"inputs"', b'"outputs"')
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.send_header("x-scanflow-instance", "1")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class OnlyOne:
    def __init__(self, url: str) -> None:
        self.record = record(url)

    def service(self, name: str) -> ServiceRecord:
        assert name == "serve"
        return self.record


@pytest.mark.parametrize("kept", [20, 1500])
def test_a_thousand_pictures_are_sent_one_a_request_and_counted(tmp_path: Path, kept: int) -> None:
    labels = np.arange(kept) % 10
    folder = tmp_path / "outputs" / "load-data"
    folder.mkdir(parents=True)
    np.save(folder / "x_test.npy", np.ones((kept, 28, 28), dtype=np.uint8) * labels[:, None, None].astype(np.uint8))
    np.save(folder / "y_test.npy", labels)
    run = RunRecord(
        name=RunName("calm-otter-417"), app="mnist", team="data", workflow="mnist-wf", state="succeeded",
        created=0.0, folder=str(tmp_path),
    )  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), Reader)
    thread = Thread(target=server.serve_forever)
    thread.start()
    counted: list[int] = []
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        found = question_all(cast(Deployer, OnlyOne(url)), run, advance=counted.append)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert (found.sent, sum(counted), found.different) == (PICTURES, PICTURES, min(kept, PICTURES))
    assert found.right == 900
    assert found.by_instance == {"1": PICTURES}
    assert list(found.latencies_s) == sorted(found.latencies_s)
