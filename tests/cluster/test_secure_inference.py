"""A service that answers named clients behind a real Gateway: who is let in, by every way in; calls over instances; a
swap under load; and a revocation."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.online.closed_routes import format_gateway_name
from scanflow.backends.kubernetes.online.traffic import GRPC_PORT, HTTP_PORT
from scanflow.backends.service_change import Deployment
from scanflow.http.client_certificates import FORWARDED
from scanflow.pki import CertificateAuthority
from scanflow.transport.tensors import INFER_METHOD, encode_grpc_request
from tests.cluster.echoes import echoes
from tests.cluster.online import Place
from tests.cluster.repeated import repeat_step
from tests.waiting import patient, wait_until

pytestmark = pytest.mark.cluster

CODE = """
import os, zlib
import numpy as np
class Who:
    blocking = False
    def predict(self, X):
        return np.full(len(X), zlib.crc32(os.environ["POD_NAME"].encode()), dtype=np.float64)
"""
MESSAGE = encode_grpc_request("who", {"x": np.array([[1.0]])})
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [1.0]}]})
REFUSED = "no connection"


class Closed:
    """A service for CN=ada, and what its clients need."""

    def __init__(self, place: Place, home: Path) -> None:
        self.place, self.name, self.authority = place, place.name, CertificateAuthority(home)
        self.other = CertificateAuthority(place.folder / "elsewhere")
        self.other.create("elsewhere")
        service = place.cluster.get("Service", "traefik", "traefik")
        assert service is not None
        self.gateway = service["spec"]["clusterIP"]
        (place.folder / "who.py").write_text(CODE, encoding="utf-8")

    def app(self, comment: str = "", **serving: Any) -> sf.Application:
        (self.place.folder / "who.py").write_text(f"{CODE}# {comment}\n", encoding="utf-8")
        node = sf.Service(name="who", implementation="who.py:Who", instances=3)
        closed = sf.Serving(clients=["CN=ada"]).replace(**serving)
        workflow = sf.Workflow(name=self.name, type="online", nodes=[node], serving=closed)
        return sf.Application(name=self.name, team="tests", app_dir=str(self.place.folder), workflows=[workflow])

    def deploy(self, comment: str = "") -> Any:
        deployment = Deployment(self.app(comment), self.name)
        return self.place.deployer.deploy(deployment, observe=self.place.seen.append)

    def issue(self, name: str, authority: CertificateAuthority | None = None) -> tuple[Path, Path]:
        pair = (authority or self.authority).issue(name)
        return pair.certificate, pair.key

    def secure(self, connection: HTTPConnection, client: tuple[Path, Path] | None, *, host: str) -> None:
        """Connect over TLS, with ``host`` as the name in the handshake."""
        context = ssl.create_default_context(cafile=self.authority.file)
        if client is not None:
            context.load_cert_chain(*client)
        connection.connect()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=host)

    def ask(
        self,
        client: tuple[Path, Path] | None,
        *,
        sni: str,
        host: str | None = None,
        to: tuple[str, int],
        headers: dict[str, str] | None = None,
    ) -> str:
        """Return the status of a request, or ``no connection``."""
        try:
            with closing(HTTPConnection(*to, timeout=patient(20))) as connection:
                self.secure(connection, client, host=sni)
                return send(connection, host or sni, headers or {})
        except (OSError, HTTPException):
            return REFUSED

    def call(self, client: tuple[Path, Path] | None, *, host: str, to: tuple[str, int], header: str = "") -> str:
        """Return the code of a gRPC call."""
        with self.channel(client, host=host, to=to) as channel:
            try:
                metadata = ((FORWARDED, header),) if header else ()
                channel.unary_unary(INFER_METHOD)(MESSAGE, timeout=patient(20), metadata=metadata)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    def channel(self, client: tuple[Path, Path] | None, *, host: str, to: tuple[str, int]) -> grpc.Channel:
        pair = (None, None) if client is None else (client[1].read_bytes(), client[0].read_bytes())
        credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes(), *pair)
        options = (
            ("grpc.ssl_target_name_override", host),
            ("grpc.default_authority", host),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        )
        return grpc.secure_channel(f"{to[0]}:{to[1]}", credentials, options=options)


def send(connection: HTTPConnection, host: str, headers: dict[str, str]) -> str:
    connection.request(
        "POST", "/v2/models/who/infer", BODY, {"Host": host, "Content-Type": "application/json", **headers}
    )
    answer = connection.getresponse()
    answer.read()
    return str(answer.status)


def is_reachable(address: tuple[str, int]) -> bool:
    """Return whether a new connection is made: kube-proxy learns of a Service after its pods are ready, and the packets
    of a connection from before then are never translated, however often they are sent again."""
    try:
        socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


def forge(certificate: Path) -> str:
    """Return a client's certificate, which is no secret, as a gateway passes it on."""
    return "".join(certificate.read_text(encoding="ascii").partition("-----END")[0].splitlines()[1:])


@pytest.fixture
def closed_network(cluster: Cluster, place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch) -> Iterator[Closed]:
    with echoes(cluster, "secure") as here:
        own = place(SCANFLOW_KUBERNETES_GATEWAY=here.gateway)
        yield Closed(own, own.folder / "home")


