"""What a request's body can do to the server: whoever may not send one is refused unread, and none is too large."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI

import scanflow as sf
from scanflow.app.application_files import dump_document
from scanflow.errors import TooLargeError
from scanflow.http.body_limits import MAX_BODY_BYTES, MAX_DEFINITION_BYTES, MAX_EVENT_BYTES
from scanflow.http.home_token import Role, hash_token
from scanflow.transport import ServerClient
from scanflow_server import api_route, stream_limits
from scanflow_server.api_route import ApiRoute
from scanflow_server.app import BASE, create_app
from scanflow_server.dashboard import pages
from scanflow_server.routes import (
    agent_routes,
    application_routes,
    event_routes,
    function_routes,
    intent_routes,
    label_routes,
    run_routes,
    service_routes,
    token_routes,
)
from scanflow_server.server_context import ServerContext
from scanflow_server.store import token_store
from scanflow_server.store.token_store import TokenRow
from scanflow_server.stream_limits import UnreadBodies
from scanflow_server.token_roles import PERMISSIONS
from tests.http_requests import http_client
from tests.page_reader import log_in
from tests.server import bearer
from tests.unit.server.server_rows import Api
from tests.waiting import PATIENCE_S, patient

ROUTES: list[ApiRoute] = [
    route
    for module in (
        agent_routes,
        application_routes,
        event_routes,
        function_routes,
        intent_routes,
        label_routes,
        run_routes,
        service_routes,
        token_routes,
    )
    for route in module.router.routes
    if isinstance(route, ApiRoute)
]
TAKES_A_DEFINITION = {
    "POST /functions",
    "POST /runs",
    "POST /runs/plan",
    "POST /runs/{run}/resume",
    "POST /runs/{run}/spin",
    "POST /services",
    "PUT /agents/{app}/{agent}",
    "PUT /applications/{app}",
}
BLOCK = 2**16


@dataclass(frozen=True)
class Answer:
    status: int
    document: dict[str, Any]
    headers: dict[bytes, bytes]
    received: int
    """How many bytes of the body the application received before it answered."""


def name(route: ApiRoute) -> str:
    [method] = sorted(route.methods or ())
    return f"{method} {route.path}"


def ask(app: FastAPI, route: str, token: str, blocks: Iterable[bytes] = (), *, length: int | None = None) -> Answer:
    """Ask without a network. ``length``: the Content-Length; None: the body comes in chunks."""
    method, _, path = route.partition(" ")
    framing = (b"transfer-encoding", b"chunked") if length is None else (b"content-length", b"%d" % length)
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), framing]
    headers += [(key.encode(), value.encode()) for key, value in bearer(token).items()]
    path = BASE + re.sub(r"{\w+(:path)?}", "x", path)
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "server": ("localhost", 80), "headers": headers}
    remaining, sent, received, received_before = iter(blocks), list[Any](), 0, list[int]()

    async def receive() -> Any:
        nonlocal received
        block = next(remaining, None)
        received += len(block or b"")
        return {"type": "http.request", "body": block or b"", "more_body": block is not None}

    async def send(message: Any) -> None:
        received_before.append(received)
        sent.append(message)

    asyncio.run(asyncio.wait_for(app(scope, receive, send), PATIENCE_S))
    document = json.loads(b"".join(message.get("body", b"") for message in sent))
    return Answer(sent[0]["status"], document, dict(sent[0]["headers"]), received_before[0])


@pytest.fixture
def app(context: ServerContext) -> FastAPI:
    with context.store.write() as connection:
        for role in get_args(Role):
            row = TokenRow(name=role, role=role, team="ml", created=0.0)
            token_store.add(connection, row, hash_token(f"secret-{role}"))
    return create_app(context, control=False)


@pytest.mark.parametrize("role", ["viewer", "agent", "editor"])
def test_whoever_may_not_is_refused_by_the_headers_alone(app: FastAPI, role: Any) -> None:
    refused = [route for route in ROUTES if any(need.permission not in PERMISSIONS[role] for need in route.needs)]
    assert {name(route) for route in refused} >= {"POST /tokens"}
    for route in refused:
        answers = [ask(app, name(route), f"secret-{role}", endless(), length=length) for length in (31 * 2**20, None)]
        for answer in answers:
            assert (answer.status, answer.received) == (403, 0), name(route)
            assert "scanflow token make" in answer.document["detail"]


def test_the_routes_that_take_an_application_or_a_function_are_those_with_a_larger_limit() -> None:
    larger = {name(route) for route in ROUTES if route.body_limit.max_bytes == MAX_DEFINITION_BYTES}
    assert larger == TAKES_A_DEFINITION
    assert {route.body_limit.max_bytes for route in ROUTES} == {MAX_DEFINITION_BYTES, MAX_BODY_BYTES}


def test_a_body_that_says_it_is_too_large_is_refused_unread(app: FastAPI) -> None:
    for route in ROUTES:
        most = route.body_limit.max_bytes
        answer = ask(app, name(route), "secret-admin", endless(), length=most + 1)
        assert (answer.status, answer.received) == (413, 0), name(route)
        assert f"at most {most // 2**20} MiB. {route.body_limit.advice}" in answer.document["detail"]
        assert ask(app, name(route), "secret-admin", spaces(most), length=most).status != 413, name(route)


def test_a_body_that_proves_too_large_is_refused_as_soon_as_it_is(app: FastAPI) -> None:
    taking = [route for route in ROUTES if route.body_field is not None]
    assert {"POST /events", "PATCH /labels", "POST /intents", "PATCH /services/{name}"} <= {*map(name, taking)}
    for route in taking:
        most = route.body_limit.max_bytes
        answer = ask(app, name(route), "secret-admin", endless())
        assert (answer.status, answer.received) == (413, most + BLOCK), name(route)
        assert ask(app, name(route), "secret-admin", spaces(most)).status == 422, name(route)


def test_a_large_body_is_parsed_in_another_thread(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, parse_body = list[bool](), api_route.parse_body

    def parse(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse_body(*arguments)

    monkeypatch.setattr(api_route, "parse_body", parse)
    for size in (1, 100_000):
        event = {"at": 1.0, "type": "made", "data": {"x": "y" * size}}
        body = json.dumps([event]).encode()
        answer = ask(app, "POST /events", "secret-editor", [body], length=len(body))
        assert answer.status == 201, answer
    assert threads == [True, False]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 2**20, "not valid JSON: recursion limit exceeded"),
        (b'{"application":' + b'{"a":' * 150 + b"1" + b"}" * 151, "nested deeper than 100 levels"),
        (b'{"application":{}' + b"".join(b',"%d":0' % number for number in range(1001)) + b"}", "has 1,001 invalid"),
        (b'{"application":{},"more":1}', "more: Extra inputs are not permitted"),
        (b'{"application":', "not valid JSON: EOF while parsing"),
        (b'"\xff"', "not valid JSON: invalid unicode"),
        (b"", "the body: Field required"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(app: FastAPI, body: bytes, message: str) -> None:
    answer = ask(app, "POST /runs", "secret-editor", [body], length=len(body))
    assert (answer.status, message in answer.document["detail"]) == (422, True), answer.document


def test_a_client_that_disconnects_within_a_body_is_no_defect(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9")]
    headers += [(b"authorization", b"Bearer secret-editor")]
    path = f"{BASE}/events"
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "headers": headers}
    asyncio.run(app(scope, receive, send))
    assert (sent[0]["status"], caplog.records) == (422, [])


def test_an_event_that_is_too_large_is_refused_with_its_batch(api: Api) -> None:
    def make_event(size: int) -> dict[str, Any]:
        event: dict[str, Any] = {"id": 0, "at": 1.0, "type": "made", "app": "", "subject": "", "data": {"x": ""}}
        event["data"]["x"] = "y" * (size - len(json.dumps(event, separators=(",", ":"))))
        return event

    refused = api.post("/events", json=[make_event(200), make_event(MAX_EVENT_BYTES + 1)])
    assert (refused.status_code, "Event 2 of the body, of type 'made'" in refused.json()["detail"]) == (413, True)
    assert api.get("/events").json() == []
    assert api.post("/events", json=[make_event(MAX_EVENT_BYTES)]).status_code == 201


def test_an_application_of_10_000_steps_fits() -> None:
    parameters = {"epochs": 3, "learning_rate": 0.001, "data": "/data/features/part-0001.parquet", "seed": 42}
    steps = [
        sf.Executor(
            name=f"prepare-features-{number:05d}",
            mainfile="steps/prepare_features.py",
            parameters=parameters,
            requirements=["pandas", "scikit-learn"],
            retries=2,
        )
        for number in range(10_000)
    ]
    edges = [
        sf.Dependency(dependee=steps[number].name, depender=steps[number + ahead].name)
        for number in range(9_900)
        for ahead in (99, 100)
    ]
    app = sf.Application(name="large", team="ml", workflows=[sf.Workflow(name="large", nodes=steps, edges=edges)])
    body = {"application": dump_document(app), "workflow": "large", "parameters": {}}
    assert len(json.dumps(body, separators=(",", ":"))) < MAX_DEFINITION_BYTES


def test_a_viewer_is_answered_by_a_real_server_before_and_while_the_body_is_sent(api: Api) -> None:
    token = api.post("/tokens", json={"name": "vi", "role": "viewer"}).json()["token"]
    address = urlsplit(str(api.base_url))
    head = f"POST {BASE}/runs HTTP/1.1\r\nhost: {address.netloc}\r\nauthorization: Bearer {token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {31 * 2**20}\r\n\r\n"
    place = (address.hostname or "", address.port or 0)
    with socket.create_connection(place, timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode())  # and nothing of the body
        assert connection.recv(65536).startswith(b"HTTP/1.1 403 ")
    headers = bearer(token) | {"content-type": "application/json"}
    contents: list[Any] = [b" " * 8 * 2**20, (b" " * 2**20 for _ in range(8))]
    with http_client(base_url=str(api.base_url), headers=headers, timeout=patient(60)) as client:
        for content in contents:
            refused = client.post("/runs", content=content)
            assert (refused.status_code, "role 'viewer'" in refused.json()["detail"]) == (403, True)
        assert client.get("/runs").status_code == 200


def test_a_body_that_is_too_large_is_an_error_of_its_own_for_the_client(api: Api) -> None:
    token = api.headers["authorization"].removeprefix("Bearer ")
    client = ServerClient(str(api.base_url), token=token)
    with pytest.raises(TooLargeError, match=r"^The body has 1,\d{3},\d{3} bytes, .* at most 1 MiB\. Send less"):
        client.post("/events", [{"at": 1.0, "type": "made", "data": {"x": "y" * 2**20}}])
    client.close()


def test_a_form_of_whoever_may_not_label_is_not_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_form(_request: Any) -> Any:
        raise AssertionError

    token = api.post("/tokens", json={"name": "vi", "role": "viewer"}).json()["token"]
    with http_client(base_url=str(api.base_url).removesuffix("/api/v1/"), timeout=patient(60)) as browser:
        log_in(browser, token)
        monkeypatch.setattr(pages, "read_form", read_form)
        assert browser.post("/labels", data={"id": "x", "label": "1"}).status_code == 403
        assert browser.post("/runs/x/stop").status_code == 403


def answer_unread(headers: Sequence[tuple[bytes, bytes]], blocks: Iterator[bytes], *, reads: bool = False) -> list[Any]:
    """Return, in order, the messages of an answer and how much was received."""
    happened = list[Any]()

    async def refuse(_scope: Any, receive: Any, send: Any) -> None:
        while reads and (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"No."})

    async def receive() -> Any:
        block = next(blocks, None)
        happened.append(len(block or b""))
        return {"type": "http.request", "body": block or b"", "more_body": block is not None}

    async def send(message: Any) -> None:
        happened.append(message)

    asyncio.run(UnreadBodies(refuse)({"type": "http", "headers": headers}, receive, send))
    return happened


def test_the_rest_of_an_endless_body_is_discarded_up_to_a_limit_after_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_limits, "MAX_DISCARDED_BYTES", 3 * BLOCK)
    closing = {"type": "http.response.start", "status": 403, "headers": [(b"connection", b"close")]}
    answered = {"type": "http.response.body", "body": b"No.", "more_body": True}
    ended = {"type": "http.response.body"}
    for headers in ([(b"transfer-encoding", b"chunked")], [(b"content-length", b"%d" % (3 * BLOCK + 1))]):
        assert answer_unread(headers, endless()) == [closing, answered, BLOCK, BLOCK, BLOCK, ended]
    assert answer_unread([(b"transfer-encoding", b"chunked")], iter([b"x"])) == [closing, answered, 1, 0, ended]


def test_the_connection_of_a_body_that_was_read_or_is_short_is_kept() -> None:
    plain = [
        {"type": "http.response.start", "status": 403, "headers": []},
        {"type": "http.response.body", "body": b"No."},
    ]
    assert answer_unread([(b"transfer-encoding", b"chunked")], iter([b"x"]), reads=True) == [1, 0, *plain]
    assert answer_unread([(b"content-length", b"9")], endless()) == plain
    assert answer_unread([], endless()) == plain


def endless() -> Iterator[bytes]:
    while True:
        yield b" " * BLOCK


def spaces(size: int) -> list[bytes]:
    return [b" " * size]
