"""Connections that send a head slowly, too large, or not at all, and those that leave a body behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from scanflow.errors import InvalidError
from scanflow.http import body_limits
from scanflow.http.body_limits import read_body
from scanflow.http.connections import HEAD_S, MAX_HEAD_BYTES, LimitedConnection

REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Timer:
    def __init__(self, timers: list[Timer], delay: float, call: Callable[[], object]) -> None:
        self.delay, self.call, self._timers = delay, call, timers

    def cancel(self) -> None:
        if self in self._timers:
            self._timers.remove(self)


class Loop:
    """Keeps timers, which the test lets run, and requests, which it answers."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.requests: list[Coroutine[Any, Any, None]] = []

    def call_later(self, delay: float, call: Callable[[], object]) -> Timer:
        self.timers.append(timer := Timer(self.timers, delay, call))
        return timer

    def create_task(self, request: Coroutine[Any, Any, None]) -> Mock:
        self.requests.append(request)
        return Mock()

    def wait(self, delay: float) -> None:
        """Let the timers run that are due within a delay."""
        for timer in [timer for timer in self.timers if timer.delay <= delay]:
            timer.cancel()
            timer.call()


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Client:
    def __init__(self) -> None:
        async def answer(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

        self.loop, self.transport = Loop(), Transport()
        config = Config(answer, log_config=None, timeout_keep_alive=75)
        self.connection = LimitedConnection(config, ServerState(), {}, self.loop)
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def get_answer(self) -> None:
        request = self.loop.requests.pop()
        with pytest.raises(StopIteration):
            request.send(None)

    @property
    def status(self) -> str:
        return self.transport.written.partition(b"\r\n")[0].decode()


def test_a_connection_without_a_word_is_closed() -> None:
    client = Client()
    client.loop.wait(HEAD_S)
    assert (client.transport.closed, client.transport.written) == (True, b"")


def test_a_head_that_is_not_complete_in_time_is_refused() -> None:
    client = Client()
    for byte in REQUEST[:-1]:
        client.send(bytes([byte]))
    client.loop.wait(HEAD_S)
    assert (client.transport.closed, client.status) == (True, "HTTP/1.1 408 Request Timeout")
    assert "was not complete within 10 s" in json.loads(client.transport.written.partition(b"\r\n\r\n")[2])["detail"]


@pytest.mark.parametrize("piece", [b"x-a: b\r\n", b"x" * 1000])
def test_a_head_that_is_too_large_is_refused(piece: bytes) -> None:
    client = Client()
    client.send(b"GET / HTTP/1.1\r\n")
    sent = 0
    while not client.transport.closed:
        client.send(piece)
        sent += len(piece)
        assert sent <= MAX_HEAD_BYTES + len(piece)
    assert client.status == "HTTP/1.1 431 Request Header Fields Too Large"
    assert client.loop.timers == []


@pytest.mark.parametrize("name", ["x-a", "x-b: 1\r\nx-a"])
def test_a_head_that_is_too_large_is_refused_even_if_it_arrives_at_once(name: str) -> None:
    client = Client()
    client.send(REQUEST[:-2] + name.encode() + b": " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n")
    assert client.status == "HTTP/1.1 431 Request Header Fields Too Large"
    assert (client.transport.closed, client.loop.requests) == (True, [])


def test_a_head_of_the_largest_size_is_read() -> None:
    client = Client()
    client.send(REQUEST[:-2] + b"x-a: " + b"a" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n")
    client.get_answer()
    assert client.status == "HTTP/1.1 200 OK"


def test_a_request_in_time_is_answered_and_its_connection_kept_as_long_as_usual() -> None:
    client = Client()
    client.send(REQUEST[:10])
    client.send(REQUEST[10:])
    client.get_answer()
    assert client.status == "HTTP/1.1 200 OK"
    client.loop.wait(HEAD_S)
    assert (client.transport.closed, [timer.delay for timer in client.loop.timers]) == (False, [75])


def test_half_a_request_after_another_one_is_not_waited_for_longer() -> None:
    client = Client()
    client.send(REQUEST)
    client.get_answer()
    client.send(REQUEST[:10])
    client.loop.wait(HEAD_S)
    assert client.transport.closed
    assert b"408" in client.transport.written


def test_a_body_that_no_one_waits_for_is_not_waited_for() -> None:
    client = Client()
    client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nabc")
    client.get_answer()
    client.send(b"d")
    assert not client.transport.closed
    client.loop.wait(HEAD_S)
    assert client.transport.closed


def test_a_body_that_stopped_before_its_answer_is_not_waited_for_again() -> None:
    client = Client()
    client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nabc")
    client.connection.heard_at -= HEAD_S
    client.get_answer()
    client.loop.wait(0.0)
    assert client.transport.closed


def test_the_rest_of_a_body_keeps_the_connection() -> None:
    client = Client()
    client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nabc")
    client.get_answer()
    client.send(b"d")
    client.loop.wait(HEAD_S)
    assert not client.transport.closed


def test_a_body_that_stops_arriving_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "STALLED_S", 0)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(InvalidError, match=r"Nothing of the body arrived for 0 s, after 0 bytes. Send the request"):
        asyncio.run(read_body(receive, max_bytes=10, advice=""))
