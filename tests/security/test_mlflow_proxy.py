"""Attacks on the way to MLflow: who reaches it through the server, and that nobody else of the machine does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from scanflow.http.home_token import ensure_home_token, make_step_token
from scanflow.http.security import Receive, Scope, Send
from scanflow.knowledge.mlflow.mlflow_socket import get_server_socket, is_listening, listen_as_server
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.transport.forwarding import MAX_CONNECTIONS
from scanflow_server.mlflow_access import MAX_DOCUMENT_BYTES, MAX_QUERY_BYTES
from scanflow_server.server_context import ServerContext
from tests.http_requests import http_client
from tests.page_reader import read_signed_in
from tests.server import bearer
from tests.unit.server.answering import answering
from tests.waiting import PATIENCE_S, patient, wait_until

BLOCK = bytes(range(256)) * 256


class Upstream:
    """Stands in for MLflow behind its socket: keeps what it is sent, and answers what a test says."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[bytes, bytes], bytes]] = []
        self.begun = 0
        self.answer: tuple[int, bytes, bytes] = (200, b"application/json", b"{}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.requests.append((scope["method"], scope["path"], dict(scope["headers"]), body))
        status, media, content = self.answer
        headers = [(b"content-type", media), (b"set-cookie", b"session=mlflow"), (b"x-frame-options", b"NONE")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


@pytest.fixture
def upstream(context: ServerContext) -> Iterator[Upstream]:
    upstream = Upstream()
    with listen_as_server(locate_tracker(context.settings.home)) as listener:
        server = uvicorn.Server(uvicorn.Config(upstream, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started, "the stand-in answers")
            yield upstream
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


@pytest.fixture
def url(context: ServerContext, upstream: Upstream) -> Iterator[str]:
    assert upstream.requests == []
    with answering(context) as address:
        yield f"{address}/mlflow"


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with http_client(timeout=patient(60)) as client:
        yield client


@pytest.fixture
def owner(context: ServerContext) -> dict[str, str]:
    return bearer(ensure_home_token(context.settings.home))


def make_token(url: str, client: httpx2.Client, owner: dict[str, str], **fields: Any) -> dict[str, str]:
    reply = client.post(f"{url.removesuffix('/mlflow')}/api/v1/tokens", json={"name": "eve", **fields}, headers=owner)
    return bearer(reply.json()["token"])


FILE = "api/2.0/mlflow-artifacts/artifacts/1/r/artifacts/x.bin"
SEARCH, CREATE = "api/2.0/mlflow/runs/search", "api/2.0/mlflow/runs/create"


def test_without_a_token_nothing_of_mlflow_is_reached(url: str, client: httpx2.Client, upstream: Upstream) -> None:
    for path in ("", "/", "/health", f"/{SEARCH}", "/static-files/main.js", "/get-artifact?path=x&run_uuid=r"):
        for headers in (
            {},
            bearer("scanflow_wrong"),
            {"authorization": "Basic YTpi"},
            {"cookie": "scanflow_session=x"},
        ):
            reply = client.get(url + path, headers=headers)
            assert reply.status_code in {307, 401}, (path, headers)
    assert client.post(f"{url}/{CREATE}", json={}).json()["error_code"] == "UNAUTHENTICATED"
    assert upstream.requests == []


def test_a_browser_is_led_to_the_login_and_back(url: str, client: httpx2.Client, owner: dict[str, str]) -> None:
    root = url.removesuffix("/mlflow")
    led = client.get(f"{url}/", headers={"accept": "text/html"})
    assert (led.status_code, led.headers["location"]) == (303, "/login?next=%2Fmlflow%2F")
    token = owner["authorization"].removeprefix("Bearer ")
    back = client.post(f"{root}/login", data={"token": token, "next": "/mlflow/"}, headers={"origin": root})
    assert read_signed_in(back.text)["data-next"] == "/mlflow/"
    assert client.get(f"{url}/").status_code == 200
    refused = client.post(f"{url}/ajax-api/2.0/mlflow/runs/delete", json={"run_id": "r"}, headers={"origin": root})
    assert (refused.status_code, "pages are for reading" in refused.json()["message"]) == (403, True)
    assert client.post(f"{url}/ajax-api/2.0/mlflow/runs/search", json={}, headers={"origin": root}).status_code == 200
    foreign = client.get(f"{url}/", headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403


def test_mlflow_receives_the_team_of_the_token_and_no_other(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    editor = make_token(url, client, owner, name="e", role="editor", team="data")
    for headers in (owner, editor):
        forged = {"x-scanflow-team": "another", "x_scanflow_team": "another"}
        client.post(f"{url}/{SEARCH}", json={}, headers={**headers, **forged}).raise_for_status()
    assert [headers.get(b"x-scanflow-team") for _, _, headers, _ in upstream.requests] == [None, b"data"]
    assert all(b"x_scanflow_team" not in headers for _, _, headers, _ in upstream.requests)


def test_a_role_that_may_not_write_there_does_not(
    url: str, client: httpx2.Client, owner: dict[str, str], context: ServerContext, upstream: Upstream
) -> None:
    home = ensure_home_token(context.settings.home)
    callers = {
        "owner": owner,
        "viewer": make_token(url, client, owner, name="v", role="viewer"),
        "viewer of a team": make_token(url, client, owner, name="t", role="viewer", team="another"),
        "editor of a team": make_token(url, client, owner, name="e", role="editor", team="data"),
        "step": bearer(make_step_token(home, "shop", "data")),
    }
    statuses = {
        name: (
            client.post(f"{url}/{SEARCH}", json={}, headers=headers).status_code,
            client.post(f"{url}/{CREATE}", json={}, headers=headers).status_code,
        )
        for name, headers in callers.items()
    }
    assert statuses == {
        "owner": (200, 200), "viewer": (200, 403), "viewer of a team": (200, 403), "editor of a team": (200, 200),
        "step": (200, 200),
    }  # fmt: skip
    assert len(upstream.requests) == sum(code == 200 for both in statuses.values() for code in both)


def test_a_steps_token_does_nothing_but_log(
    url: str, client: httpx2.Client, context: ServerContext, owner: dict[str, str]
) -> None:
    root, step = url.removesuffix("/mlflow"), make_step_token(ensure_home_token(context.settings.home), "shop", "data")
    routes = client.get(f"{root}/api/v1/openapi.json", headers=owner).json()["paths"]
    for path in (path for path, operations in routes.items() if "get" in operations and "{" not in path):
        expected = {200, 503} if path in {"/healthz", "/readyz"} else {403}
        assert client.get(root + path, headers=bearer(step)).status_code in expected, path
    other = make_step_token("scanflow_another_home", "shop", "data")
    assert client.post(f"{url}/{SEARCH}", json={}, headers=bearer(other)).status_code == 401


def test_secrets_end_at_the_server_in_both_directions(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    reply = client.get(f"{url}/{SEARCH}", headers={**owner, "cookie": "scanflow_session=s", "x-kept": "yes"})
    headers = upstream.requests[0][2]
    assert headers[b"x-kept"] == b"yes"
    assert not {b"authorization", b"cookie", b"origin"} & headers.keys()
    assert "set-cookie" not in reply.headers
    assert reply.headers["x-frame-options"] == "SAMEORIGIN"


def test_what_a_step_wrote_is_no_page_of_this_origin(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    upstream.answer = (200, b"text/html", b"<script>steal()</script>")
    for path in ("get-artifact?path=x.html", "api/2.0/mlflow-artifacts/artifacts/x.html"):
        reply = client.get(f"{url}/{path}", headers=owner)
        assert reply.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in client.get(f"{url}/", headers=owner).headers


def test_files_are_streamed_both_ways_whatever_their_size(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    """Beyond the limit of the server's other bodies."""
    path, content = f"{url}/api/2.0/mlflow-artifacts/artifacts/1/r/artifacts/m%C3%B6del%20%231.bin", BLOCK * 513
    assert client.put(path, content=(BLOCK for _ in range(513)), headers=owner).status_code == 200
    method, received_path, _, received = upstream.requests[-1]
    assert (method, received_path) == ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/r/artifacts/mödel #1.bin")
    assert received == content
    upstream.answer = (200, b"application/octet-stream", content)
    assert client.get(path, headers=owner).content == content


def test_artifacts_are_named_as_streamed_and_no_place_of_the_senders_own_is_taken(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream, context: ServerContext
) -> None:
    root = locate_tracker(context.settings.home).artifact_root
    assert root is not None
    upstream.answer = (200, b"application/json", json.dumps({"artifact_uri": f"{root.as_uri()}/1"}).encode())
    assert client.get(f"{url}/{SEARCH}", headers=owner).json() == {"artifact_uri": "mlflow-artifacts:/1"}
    create = f"{url}/api/2.0/mlflow/experiments/create"
    sent = client.post(create, json={"name": "n", "artifact_location": "mlflow-artifacts:/n"}, headers=owner)
    assert sent.status_code == 200
    assert json.loads(upstream.requests[-1][3]) == {"name": "n", "artifact_location": f"{root.as_uri()}/n"}
    for kind in ("experiments", "model-versions"):
        for api in ("api/2.0", "ajax-api/2.0", "api/3.0"):
            body = (
                b'{"name": "evil", "artifact_location": "\\u0066ile:///tmp/evil", "source": "\\u0066ile:///tmp/evil"}'
            )
            refused = client.post(f"{url}/{api}/mlflow/{kind}/create", content=body, headers=owner)
            assert (refused.status_code, refused.json()["error_code"]) == (422, "INVALID_PARAMETER_VALUE")
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("path", "limit"), [(SEARCH, MAX_QUERY_BYTES), (CREATE, MAX_DOCUMENT_BYTES), ("api/2.0/mlflow/traces", 2**22)]
)
def test_a_body_that_is_no_file_is_bounded_and_mlflow_never_sees_more(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream, path: str, limit: int
) -> None:
    body = json.dumps({"filter": ""}).encode()
    assert client.post(f"{url}/{path}", content=body.ljust(limit), headers=owner).status_code == 200
    for content in (body.ljust(limit + 1), iter([body, b" " * limit])):
        assert client.post(f"{url}/{path}", content=content, headers=owner).status_code == 413
    assert len(upstream.requests) == 1


def test_bodies_that_never_end_keep_nobody_from_mlflow(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    host, _, port = url.removeprefix("http://").removesuffix("/mlflow").partition(":")
    head = f"POST /mlflow/{SEARCH} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {owner['authorization']}\r\n"
    half_sent = [socket.create_connection((host, int(port))) for _ in range(MAX_CONNECTIONS + 10)]
    try:
        for connection in half_sent:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert client.post(f"{url}/{SEARCH}", json={}, headers=owner).status_code == 200
        assert len(upstream.requests) == 1
    finally:
        for connection in half_sent:
            connection.close()


def test_one_token_has_a_share_of_the_files_that_are_sent_at_once(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    host, _, port = url.removeprefix("http://").removesuffix("/mlflow").partition(":")
    editor = make_token(url, client, owner, name="e", role="editor")
    head = f"PUT /mlflow/{FILE} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {editor['authorization']}\r\n"
    uploads = [socket.create_connection((host, int(port))) for _ in range(MAX_CONNECTIONS // 4)]
    try:
        for connection in uploads:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        wait_until(lambda: upstream.begun == len(uploads), "its share is taken")
        refused = client.put(f"{url}/{FILE}", content=b"x", headers=editor)
        assert "the most that one token may have" in refused.json()["message"]
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.put(f"{url}/{FILE}", content=b"x", headers=owner).status_code == 200
    finally:
        for connection in uploads:
            connection.close()
    wait_until(lambda: client.put(f"{url}/{FILE}", content=b"x", headers=editor).status_code == 200, "it is given back")


def test_an_escaped_query_mark_hides_nothing(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    viewer = make_token(url, client, owner, name="v", role="viewer")
    hidden = f"{url}/api/2.0/mlflow-artifacts/artifacts/e%3Fx/application.json"
    assert client.get(hidden, headers=viewer).status_code == 403
    assert client.get(f"{url}/version%3F/api/2.0/mlflow/webhooks", headers=owner).status_code == 404
    assert upstream.requests == []


def test_a_trace_names_no_place_of_the_senders_own(
    url: str, client: httpx2.Client, owner: dict[str, str], upstream: Upstream
) -> None:
    tag, name = {"key": "mlflow.artifactLocation", "value": "file:///tmp/evil"}, "mlflow.artifactLocation"
    for method, path, document in (
        ("PATCH", "api/2.0/mlflow/traces/t/tags", tag),
        ("POST", "api/2.0/mlflow/traces", {"tags": [tag]}),
        ("POST", "api/3.0/mlflow/traces", {"trace": {"trace_info": {"tags": {name: "file:///tmp/evil"}}}}),
    ):
        refused = client.request(method, f"{url}/{path}", json=document, headers=owner)
        assert (refused.status_code, refused.json()["error_code"]) == (422, "INVALID_PARAMETER_VALUE"), path
    assert upstream.requests == []
    allowed = {"key": "note", "value": "file:///tmp/evil"}
    assert client.patch(f"{url}/api/2.0/mlflow/traces/t/tags", json=allowed, headers=owner).status_code == 200


def test_where_no_mlflow_runs_that_is_said(
    context: ServerContext, client: httpx2.Client, owner: dict[str, str]
) -> None:
    with answering(context) as address:
        reply = client.get(f"{address}/mlflow/", headers=owner)
    assert (reply.status_code, reply.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
    assert "scanflow up" in reply.json()["message"]


_ANOTHER_USER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.chdir(sys.argv[1])
print(os.listdir("."))
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[2])
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_does_not_reach_mlflows_socket() -> None:
    """Not even where the folders above are open to all."""
    with tempfile.TemporaryDirectory() as open_folder:
        place = locate_tracker(Path(open_folder, "home"))
        with listen_as_server(place):
            path = get_server_socket(place)
            for folder in (path.parent, path.parent.parent, Path(open_folder)):
                folder.chmod(0o755)
            command = [sys.executable, "-I", "-c", _ANOTHER_USER, str(path.parent), path.name]
            outcome = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patient(60)).stdout
            assert is_listening(path), "its own user does"
    assert path.name in outcome, "it sees the socket"
    assert outcome.splitlines()[-1] == "PermissionError", outcome
