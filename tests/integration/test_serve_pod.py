"""The program of an instance in a pod, as a process of this machine: nobody supervises it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from scanflow.accelerators.visible import HOLDER_VARIABLE
from scanflow.backends.kubernetes.online.instance_status import parse_instance_status
from scanflow.backends.kubernetes.online.observed_objects import build_instance_record
from scanflow.instance_messages import DesiredInstanceState, InstanceSpec, Limits, ModelFiles, Node, Revision, encode
from tests.serving import hold_port
from tests.waiting import patient, wait_until

MODEL = """
class Model:
    def predict(self, X):
        return X * 2
"""

PREDICT = json.dumps({"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [4.0]}]})


class Pod:
    """The process, its ports, and what it wrote."""

    def __init__(self, folder: Path, node: Node | None = None, **spec: Any) -> None:
        (folder / "model.py").write_text(MODEL, encoding="utf-8")
        nodes = (node or Node(name="model", implementation="model.py:Model", file=str(folder / "model.py")),)
        self._held = [hold_port() for _ in range(3)]
        self.http, self.management, grpc = (holder.getsockname()[1] for holder in self._held)
        fields: dict[str, Any] = {
            "service": "w",
            "app": "a",
            "team": "t",
            "instance": "",
            "folder": str(folder / "tmp"),
            "desired": "",
            "address": "",
            "host": "127.0.0.1",
            "app_dir": str(folder),
            "http_port": self.http,
            "management_port": self.management,
            "grpc_port": grpc,
            "limits": Limits(deadline_s=20.0),
        }
        (folder / "instance.json").write_bytes(encode(InstanceSpec(**{**fields, **spec})))
        (folder / "desired.json").write_bytes(
            encode(DesiredInstanceState(generation=1, revisions=(Revision(id="r1", nodes=nodes),)))
        )
        environment = {**os.environ, "POD_NAME": "w-r1-abc"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        self.log = folder / "log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "scanflow_serving.pod", str(folder)]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def status(self, path: str, *, port: int | None = None, host: str = "w-r1.shop.svc") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.http, timeout=patient(60))
        try:
            connection.request("GET", path, headers={"Host": host})
            return connection.getresponse().status
        except ConnectionError:
            return 0
        finally:
            connection.close()

    def document(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.management, timeout=patient(60))
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        return json.loads(body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(patient(60))
        for holder in self._held:
            holder.close()

    def until_ready(self) -> None:
        wait_until(lambda: self.status("/v2/health/ready") == 200, "it is ready")


def predict(connection: http.client.HTTPConnection, token: str = "") -> http.client.HTTPResponse:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    connection.request("POST", "/v2/models/w/infer", PREDICT, headers)
    response = connection.getresponse()
    response.read()
    return response


def test_it_answers_any_host_and_ends_without_a_lost_request(tmp_path: Path) -> None:
    with Pod(tmp_path, linger_s=6.0) as pod:  # enough for the four requests that come while it ends
        pod.until_ready()
        reused, fresh = (http.client.HTTPConnection("127.0.0.1", pod.http, timeout=patient(60)) for _ in range(2))
        first = predict(reused)
        assert (first.status, first.getheader("connection")) == (200, None)
        assert first.getheader("x-scanflow-instance") == "w-r1-abc"
        state = pod.document("/state")
        assert state["cpus"] == sorted(os.sched_getaffinity(0))
        assert pod.status("/metrics", port=pod.management) == 200
        assert pod.status("/v2/models/w", port=pod.management) == 404
        pod.process.send_signal(signal.SIGTERM)
        wait_until(lambda: pod.status("/v2/health/ready") == 503, "it says that it is not ready")
        for connection in (reused, fresh):
            last = predict(connection)
            assert (last.status, last.getheader("connection")) == (200, "close")
            connection.close()
        assert pod.process.wait(patient(60)) == 0


def test_it_says_which_gpus_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOLDER_VARIABLE, "pod")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1")
    with Pod(tmp_path) as pod:
        pod.until_ready()
        status = parse_instance_status(pod.document("/state"))
    pod_document = {"metadata": {"name": "w-r1-abc"}, "spec": {"containers": [{"name": "instance"}]}}
    record = build_instance_record(pod_document, status, "w")
    assert [(use.uuid, use.sharing) for use in record.devices] == [("GPU-1", "exclusive")]


def test_its_data_plane_asks_for_the_token_and_its_metrics_do_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n", encoding="utf-8")
    with Pod(tmp_path, auth=f"file:{tmp_path / 'token'}") as pod:
        pod.until_ready()
        connection = http.client.HTTPConnection("127.0.0.1", pod.http, timeout=patient(60))
        assert predict(connection).status == 401
        assert predict(connection, "secret").status == 200
        connection.close()
        assert pod.status("/metrics") == 401
        assert pod.status("/metrics", port=pod.management) == 200


def test_a_registered_model_without_a_tracker_is_named(tmp_path: Path) -> None:
    with Pod(tmp_path, Node(name="cnn", model=ModelFiles(name="cnn", version=3, path=""))) as pod:
        assert pod.process.wait(patient(60)) == 78
    assert "MLFLOW_TRACKING_URI" in pod.log.read_text(encoding="utf-8")
