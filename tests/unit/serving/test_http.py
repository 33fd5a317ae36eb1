"""The HTTP face on a real socket, on both loops, with a handler that does as the request's path says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from http.client import HTTPConnection
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.wire import Limits
from scanflow_serving import connections, http, inbox
from scanflow_serving.connections import Connections
from scanflow_serving.http import Parcel
from scanflow_serving.messages import Reply, Request, Response
from scanflow_serving.slots import Table
from tests.serving import raw_exchange, read_answer
from tests.waiting import until

MOST = 20 * 1024 * 1024
T = TypeVar("T")
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Server:
    """Connections on a loop of their own, in a thread."""

    def __init__(self, loop_of: Callable[[], asyncio.AbstractEventLoop], limits: Limits | None = None) -> None:
        self.loop = loop_of()
        self.held: list[tuple[Request, Reply]] = []
        self.came = threading.Semaphore(0)
        self.given: list[Parcel] = []
        self._limits = limits or Limits(max_request_bytes=MOST)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = listener.getsockname()[1]
        self.connections = self.do(self._begin(listener))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _begin(self, listener: socket.socket) -> Connections:
        made = Connections(self.loop, self.handle, self._limits, Table(slots=32))
        made.listen("main", listener)
        return made

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def call(self, what: Callable[[], T]) -> T:
        """Call something on the loop."""

        async def call() -> T:
            return what()

        return self.do(call())

    def handle(self, request: Request, reply: Reply) -> None:
        match request.path:
            case "/hold":
                self.held.append((request, reply))
                self.came.release()
            case "/later":
                self.loop.call_soon(reply, Response(200, request.query.encode()))
            case "/large":
                reply(Response(200, [b"a" * 1000, memoryview(bytes(int(request.query))), b"", b"z"]))
            case "/twice":
                reply(Response(200, b"first"))
                reply(Response(200, b"second"))
            case "/split":
                reply(Response(200, b"", "text/plain", (("x-a", "1\r\nx-b: 2"),)))
            case "/nothing":
                reply(Response(204))
            case _:
                reply(Response(200, bytes(request.body) or request.path.encode(), "text/plain"))

    def release(self, text: bytes = b"held") -> None:
        """Answer the oldest request that is held."""
        assert self.came.acquire(timeout=20)
        _, reply = self.held.pop(0)
        self.loop.call_soon_threadsafe(reply, Response(200, text))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def close(self) -> None:
        self.call(self.connections.close)
        assert self.do(self.connections.gone(20))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


@pytest.fixture(params=sorted(LOOPS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(LOOPS[request.param])
    yield made
    made.close()


def get(path: str, more: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n".encode()


def post(path: str, body: bytes, more: str = "") -> bytes:
    return get(path, f"Content-Length: {len(body)}\r\n{more}", "POST") + body


def test_a_connection_serves_one_request_after_the_other(server: Server) -> None:
    with server.connect() as sock:
        for path in ("/a", "/b", "/later?c"):
            sock.sendall(get(path))
            status, headers, body = read_answer(sock)
            assert (status, body) == (200, path[-1:].encode() if "?" in path else path.encode())
            assert "connection" not in headers
            assert headers["date"].endswith("GMT")
    assert len(server.held) == 0


def test_requests_sent_ahead_are_answered_in_order(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold") + post("/", b"second") + get("/later?third") + get("/hold") + get("/last"))
        server.release(b"first")
        for wanted in (b"first", b"second", b"third"):
            assert read_answer_of(sock) == wanted
        server.release(b"fourth")
        assert [read_answer_of(sock), read_answer_of(sock)] == [b"fourth", b"/last"]


def read_answer_of(sock: socket.socket) -> bytes:
    """Read just one answer, whatever follows it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        assert piece, head
        head += piece
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = b""
    while len(body) < length:
        body += sock.recv(length - len(body))
    return body


