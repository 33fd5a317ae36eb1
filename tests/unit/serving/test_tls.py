"""An instance that serves over TLS, HTTP and gRPC, with real certificates: OpenSSL and BoringSSL do the handshakes."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from scanflow.http.tls_files import TlsFiles
from scanflow.pki import CertificateAuthority, IssuedCertificate, prepare_tls
from scanflow.settings import Settings
from tests.serving import Instance, reserve_port
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes

CODE = """
class Model:
    def predict(self, X):
        return X * 2
"""
INFER = "/v2/models/model/infer"
BODY = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [21]}]}


class Served:
    """An instance of a home with TLS, which lets ada and bob in; ``open`` has no list of clients."""

    def __init__(self, home: Path, instance: Instance, files: TlsFiles) -> None:
        self.authority, self.instance, self.files = CertificateAuthority(home), instance, files
        self.url = f"https://127.0.0.1:{instance.port}"

    def build_context(self, client: IssuedCertificate | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.file)
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    def connect(self, client: IssuedCertificate | None) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, verify=self.build_context(client), timeout=PATIENCE_S)

    def infer(self, client: IssuedCertificate | None) -> httpx2.Response:
        with self.connect(client) as connection:
            return connection.post(INFER, json=BODY)

    def connect_grpc(self, client: IssuedCertificate | None) -> triton.InferenceServerClient:
        own: Any = (
            {} if client is None else {"private_key": str(client.key), "certificate_chain": str(client.certificate)}
        )
        place = f"127.0.0.1:{self.instance.grpc_port}"
        return triton.InferenceServerClient(place, ssl=True, root_certificates=str(self.authority.file), **own)


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    files = prepare_tls(Settings(home=home, tls=True))
    assert files is not None
    with (
        reserve_port() as port,
        Instance(home / "work", CODE, tls=files, clients=("CN=ada", "CN=bob"), grpc_port=port) as instance,
    ):
        yield Served(home, instance, files)


@pytest.fixture(scope="module")
def ada(tls_server: Served) -> IssuedCertificate:
    return tls_server.authority.issue("ada")


@pytest.fixture(scope="module")
def eve(tls_server: Served) -> IssuedCertificate:
    return tls_server.authority.issue("eve")


def infer_grpc(connection: triton.InferenceServerClient) -> float:
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([21], np.float32))
    answer: Any = connection.infer("model", [tensor], client_timeout=PATIENCE_S)
    return float(answer.as_numpy(answer.get_response().outputs[0].name)[0])


def test_a_named_client_gets_an_answer(tls_server: Served, ada: IssuedCertificate) -> None:
    answer = tls_server.infer(ada)
    assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [42.0])
    with tls_server.connect_grpc(ada) as connection:
        assert infer_grpc(connection) == 42.0


@pytest.mark.parametrize(
    ("name", "words"), [(None, "this connection has shown none"), ("eve", "CN=eve is not one of them")]
)
def test_others_get_a_problem_that_says_why(
    tls_server: Served, eve: IssuedCertificate, name: str | None, words: str
) -> None:
    client = None if name is None else eve
    answer = tls_server.infer(client)
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    assert words in answer.json()["detail"]
    with tls_server.connect(client) as connection:
        assert [connection.get(path).status_code for path in ("/metrics", "/v2", "/healthz", "/v2/health/ready")] == [
            403,
            403,
            200,
            200,
        ]


def test_over_grpc_they_are_refused_with_their_name_and_without_a_certificate_by_the_handshake(
    tls_server: Served, eve: IssuedCertificate
) -> None:
    with tls_server.connect_grpc(eve) as connection:
        with pytest.raises(InferenceServerException, match=r"PERMISSION_DENIED.*CN=eve is not one of them"):
            infer_grpc(connection)
        assert connection.is_server_live()
    with tls_server.connect_grpc(None) as connection, pytest.raises(InferenceServerException, match="UNAVAILABLE"):
        infer_grpc(connection)


def test_certificates_of_another_authority_and_expired_ones_end_in_the_handshake(
    tls_server: Served, tmp_path: Path
) -> None:
    other = CertificateAuthority(tmp_path)
    other.create("other")
    past = CertificateAuthority(
        tls_server.authority.file.parent.parent, clock=lambda: datetime.now(UTC) - timedelta(days=500)
    )
    for client, words in ((other.issue("ada"), "self-signed certificate"), (past.issue("past"), "has expired")):
        with pytest.raises(httpx2.TransportError):
            tls_server.infer(client)
        # The client learns no more, as the loop's TLS sends no alert.
        wait_until(partial(_is_logged, tls_server, words), "the log says why")


def test_a_revoked_certificate_is_refused_on_open_and_new_connections(tls_server: Served) -> None:
    bob = tls_server.authority.issue("bob")
    with tls_server.connect(bob) as connection, tls_server.connect_grpc(bob) as over_grpc:
        assert connection.post(INFER, json=BODY).status_code == 200
        assert infer_grpc(over_grpc) == 42.0
        tls_server.authority.revoke("bob")
        wait_until(lambda: connection.post(INFER, json=BODY).status_code == 403, "the open connection is refused")
        wait_until(lambda: _is_refused(over_grpc), "the open gRPC connection is refused")
    assert tls_server.infer(bob).json()["detail"] == (
        "The certificate CN=bob is revoked. Get another: scanflow pki issue NAME"
    )
    with tls_server.connect_grpc(bob) as again, pytest.raises(InferenceServerException, match="CN=bob is revoked"):
        infer_grpc(again)


def _is_refused(connection: triton.InferenceServerClient) -> bool:
    try:
        infer_grpc(connection)
    except InferenceServerException as error:
        return "PERMISSION_DENIED" in str(error)
    return False


def test_without_a_readable_list_nobody_is_let_in(tls_server: Served, ada: IssuedCertificate) -> None:
    file = Path(tls_server.files.revoked)
    text = file.read_bytes()
    with tls_server.connect(ada) as connection:
        file.write_bytes(b"nonsense")
        wait_until(lambda: connection.post(INFER, json=BODY).status_code == 503, "the list is looked at")
        assert "list of revoked ones cannot be used" in connection.post(INFER, json=BODY).json()["detail"]
        file.write_bytes(text)
        wait_until(lambda: connection.post(INFER, json=BODY).status_code == 200, "the list is looked at")


def test_a_renewed_certificate_is_shown_to_new_connections(tls_server: Served, ada: IssuedCertificate) -> None:
    def read_serial() -> str:
        with (
            socket.create_connection(("127.0.0.1", tls_server.instance.port), timeout=PATIENCE_S) as sock,
            tls_server.build_context(None).wrap_socket(sock, server_hostname="127.0.0.1") as connection,
        ):
            return str(connection.getpeercert()["serialNumber"])  # type: ignore[index]

    before = read_serial()
    with tls_server.connect(ada) as connection:
        connection.post(INFER, json=BODY)
        tls_server.authority.revoke("server")
        tls_server.authority.issue("server", ["localhost", "127.0.0.1"])
        wait_until(lambda: read_serial() != before, "the new certificate is shown")
        assert connection.post(INFER, json=BODY).status_code == 200
    with tls_server.connect_grpc(ada) as over_grpc:
        assert infer_grpc(over_grpc) == 42.0


def test_plain_http_is_closed_at_once(tls_server: Served) -> None:
    with socket.create_connection(("127.0.0.1", tls_server.instance.port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" not in sock.recv(1000)
        assert sock.recv(1000) == b""


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_with_the_homes_files(tls_server: Served, ada: IssuedCertificate) -> None:
    options = ["--cacert", str(tls_server.authority.file), "--cert", str(ada.certificate), "--key", str(ada.key)]
    data = ["-H", "content-type: application/json", "-d", json.dumps(BODY)]
    command = ["curl", "-s", *options, *data, f"{tls_server.url}{INFER}"]
    answer = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    assert json.loads(answer.stdout)["outputs"][0]["data"] == [42.0]


def test_a_lent_socket_is_served_by_its_owners_tls_and_clients(
    tls_server: Served, ada: IssuedCertificate, eve: IssuedCertificate, tmp_path: Path
) -> None:
    with Instance(tmp_path, CODE) as plain, socket.create_server(("127.0.0.1", 0)) as lent:
        body: dict[str, Any] = {"tls": asdict(tls_server.files), "clients": ["CN=ada"]}
        plain.ask("listen", body, fds=[lent.fileno()], key="primary")
        url = f"https://127.0.0.1:{lent.getsockname()[1]}/v2/models/primary/infer"
        statuses = [
            httpx2.post(url, json=BODY, verify=tls_server.build_context(client), timeout=PATIENCE_S).status_code
            for client in (ada, eve, None)
        ]
        assert statuses == [200, 403, 403]
        assert httpx2.post(f"{plain.url}{INFER}", json=BODY, timeout=PATIENCE_S).status_code == 200


def test_grpc_without_tls_gets_no_answer(tls_server: Served) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{tls_server.instance.grpc_port}") as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=PATIENCE_S)


def _is_logged(served: Served, words: str) -> bool:
    return words in served.instance.log()
