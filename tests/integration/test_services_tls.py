"""A service of a home with TLS: deployed, called, measured, and swapped under load."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import scanflow as sf
from scanflow.deployer.direct_predictions import connect_service
from scanflow.errors import AccessDeniedError, InvalidError, UsageError
from scanflow.load.load_process import LoadGenerator, LoadPlan
from scanflow.pki import CertificateAuthority
from scanflow.transport.tensors import INFER_METHOD, encode_grpc_request
from scanflow_client.predict_io import GrpcRequest, HttpRequest
from scanflow_client.service_load import build_load_plan
from tests.integration.local_services import Services, processes
from tests.load import wait_for
from tests.waiting import patient, wait_until

CODE = """
class Model:
    def predict(self, X):
        return X
"""
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [0.0, 7.0]}]}).encode()
CLOSED = sf.Serving(clients=["CN=ada"])


@pytest.fixture
def services(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    monkeypatch.setenv("SCANFLOW_HOME", str(home))
    services = Services(home, CODE, tls=True)
    yield services
    services.delete_all()
    wait_until(lambda: not processes(home), "nothing is left")


def show_certificate(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients show ada's."""
    monkeypatch.setenv("SCANFLOW_TLS_CLIENT_CERT", str(CertificateAuthority(home).issue("ada").certificate))


def test_a_service_is_called_by_our_own_clients_over_tls(
    services: Services, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidError, match=r"serving.clients needs TLS.*Turn it on: scanflow up --tls"):
        Services(home, CODE).deploy(serving=CLOSED)
    record = services.deploy(serving=CLOSED)
    assert record.url.startswith("https://127.0.0.1:")
    with connect_service(record) as client, pytest.raises(AccessDeniedError, match="has shown none"):
        client.infer("w", [[0.0, 7.0]])
    show_certificate(home, monkeypatch)
    with connect_service(record) as client:
        assert next(iter(client.infer("w", [[0.0, 7.0]]).outputs.values())).tolist() == [[0.0, 7.0]]
    message = encode_grpc_request("w", {"x": np.array([[0.0, 7.0]])})
    for request in (
        HttpRequest("/v2/models/w/infer", BODY, {"content-type": "application/json"}),
        GrpcRequest(INFER_METHOD, message),
    ):
        plan = replace(build_load_plan(record, request, connections=2), requests=20)
        with LoadGenerator(plan, start_s=patient(120)) as load:
            result = load.read_result(timeout_s=patient(120))
        assert dict(result.statuses) == {200: 20}, result.reasons
    with pytest.raises(UsageError, match=r"is deployed with TLS, and cannot be served without TLS while"):
        Services(home, CODE).deploy()


@pytest.mark.endurance
@pytest.mark.timeout(900)
def test_instances_are_swapped_over_tls_without_a_failed_request(
    services: Services, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = services.deploy(serving=CLOSED.replace(grpc_port=0, connection_age=1), instances=2)
    show_certificate(home, monkeypatch)
    request = HttpRequest("/v2/models/w/infer", BODY, {"content-type": "application/json"})
    plan: LoadPlan = replace(build_load_plan(record, request, connections=8), duration_s=patient(600), expect="7.0")
    assert base64.b64decode(plan.bodies[0]) == BODY
    with LoadGenerator(plan, start_s=patient(120)) as load:
        for number in range(3):
            wait_for(load, load.progress[0] + 300, timeout_s=patient(120))
            (services.folder / "model.py").write_text(CODE + f"# {number}\n")
            services.deploy(serving=CLOSED.replace(grpc_port=0, connection_age=1), instances=2)
        wait_for(load, load.progress[0] + 300, timeout_s=patient(120))
        load.stop()
        result = load.read_result(timeout_s=patient(120))
    assert result.failed == 0, result.reasons