def test_many_requests_sent_ahead_are_all_answered(server: Server) -> None:
    count = 20_000
    answers = b""

    def read(sock: socket.socket) -> None:
        nonlocal answers
        pieces = []
        while piece := sock.recv(1 << 20):
            pieces.append(piece)
        answers = b"".join(pieces)

    with server.connect() as sock:
        reader = threading.Thread(target=read, args=(sock,))
        reader.start()
        for start in range(0, count, 100):
            sock.sendall(b"".join(get(f"/{number}") for number in range(start, start + 100)))
        sock.shutdown(socket.SHUT_WR)
        reader.join(60)
    assert answers.count(b"HTTP/1.1 200 OK") == count
    bodies = [one.partition(b"\r\n\r\n")[2] for one in answers.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"/%d" % number for number in range(count)]


@pytest.mark.parametrize("size", [1, 65536, 256 * 1024, 256 * 1024 + 1, 16 * 1024 * 1024])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_any_size_comes_and_goes_whole(server: Server, size: int, chunked: bool) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    pieces = [body[at : at + 100_000] for at in range(0, size, 100_000)]
    client = HTTPConnection("127.0.0.1", server.port, timeout=30)
    for _ in range(2):
        client.request("POST", "/", iter(pieces) if chunked else body, encode_chunked=chunked)
        assert client.getresponse().read() == body
    client.close()


