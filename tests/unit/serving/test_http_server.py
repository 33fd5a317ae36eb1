"""HTTP on a real socket: uvicorn's protocol, our bounds, and an application that does as the request's path says."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import re
import socket
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Self, TypeVar

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.http.connections import HEAD_S
from scanflow_serving import asgi, instance_http
from scanflow_serving.asgi import HttpApi
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.instance_http import HttpServer
from scanflow_serving.messages import Request, Response
from tests.serving import read_answer, send_raw
from tests.waiting import PATIENCE_S, wait_until

MAX_BODY_BYTES = 2 * 1024 * 1024
T = TypeVar("T")


class Served:
    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self.held: list[asyncio.Event] = []
        self.cancelled = 0

    async def handle(self, request: Request) -> Response:
        match request.path:
            case "/hold":
                self.held.append(asyncio.Event())
                self.came.release()
                try:
                    await self.held[-1].wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
                return Response(200, b"held")
            case "/large":
                return Response(200, [b"a" * 1000, memoryview(bytes(int(request.query))), b"", b"z"])
            case "/split":
                return Response(200, b"", "text/plain", (("x-a", "1\r\nx-b: 2"),))
            case "/nothing":
                return Response(204)
            case "/json":
                return Response(200, b"1" * int(request.query))
        return Response(200, bytes(request.body) or request.path.encode(), "text/plain")

    def refuse(self, problem: ProblemError) -> Response:
        return problem.build_response()


class Server:
    def __init__(self, *, age_s: float = 300.0, drain_idle_s: float = 0.0, **options: Any) -> None:
        self.loop = uvloop.new_event_loop()
        self.served = Served()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self.listener.getsockname()[1]
        api = HttpApi(self.served, max_request_bytes=MAX_BODY_BYTES, **options)

        async def start_listening() -> HttpServer:
            http = HttpServer(api, age_s=age_s, drain_idle_s=drain_idle_s)
            http.listen("main", self.listener.dup())
            return http

        self.start_listening = start_listening
        self.http = self.do(start_listening())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def call(self, what: Callable[[], T]) -> T:
        async def call() -> T:
            return what()

        return self.do(call())

    def wait_for_request(self) -> None:
        assert self.served.came.acquire(timeout=PATIENCE_S)

    def release(self) -> None:
        self.loop.call_soon_threadsafe(self.served.held.pop(0).set)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def send_request(self, request: bytes) -> tuple[int, bytes]:
        came = send_raw(self.port, request)
        return int((re.findall(rb"^HTTP/1.1 (\d+)", came, re.MULTILINE) or [b"0"])[-1]), came

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.call(self.http.close)
        self.listener.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def get(path: str, more: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def post(path: str, body: bytes, more: str = "") -> bytes:
    return get(path, f"Content-Length: {len(body)}\r\n{more}", "POST") + body


LAST = "Connection: close\r\n"


def test_a_connection_serves_one_request_after_the_other(server: Server) -> None:
    with server.connect() as sock:
        for text in (b"one", b"two" * 1000, b"three"):
            sock.sendall(post("/", text))
            status, headers, body = read_answer(sock)
            assert (status, body, "connection" in headers) == (200, text, False)
            assert headers["server"] == "scanflow"


def test_requests_sent_ahead_are_answered_in_order(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(b"".join(get(f"/{place}") for place in range(49)) + get("/49", LAST))
        came = b""
        while piece := sock.recv(65536):
            came += piece
    assert [int(index.split(b"/")[-1]) for index in came.split(b"HTTP/1.1 ")[1:]] == list(range(50))


@pytest.mark.parametrize("size", [0, 1, 70_000, 1024 * 1024])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_any_size_comes_and_goes_whole(server: Server, size: int, chunked: bool) -> None:
    body = random.Random(size).randbytes(size)
    whole = post("/empty", body)
    if chunked:
        pieces = [body[at : at + 10_007] for at in range(0, size, 10_007)]
        coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        whole = get("/empty", "Transfer-Encoding: chunked\r\n", "POST") + coded
    with server.connect() as sock:
        sock.sendall(whole)
        assert read_answer(sock)[2] == (body or b"/empty")


def test_a_large_response_in_parts_waits_for_a_slow_receiver(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/large?30000000"))
        status, _, body = read_answer(sock)
    assert (status, len(body), body[:1], body[-1:]) == (200, 30_001_001, b"a", b"z")


@pytest.mark.parametrize(
    ("request_", "head", "body"),
    [
        (get("/x", LAST, "HEAD"), b"content-length: 2", b""),
        (get("/nothing", LAST), b"HTTP/1.1 204", b""),
        (get("/split", LAST), b"x-a: 1  x-b: 2", b""),
        (b"GET /x HTTP/1.0\r\n\r\n", b"connection: close", b"/x"),
        (get("/x", "Upgrade: h2c\r\nConnection: Upgrade, close\r\n"), b"HTTP/1.1 200", b"/x"),
        (post("/", b"abc", "Upgrade: h2c\r\nConnection: Upgrade, close\r\n"), b"HTTP/1.1 200", b"abc"),
    ],
)
def test_what_a_response_looks_like(server: Server, request_: bytes, head: bytes, body: bytes) -> None:
    came = send_raw(server.port, request_)
    head_, _, rest = came.partition(b"\r\n\r\n")
    assert head in head_
    assert rest == body


def test_a_body_is_requested_when_the_sender_waits(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/", "Content-Length: 3\r\nExpect: 100-continue\r\n", "POST"))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert read_answer(sock)[2] == b"abc"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/", f"Content-Length: {MAX_BODY_BYTES + 1}\r\nExpect: 100-continue\r\n", "POST"), 413),
        (
            get("/", "Transfer-Encoding: chunked\r\n", "POST")
            + b"%x\r\n" % (MAX_BODY_BYTES + 1)
            + b"a" * (MAX_BODY_BYTES + 1)
            + b"\r\n",
            413,
        ),
        (get("/", "Transfer-Encoding: gzip, chunked\r\n", "POST") + b"0\r\n\r\n", 501),
        (get("/", "Transfer-Encoding: chunked\r\n", "POST") + b"x\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (get("/", "Host: localhost\r\n"), 400),
        (get("/", "Content-Type: a/b\r\nContent-Type: a/c\r\n"), 400),
        (get("/", "Expect: miracles\r\n"), 417),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"\x16\x03\x01 no http\r\n\r\n", 501),
        (get("/", "Content-Length: x\r\n", "POST"), 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 400_000, 431),
        (get("/", f"X: {'a' * 65_536}\r\n"), 431),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_problem(server: Server, request_: bytes, status: int) -> None:
    status_, came = server.send_request(request_)
    assert status_ == status
    assert b"100 Continue" not in came
    assert json.loads(came.partition(b"\r\n\r\n")[2])["status"] == status


@pytest.mark.parametrize("whole", [False, True])
def test_a_client_that_leaves_while_its_request_runs_leaves_nothing(server: Server, whole: bool) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold") if whole else get("/", "Content-Length: 3\r\n", "POST") + b"a")
        if whole:
            server.wait_for_request()
    if whole:
        server.release()
    assert server.do(server.http.drain(PATIENCE_S))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(max_size=200) | st.sampled_from([get("/"), post("/", b"a"), b"\r\n", b"GET "]), max_size=6))
def test_hostile_bytes_hurt_no_other_client(noise: list[bytes]) -> None:
    with Server() as server, server.connect() as other:
        other.sendall(get("/wait")[:20])
        # The noise may be refused before it was all sent: a socket that was reset has no end to shut down (ENOTCONN).
        with contextlib.suppress(OSError), server.connect() as sock:
            for block in noise:
                sock.sendall(block)
            sock.shutdown(socket.SHUT_WR)
        other.sendall(get("/wait")[20:])
        assert read_answer(other)[2] == b"/wait"


# -- who may ask


def test_a_page_of_another_origin_gets_no_prediction() -> None:
    with Server(hosts=("models.example",)) as server:
        for kind, more, status in (
            ("text/plain", "Host: localhost:1", 200),
            ("text/plain", "Host: models.example", 200),
            ("text/plain", "Host: evil.example", 421),
            ("text/plain", "Host: localhost\r\nOrigin: http://evil.example", 403),
            ("application/x-www-form-urlencoded", "Host: localhost\r\nOrigin: null", 403),
            ("application/x-www-form-urlencoded", "Host: localhost\r\nOrigin: http://localhost", 200),
            ("application/x-www-form-urlencoded", "Host: localhost\r\nSec-Fetch-Site: cross-site", 403),
            ("application/x-www-form-urlencoded", "Host: localhost\r\nSec-Fetch-Site: same-origin", 200),
        ):
            head = f"POST / HTTP/1.1\r\n{more}\r\nContent-Type: {kind}\r\nContent-Length: 1\r\n{LAST}\r\n"
            assert server.send_request(head.encode() + b"a")[0] == status, more


def test_a_token_is_needed_where_one_is_set() -> None:
    with Server(token="s3cret") as server:
        for path, more, status in (
            ("/", "", 401),
            ("/", "Authorization: Bearer wrong\r\n", 401),
            ("/", "Authorization: Bearer s3cret\r\n", 200),
            ("/v2/health/ready", "", 200),
        ):
            assert server.send_request(get(path, more + LAST))[0] == status


# -- compression


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body, wbits=-zlib.MAX_WBITS)),
        ("identity", bytes),
    ],
)
def test_a_compressed_body_is_decompressed(server: Server, coding: str, encode: Callable[[bytes], bytes]) -> None:
    body = b"many words " * 10_000
    with server.connect() as sock:
        sock.sendall(post("/", encode(body), f"Content-Encoding: {coding}\r\n"))
        assert read_answer(sock)[2] == body


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("gzip", gzip.compress(bytes(100 * MAX_BODY_BYTES), mtime=0), 413),
        ("gzip", b"no gzip", 400),
        ("gzip", gzip.compress(b"abc", mtime=0)[:-4], 400),
        ("br", b"abc", 415),
    ],
)
def test_what_cannot_be_decompressed_is_refused(server: Server, coding: str, body: bytes, status: int) -> None:
    assert server.send_request(post("/", body, f"Content-Encoding: {coding}\r\n{LAST}"))[0] == status


@pytest.mark.parametrize(
    ("path", "accepted", "coding"),
    [
        ("/json?5000", "gzip", "gzip"),
        ("/json?5000", "deflate, gzip", "gzip"),
        ("/json?5000", "deflate", "deflate"),
        ("/json?10", "gzip", None),
        ("/json?5000", "br", None),
    ],
)
def test_a_response_is_compressed_if_the_client_takes_it(
    server: Server, path: str, accepted: str, coding: str | None
) -> None:
    with server.connect() as sock:
        sock.sendall(get(path, f"Accept-Encoding: {accepted}\r\n"))
        _, headers, body = read_answer(sock)
    assert headers.get("content-encoding") == coding
    plain = body if coding is None else zlib.decompress(body, zlib.MAX_WBITS | 32)
    assert plain == b"1" * int(path.partition("?")[2])


# -- slow clients, and the end of connections


@pytest.mark.parametrize(
    "sent",
    [b"GET / HT", get("/", "Content-Length: 9\r\n", "POST") + b"a", get("/", "Transfer-Encoding: chunked\r\n", "POST")],
)
def test_a_slow_sender_is_answered_408(server: Server, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_http, "HEAD_S", 0.0)
    monkeypatch.setattr(asgi, "BODY_S", 0.0)
    with server.connect() as sock:
        sock.sendall(sent)
        assert read_answer(sock)[0] == 408


def test_a_client_that_reads_nothing_of_a_response_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_http, "WRITE_S", 0.0)
    with server.connect() as sock:
        sock.sendall(get("/large?50000000"))
        assert server.do(server.http.drain(PATIENCE_S))


@pytest.mark.parametrize("first", [b"", get("/")])
def test_a_connection_without_requests_is_closed(server: Server, first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_http, "IDLE_S", 0.0)
    with server.connect() as sock:
        sock.sendall(first)
        while sock.recv(65536):
            pass


def test_a_connection_that_never_sent_a_request_has_the_time_of_a_head(server: Server) -> None:
    with server.connect() as silent, server.connect() as idle:
        idle.sendall(get("/"))
        read_answer(idle)
        silent.sendall(b"\r\n")  # no request yet
        wait_until(lambda: len(server.http.state.connections) == 2, "both are accepted")

        def expire(age_s: float) -> None:
            for connection in list(server.http.state.connections):
                connection.expire(server.http.now + age_s, instance_http.IDLE_S)  # type: ignore[union-attr]

        server.call(lambda: expire(HEAD_S - 1))
        idle.sendall(get("/"))
        read_answer(idle)
        assert len(server.http.state.connections) == 2
        server.call(lambda: expire(HEAD_S + 1))
        assert silent.recv(1) == b""
        idle.sendall(get("/"))
        assert read_answer(idle)[0] == 200


def test_silent_connections_make_space_while_files_are_few(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_http, "is_only_reserve_left", lambda _: len(server.http) >= 3)
    monkeypatch.setattr(instance_http, "PAUSE_S", 0.01)
    with ExitStack() as stack:
        busy = stack.enter_context(server.connect())
        busy.sendall(get("/hold"))
        server.wait_for_request()
        for _ in range(10):
            stack.enter_context(server.connect())
        client = stack.enter_context(server.connect())
        client.sendall(get("/late"))
        assert read_answer(client)[2] == b"/late"
        assert len(server.http) <= 6
        server.release()
        assert read_answer(busy)[2] == b"held"


def test_an_old_connection_says_that_its_response_is_the_last() -> None:
    with Server(age_s=0.001) as server, server.connect() as sock:
        closed = False
        while not closed:  # its age is looked at twice a second
            sock.sendall(get("/"))
            status, headers, _ = read_answer(sock)
            assert status == 200
            closed = headers.get("connection") == "close"
        assert sock.recv(1) == b""


def test_a_draining_server_answers_what_it_has_read_and_closes_the_rest(server: Server) -> None:
    with server.connect() as busy, server.connect() as idle:
        busy.sendall(get("/hold"))
        server.wait_for_request()
        idle.sendall(get("/"))
        read_answer(idle)
        draining = asyncio.run_coroutine_threadsafe(server.http.drain(PATIENCE_S), server.loop)
        assert idle.recv(1) == b""
        server.release()
        _, headers, body = read_answer(busy)
        assert (headers["connection"], body) == ("close", b"held")
        assert draining.result(PATIENCE_S)
        with server.connect() as waiting:  # in the queue of the socket, for another process
            waiting.sendall(get("/"))
            with server.listener.accept()[0] as taken:
                assert taken.recv(3) == b"GET"


@pytest.mark.parametrize("leaving", [True, False])
def test_a_request_that_came_before_its_idle_connection_is_closed_is_answered(server: Server, leaving: bool) -> None:
    """The loop reads it late: the machine is busy, or a component holds the loop."""
    with server.connect() as sock:
        sock.sendall(get("/first"))
        read_answer(sock)

        def late() -> None:
            if leaving:
                server.http.leave()
            sock.sendall(get("/late"))
            (connection,) = server.http.state.connections
            connection.expire(server.http.now + 1000, 0.0)  # type: ignore[union-attr]

        server.call(late)
        status, headers, body = read_answer(sock)
        assert (status, headers.get("connection") == "close", body) == (200, leaving, b"/late")


def test_a_response_that_has_begun_without_saying_so_is_not_the_last() -> None:
    with Server(drain_idle_s=60.0) as server, server.connect() as sock:
        sock.sendall(get("/large?30000000"))
        sock.recv(1, socket.MSG_PEEK)  # its head has gone
        server.call(server.http.leave)
        _, headers, _ = read_answer(sock)
        assert "connection" not in headers
        sock.sendall(get("/next"))
        _, headers, body = read_answer(sock)
        assert (headers["connection"], body) == ("close", b"/next")


def test_an_ignored_listener_gives_its_connections_back(server: Server) -> None:
    other = socket.create_server(("127.0.0.1", 0))
    server.call(lambda: server.http.listen("backup", other.dup()))
    with server.connect() as own, socket.create_connection(other.getsockname(), timeout=PATIENCE_S) as lent:
        for sock in (own, lent):
            sock.sendall(get("/hold"))
            server.wait_for_request()
        server.call(lambda: server.http.ignore("backup"))
        for sock, closes in ((own, False), (lent, True)):
            server.release()
            assert (read_answer(sock)[1].get("connection") == "close") is closes
    other.close()


@pytest.fixture
def second(server: Server) -> Iterator[HttpServer]:
    """Another instance that accepts from the same socket. On one loop, the first always wakes first."""
    http = server.do(server.start_listening())
    yield http
    server.call(http.close)


def test_a_burst_of_connections_is_spread_over_instances(server: Server, second: HttpServer) -> None:
    for http in (server.http, second):
        server.call(partial(http.balance, 0))
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(8)]
        for client in clients:
            client.sendall(get("/hold"))
        for _ in clients:
            server.wait_for_request()
        assert [len(http.state.connections) for http in (server.http, second)] == [4, 4]
        for _ in clients:
            server.release()


def test_connections_move_to_an_instance_that_has_fewer(server: Server, second: HttpServer) -> None:
    server.call(partial(second.ignore, "main"))
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(8)]
        for client in clients:
            client.sendall(get("/hold"))
            server.wait_for_request()
        assert server.call(lambda: server.http.busy) == 8
        server.call(partial(second.listen, "main", server.listener.dup()))
        server.call(partial(second.balance, 5))

        def closing() -> int:
            server.call(partial(server.http.balance, 5))
            return sum(getattr(connection, "closing", False) for connection in server.http.state.connections)

        assert closing() == 0, "the first time, it may be that the numbers of the others are old"
        wait_until(lambda: closing() == 3, "those beyond the share are to close")
        for _ in clients:
            server.release()
        moving = [client for client in clients if b"connection: close" in client.recv(4096).lower()]
        assert len(moving) == 3
        for client in moving:
            assert client.recv(1) == b""
            again = stack.enter_context(server.connect())
            again.sendall(get("/hold"))
            server.wait_for_request()
        assert [len(http.state.connections) for http in (server.http, second)] == [5, 3]
        for _ in range(3):
            server.release()


def test_a_few_connections_more_than_a_fair_share_stay(server: Server) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(9)]
        for client in clients:
            client.sendall(get("/hold"))
            server.wait_for_request()
        server.call(partial(server.http.balance, 8))
        since = server.http.now
        wait_until(lambda: server.http.now > since + 2 * instance_http.BALANCE_INTERVAL_S, "the others had time")
        server.call(partial(server.http.balance, 8))
        for _ in clients:
            server.release()
        assert not any(b"connection: close" in client.recv(4096).lower() for client in clients)


def test_a_burst_that_no_other_instance_takes_is_accepted(server: Server) -> None:
    server.call(partial(server.http.balance, 0))
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(200)]
        for client in clients:
            client.sendall(get("/hold"))
        for _ in clients:
            server.wait_for_request()
        for _ in clients:
            server.release()


# -- who has gone


def test_the_request_of_a_client_that_has_gone_is_cancelled(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold"))
        server.wait_for_request()
    wait_until(lambda: server.served.cancelled, "its request is cancelled")


def test_a_client_that_has_finished_sending_but_waits_is_answered(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold"))
        sock.shutdown(socket.SHUT_WR)
        server.wait_for_request()
        interim = b"HTTP/1.1 100 Continue\r\n\r\n"
        assert sock.recv(len(interim), socket.MSG_WAITALL) == interim
        server.call(server.http.sweep)
        server.release()
        rest = b""
        while piece := sock.recv(65536):
            rest += piece
    assert rest.replace(interim, b"").startswith(b"HTTP/1.1 200 OK")
    assert not server.served.cancelled
