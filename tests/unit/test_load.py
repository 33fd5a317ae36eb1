"""The load generator that tests and benchmarks lean on: what it sends, what it counts, and what it calls a failure."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from tests.load import steady_load
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

Answer = Callable[[BaseHTTPRequestHandler, int], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answer: Answer
    asked = 0
    lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, _Server)
        self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            number, self.server.asked = self.server.asked, self.server.asked + 1
        self.server.answer(self, number)

    def log_message(self, format: str, *args: object) -> None:
        pass


def say(handler: BaseHTTPRequestHandler, status: int = 200, body: bytes = b'{"right": true}') -> None:
    handler.wfile.write(b"HTTP/1.1 %d Well\r\nx-who: me\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    with _Server(("127.0.0.1", 0), _Handler) as serving:
        serving.answer = answer
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}/infer"
        finally:
            serving.shutdown()
            thread.join()


def test_every_request_is_counted_and_so_is_who_answered() -> None:
    with (
        server(lambda handler, number: say(handler)) as url,
        steady_load(url, b"{}", connections=4, requests=200, expect="right", tally="X-Who") as load,
    ):
        result = load.read_result()
    assert (result.requests, result.failed, result.tally, result.statuses) == (200, 0, {"me": 200}, {200: 200})
    figures = result.metrics()
    assert 0 < figures.p50_s <= figures.p95_s <= figures.p99_s <= figures.max_s


def test_a_steady_rate_is_kept_and_a_pause_of_the_server_is_met_by_all_who_were_due_in_it() -> None:
    held = threading.Event()

    def pause(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 50:
            held.wait(0.5)
        say(handler)

    with server(pause) as url, steady_load(url, b"{}", connections=1, requests=300, rate=200) as load:
        result = load.read_result()
    assert result.failed == 0
    gaps = [later - sooner for sooner, later in zip(sorted(result.due), sorted(result.due)[1:], strict=False)]
    assert max(gaps) < 0.006  # due every 5 ms, whatever the server did
    assert sum(took > 0.1 for took in result.took) > 50  # one of them was held; the others waited behind it


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda handler, number: say(handler, 503, b"full"), "503: full"),
        (lambda handler, number: say(handler, 200, b"wrong"), "another answer: wrong"),
        (lambda handler, number: handler.connection.shutdown(2), "closed without an answer"),
        (lambda handler, number: handler.wfile.write(b"SMTP\r\n\r\n"), "not HTTP"),
    ],
    ids=["a status", "another body", "no answer", "no HTTP"],
)
def test_a_failure_is_counted_with_its_reason(answer: Answer, reason: str) -> None:
    with server(answer) as url, steady_load(url, b"{}", connections=2, requests=10, expect="right") as load:
        result = load.read_result()
    assert (result.requests, result.failed) == (10, 10)
    assert all(text.startswith(reason) for text in result.reasons), result.reasons


def test_a_load_ends_with_who_wanted_it() -> None:
    code = (
        "import sys, threading; from scanflow.load.load_process import LoadGenerator, LoadPlan\n"
        "with LoadGenerator(LoadPlan(url=sys.argv[1], duration_s=600)) as load:\n"
        "    print(load._process.pid, flush=True); threading.Event().wait()"
    )
    with server(lambda handler, number: say(handler)) as url:
        command = [sys.executable, "-c", code, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as wanting:
            assert wanting.stdout is not None
            sending = psutil.Process(int(wanting.stdout.readline()))
            wanting.kill()
        sending.wait(PATIENCE_S)


def test_an_answer_that_never_comes_is_a_failure() -> None:
    ended = threading.Event()

    def never(handler: BaseHTTPRequestHandler, number: int) -> None:
        ended.wait(PATIENCE_S)

    with server(never) as url:
        with steady_load(url, b"{}", connections=2, requests=2, timeout_s=0.3) as load:
            result = load.read_result()
        ended.set()
    assert dict(result.reasons) == {"timeout": 2}


def test_a_connection_closed_between_two_requests_is_no_failure() -> None:
    def once(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.close_connection = True
        # The answer leaves with the end of the connection, so that no request can come between the two.
        handler.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        say(handler)
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_WR)

    with server(once) as url, steady_load(url, b"{}", connections=1, requests=10, rate=10) as load:
        result = load.read_result()
    assert result.failed == 0
    assert result.reconnects >= 8
