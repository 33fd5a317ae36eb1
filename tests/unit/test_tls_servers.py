"""TLS of other programs than a service's instances: bounded handshakes, renewal, and answers without an instance."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state.desired import read_desired, update_desired
from scanflow.backends.local.services.supervisor.listener import UnavailableResponder, open_listening_socket
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.http import tls, tls_server
from scanflow.http.connections import LimitedConnection
from scanflow.http.tls import ServerTls
from scanflow.http.tls_files import TlsFiles
from scanflow.http.tls_server import TlsServer
from scanflow.instance_messages import Node, Revision
from scanflow.pki import CertificateAuthority, get_authority_file, prepare_tls
from scanflow.settings import Settings
from scanflow_serving import instance_http
from scanflow_serving.instance_http import HttpServer
from tests.waiting import PATIENCE_S


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    prepared = prepare_tls(Settings(home=tmp_path, tls=True))
    assert prepared is not None
    return prepared


async def answer(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def wait_for_end(port: int) -> bytes:
    """Return what a client gets that begins a handshake, and never ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x16\x03\x01")
    got = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return got


def read_serial(file: str, port: int) -> str:
    context = ssl.create_default_context(cafile=file)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b" 204 " in connection.recv(1000)
        return str((connection.getpeercert() or {})["serialNumber"])


def test_an_instance_ends_a_handshake_that_never_does(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_http, "HANDSHAKE_S", 0.05)

    async def serve() -> bytes:
        server = HttpServer(answer, age_s=0, drain_idle_s=0)
        listener = socket.create_server(("127.0.0.1", 0))
        server.listen("", listener, ServerTls(files))
        try:
            return await wait_for_end(listener.getsockname()[1])
        finally:
            server.close()

    assert asyncio.run(serve()) == b""


def test_server_and_agents_end_a_handshake_that_never_does_and_renew_their_certificate(
    files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 0.05)
    monkeypatch.setattr(tls, "CHECK_S", 0.0)
    config = uvicorn.Config(
        answer,
        http=LimitedConnection,
        lifespan="off",
        log_config=None,
        ssl_certfile=files.certificate,
        ssl_keyfile=files.key,
    )

    async def serve() -> tuple[bytes, list[str]]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, server = listener.getsockname()[1], TlsServer(config)
            config.load()
            server.lifespan = config.lifespan_class(config)
            await server.startup([listener])
            unfinished = await wait_for_end(port)
            authority = CertificateAuthority(tmp_path)
            serials = [await asyncio.to_thread(read_serial, files.authority, port)]
            authority.revoke("server")
            authority.issue("server", ["127.0.0.1"])
            serials.append(await asyncio.to_thread(read_serial, files.authority, port))
            await server.shutdown([listener])
            return unfinished, serials

    unfinished, serials = asyncio.run(serve())
    assert unfinished == b""
    assert serials[0] != serials[1]


def test_a_service_without_an_instance_answers_503_over_tls(files: TlsFiles) -> None:
    responder = UnavailableResponder("w")
    context = ssl.create_default_context(cafile=files.authority)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    received = b""
    with (
        open_listening_socket("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname(), timeout=PATIENCE_S) as sock,
    ):
        give_up = time.monotonic() + PATIENCE_S
        while b"503 Service Unavailable" not in received and time.monotonic() < give_up:
            responder.accept(listener, 0.0, files)
            responder.serve(0.0)
            sock.setblocking(False)
            try:
                incoming.write(sock.recv(65536))
            except BlockingIOError:
                pass
            try:
                client.do_handshake()
                client.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                received += client.read()
            except ssl.SSLWantReadError:
                pass
            sock.setblocking(True)
            if outgoing.pending:
                sock.sendall(outgoing.read())
        responder.close()
    assert b"No instance of 'w' is ready" in received


def test_the_files_of_a_home_that_is_moved_are_found_there(tmp_path: Path, files: TlsFiles) -> None:
    before, after = ServiceFolder(tmp_path / "services" / "w"), ServiceFolder(tmp_path / "moved" / "services" / "w")
    revision = Revision(id="r1", nodes=(Node(name="m", implementation="a:M"),))
    spec = ServiceSpec(
        app="a", team="t", workflow="w", app_dir="/", deployment=1, serves=1, shape=Shape(), revisions=(revision,)
    ).with_changes(tls=replace(files, name="localhost"))
    desired = DesiredState(name="w", port=1, grpc_port=2, created=0.0, definition=spec)
    assert (desired.url, desired.grpc_address) == ("https://localhost:1", "localhost:2")
    before.path.mkdir(parents=True)
    update_desired(before, lambda _: desired)
    assert str(tmp_path) not in before.desired.read_text()
    after.path.parent.mkdir(parents=True)
    before.path.rename(after.path)
    moved = read_desired(after)
    assert moved is not None
    assert moved.definition.tls is not None
    assert moved.definition.tls.name == "localhost"
    assert moved.definition.tls.authority == str(get_authority_file(tmp_path / "moved"))