def test_only_named_clients_are_let_in_by_every_way(closed_network: Closed) -> None:
    record = closed_network.deploy()
    host = record.url.removeprefix("https://")
    assert record.grpc == f"{host}:443"
    ada, eve = closed_network.issue("ada"), closed_network.issue("eve")
    gate, foreign = (closed_network.gateway, 443), closed_network.issue("ada", closed_network.other)
    wait_until(lambda: closed_network.ask(ada, sni=host, to=gate) == "200", "ada is let in over HTTP", patience_s=30)
    wait_until(lambda: closed_network.call(ada, host=host, to=gate) == "OK", "ada is let in over gRPC", patience_s=30)

    forged = forge(ada[0])
    assert closed_network.ask(eve, sni=host, to=gate) == "403"
    assert closed_network.call(eve, host=host, to=gate) == "PERMISSION_DENIED"
    assert closed_network.ask(eve, sni=host, to=gate, headers={FORWARDED: forged}) == "403"
    assert closed_network.call(eve, host=host, to=gate, header=forged) == "PERMISSION_DENIED"
    for nobody in (None, foreign):
        assert closed_network.ask(nobody, sni=host, to=gate, headers={FORWARDED: forged}) == REFUSED
        assert closed_network.call(nobody, host=host, to=gate, header=forged) == "UNAVAILABLE"
    with closing(HTTPConnection(closed_network.gateway, 80, timeout=patient(20))) as plain:
        assert send(plain, host, {FORWARDED: forged}) == "404"

    pods = [pod["status"]["podIP"] for pod in closed_network.place.pods().values()]
    service = closed_network.place.cluster.get("Service", closed_network.name, closed_network.place.namespace)
    assert service is not None
    imposter = closed_network.issue(
        format_gateway_name(closed_network.place.namespace, closed_network.name), closed_network.other
    )
    for address in (pods[0], service["spec"]["clusterIP"]):
        web, rpc = (address, HTTP_PORT), (address, GRPC_PORT)
        wait_until(partial(is_reachable, web), f"{address} is reachable", patience_s=30)
        assert closed_network.ask(ada, sni=host, to=web) == "200", "in the cluster a client may call instances itself"
        for client in (None, eve):
            assert closed_network.ask(client, sni=host, to=web, headers={FORWARDED: forged}) == "403"
        assert closed_network.call(eve, host=host, to=rpc, header=forged) == "PERMISSION_DENIED"
        assert closed_network.call(None, host=host, to=rpc, header=forged) == "UNAVAILABLE"
        with closing(HTTPConnection(*web, timeout=patient(20))) as plain, pytest.raises((OSError, HTTPException)):
            send(plain, host, {FORWARDED: forged})
        assert closed_network.ask(imposter, sni=host, to=web, headers={FORWARDED: forged}) == REFUSED


def test_the_host_of_a_request_is_that_of_its_handshake(closed_network: Closed, cluster: Cluster) -> None:
    host = closed_network.deploy().url.removeprefix("https://")
    ada, gate = closed_network.issue("ada"), (closed_network.gateway, 443)
    wait_until(lambda: closed_network.ask(ada, sni=host, to=gate) == "200", "ada is let in", patience_s=30)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    answers = []
    for name in ("open.test", None):
        with closing(HTTPConnection(*gate, timeout=patient(20))) as fronting:
            fronting.connect()
            fronting.sock = context.wrap_socket(fronting.sock, server_hostname=name)
            answers.append(send(fronting, host, {FORWARDED: forge(ada[0])}))
    assert set(answers) <= {"403", "404", "421"}, answers
    print(answers)


def test_calls_are_balanced_instances_swapped_and_a_client_revoked(closed_network: Closed) -> None:
    host = closed_network.deploy().url.removeprefix("https://")
    ada, gate = closed_network.issue("ada"), (closed_network.gateway, 443)
    wait_until(lambda: closed_network.call(ada, host=host, to=gate) == "OK", "ada is let in", patience_s=30)
    with closed_network.channel(ada, host=host, to=gate) as channel:
        infer = channel.unary_unary(INFER_METHOD)
        who = Counter(infer(MESSAGE, timeout=patient(20)) for _ in range(300))
    assert len(who) == 3, who
    assert all(90 <= calls <= 110 for calls in who.values()), who.values()

    failed: list[str] = []
    asked = 0
    with (
        closing(HTTPConnection(*gate, timeout=patient(20))) as connection,
        closed_network.channel(ada, host=host, to=gate) as channel,
    ):
        closed_network.secure(connection, ada, host=host)

        def ask() -> None:
            nonlocal asked
            try:
                channel.unary_unary(INFER_METHOD)(MESSAGE, timeout=patient(20))
                if (status := send(connection, host, {})) != "200":
                    failed.append(status)
            except Exception as error:  # noqa: BLE001 - whatever it is, it counts
                failed.append(repr(error))
            asked += 1

        with repeat_step(ask, 0.02):
            closed_network.deploy("changed")
        assert asked > 50
        assert failed == []

        with closed_network.place.run_controller():
            wait_until(lambda: send(connection, host, {}) == "200", "it answers", patience_s=10)
            time_of_revocation = time.monotonic()
            closed_network.authority.revoke("ada")
            wait_until(lambda: send(connection, host, {}) == "403", "the revocation holds", patience_s=120)
            seconds = time.monotonic() - time_of_revocation
            wait_until(
                lambda: closed_network.call(ada, host=host, to=gate) == "PERMISSION_DENIED",
                "over gRPC, too",
                patience_s=60,
            )
    print(f"{asked} calls of each, {seconds:.1f} s until a revocation held")