def test_a_large_answer_in_parts_waits_for_a_slow_receiver(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/large?30000000") + get("/after"))
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        assert b"content-length: 30001001\r\n" in head
        left = 30001001 + len(head[: head.index(b"\r\n\r\n") + 4]) - len(head)
        while left:
            came = len(sock.recv(min(left, 1 << 20)))
            assert came, f"closed with {left} bytes missing"
            left -= came
        assert read_answer_of(sock) == b"/after"


def test_head_has_the_headers_of_get_and_no_body(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/abc", method="HEAD") + get("/next"))
        answer = b""
        while not answer.endswith(b"/next"):
            answer += sock.recv(4096)
    first, second = answer.split(b"HTTP/1.1 ")[1:]
    assert b"content-length: 4" in first
    assert first.endswith(b"\r\n\r\n")
    assert second.endswith(b"\r\n\r\n/next")


def test_an_answer_without_content_has_no_length(server: Server) -> None:
    answer = raw_exchange(server.port, get("/nothing", "Connection: close\r\n"))
    assert answer.startswith(b"HTTP/1.1 204 ")
    assert b"content-length" not in answer


def test_a_second_answer_to_one_request_is_dropped(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/twice") + get("/next"))
        assert [read_answer_of(sock), read_answer_of(sock)] == [b"first", b"/next"]


def test_a_header_cannot_smuggle_in_another(server: Server) -> None:
    assert b"\r\nx-a: 1  x-b: 2\r\n" in raw_exchange(server.port, get("/split"))


@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        (get("/a"), True),
        (get("/a", "Connection: close\r\n"), False),
        (b"GET /a HTTP/1.0\r\n\r\n", False),
        (b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_a_connection_stays_when_both_want_it(server: Server, request_: bytes, kept: bool) -> None:
    with server.connect() as sock:
        sock.sendall(request_)
        _, headers, body = read_answer(sock)
        assert body == b"/a"
        if not kept:
            assert headers["connection"] == "close"
            assert sock.recv(1) == b""
            return
        assert headers.get("connection", "keep-alive") == "keep-alive"
        sock.sendall(request_)
        assert read_answer(sock)[2] == b"/a"


def test_a_body_is_asked_for_when_the_sender_waits(server: Server) -> None:
    with server.connect() as sock:
        whole = post("/", b"body", "Expect: 100-continue\r\n")
        sock.sendall(whole[:-4])
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(whole[-4:])
        assert read_answer(sock)[2] == b"body"
        sock.sendall(whole)
        assert read_answer(sock)[2] == b"body"  # who does not wait is not asked


def test_a_body_is_asked_for_only_when_its_turn_has_come(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold") + post("/", b"body", "Expect: 100-continue\r\n")[:-4])
        server.release(b"first")
        assert read_answer_of(sock) == b"first"
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"body")
        assert read_answer(sock)[2] == b"body"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/", f"Content-Length: {MOST + 1}\r\n", "POST"))
        status, headers, body = read_answer(sock)
        assert (status, headers["connection"]) == (413, "close")
        assert b"larger than" in body
        for _ in range(100):  # it is read on for a while, so that whoever only sends gets to read the answer
            sock.sendall(bytes(1000))


def test_what_cannot_be_read_is_answered_and_the_connection_ends(server: Server) -> None:
    for spoiled, status in ((b"\x16\x03\x01 hello", 400), (b"BREW / HTTP/1.1\r\n", 501), (get("/\x01"), 400)):
        answer = raw_exchange(server.port, get("/first") + spoiled)
        assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"%d" % status]
        assert b"\r\nconnection: close\r\n" in answer


def test_who_has_said_all_still_gets_all_answers(server: Server) -> None:
    answer = raw_exchange(server.port, get("/1") + get("/later?2") + get("/3") * 50)
    assert answer.count(b"HTTP/1.1 200 OK") == 52


def test_who_goes_away_while_a_request_runs_leaves_nothing(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold"))
        assert server.came.acquire(timeout=20)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert server.do(server.connections.gone(20))
    _, reply = server.held.pop()
    server.call(lambda: reply(Response(200, b"nobody is there")))
    assert raw_exchange(server.port, get("/still"))


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=10))
@settings(max_examples=30)
def test_hostile_bytes_hurt_nobody_else(noise: list[bytes]) -> None:
    server = shared_server()
    with server.connect() as sock, contextlib.suppress(OSError):
        for piece in noise:
            sock.sendall(piece)
    with server.connect() as sock:
        sock.sendall(get("/well"))
        assert read_answer(sock)[2] == b"/well"


_shared: list[Server] = []


def shared_server() -> Server:
    if not _shared:
        _shared.append(Server(LOOPS["uvloop"]))
    return _shared[0]


@pytest.fixture(scope="module", autouse=True)
def _close_shared() -> Iterator[None]:
    yield
    while _shared:
        _shared.pop().close()


@pytest.mark.parametrize("sent", [b"GET / HT", get("/", "Content-Length: 9\r\n", "POST") + b"half"])
def test_a_slow_sender_is_answered_408(server: Server, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "HEAD_S", 0.0)
    monkeypatch.setattr(inbox, "BODY_S", 0.0)
    with server.connect() as sock:
        sock.sendall(sent)
        status, headers, _ = read_answer(sock)
        assert (status, headers["connection"]) == (408, "close")


def test_who_takes_nothing_of_an_answer_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WRITE_S", 0.0)
    with server.connect() as sock:
        sock.sendall(get("/large?18000000"))
        assert server.do(server.connections.gone(20))
        with pytest.raises(ConnectionError):  # noqa: PT012 - it is cut off some time while it is read
            while sock.recv(65536):
                pass
            raise ConnectionError


def test_a_connection_without_requests_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.0)
    with server.connect() as sock:
        assert sock.recv(1) == b""


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_an_old_connection_ends_with_its_next_answer_when_nobody_takes_it(loop: str) -> None:
    server = Server(LOOPS[loop], Limits(connection_age_s=0.001))
    try:
        with server.connect() as sock:
            headers: dict[str, str] = {}
            while "connection" not in headers:
                sock.sendall(get("/a"))
                _, headers, _ = read_answer(sock)
            assert headers["connection"] == "close"
            assert sock.recv(1) == b""
    finally:
        server.close()


# -- connections that go to another process


@pytest.fixture(params=["asyncio to uvloop", "uvloop to asyncio"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """Two servers; what the first gives, the second takes."""
    first, second = (Server(LOOPS[name]) for name in request.param.split(" to "))

    def give(parcel: Parcel) -> None:
        parcel.leaving()
        taken = socket.socket(fileno=os.dup(parcel.fd)), parcel.unanswered, parcel.replays
        parcel.close()
        second.loop.call_soon_threadsafe(second.connections.take, *taken)

    first.call(lambda: setattr(first.connections, "give", give))
    yield first, second
    first.close()
    second.close()


def test_an_idle_connection_moves_and_its_client_notices_nothing(pair: tuple[Server, Server]) -> None:
    first, second = pair
    with first.connect() as sock:
        sock.sendall(get("/a"))
        assert read_answer(sock)[2] == b"/a"
        first.call(first.connections.leave)
        assert first.do(first.connections.gone(20))
        for path in ("/b", "/c"):
            sock.sendall(get(path))
            assert read_answer(sock)[2] == path.encode()
        assert len(second.connections) == 1


def test_a_connection_moves_with_what_was_read_of_a_request(pair: tuple[Server, Server]) -> None:
    first, _ = pair
    whole = post("/", b"one body")
    with first.connect() as sock:
        sock.sendall(whole[:30])
        sock.sendall(whole[30:-3])
        until_begun(first)
        first.call(first.connections.leave)
        assert first.do(first.connections.gone(20))
        sock.sendall(whole[-3:])
        assert read_answer(sock)[2] == b"one body"


def until_begun(server: Server) -> None:
    """Wait until the server has read something of a request."""
    until(lambda: server.call(lambda: any(not one.idle for one in server.connections._live)), "a request has begun")


def test_a_connection_moves_after_its_answer_with_the_requests_behind_it(pair: tuple[Server, Server]) -> None:
    first, second = pair
    with first.connect() as sock:
        sock.sendall(get("/hold") + post("/", b"behind") + get("/hold"))
        assert first.came.acquire(timeout=20)
        first.came.release()
        first.call(first.connections.leave)
        first.release(b"held here")
        assert read_answer_of(sock) == b"held here"
        assert read_answer_of(sock) == b"behind"
        second.release(b"held there")
        assert read_answer_of(sock) == b"held there"
        assert first.do(first.connections.gone(20))


def test_a_large_upload_stays_until_it_is_answered(pair: tuple[Server, Server]) -> None:
    first, second = pair
    body = b"x" * 2_000_000
    whole = post("/", body)
    with first.connect() as sock:
        sock.sendall(whole[:1_000_000])
        until_begun(first)
        first.call(first.connections.leave)
        sock.sendall(whole[1_000_000:])
        assert read_answer(sock)[2] == body
        assert first.do(first.connections.gone(20))
        sock.sendall(get("/a"))
        assert read_answer(sock)[2] == b"/a"
        assert len(second.connections) == 1


def test_leaving_with_nobody_to_take_closes_what_is_idle_and_answers_what_is_begun(server: Server) -> None:
    with server.connect() as idle, server.connect() as busy:
        idle.sendall(get("/a"))
        read_answer(idle)
        busy.sendall(get("/hold"))
        assert server.came.acquire(timeout=20)
        server.came.release()
        server.call(server.connections.leave)
        assert idle.recv(1) == b""
        server.release(b"last")
        _, headers, body = read_answer(busy)
        assert (headers["connection"], body) == ("close", b"last")
        assert busy.recv(1) == b""
    assert server.do(server.connections.gone(20))


def test_a_listener_is_left_with_its_queue(server: Server) -> None:
    kept = socket.socket(fileno=server.call(lambda: server.connections.files("main"))[0])
    server.call(lambda: server.connections.ignore("main"))
    with server.connect() as waiting, kept:
        waiting.sendall(get("/a"))
        server.call(lambda: server.connections.listen("again", kept.dup()))
        assert read_answer(waiting)[2] == b"/a"
        assert server.call(lambda: server.connections.listening) == ("again",)


def test_more_connections_than_slots_are_served(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(server.connect()) for _ in range(40)]
        for sock in socks:
            sock.sendall(post("/", b"x" * 70_000))
        assert [len(read_answer(sock)[2]) for sock in socks] == [70_000] * 40
