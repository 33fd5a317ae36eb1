"""Asking a server that may be away, restarted in the middle, or somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx2
import pytest
import stamina

from scanflow.errors import InternalError, InvalidError, NotFoundError, OverLimitError, UnavailableError, UsageError
from scanflow.http.problems import build_problem
from scanflow.transport import ServerClient, build_path
from scanflow.transport.clients import parse_retry_after
from scanflow.transport.server_client import MAX_WAIT_S

Handler = Callable[[httpx2.Request], httpx2.Response]
URL = "http://127.0.0.1:46666"


class Broken(httpx2.SyncByteStream):
    def __init__(self, *blocks: bytes) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._blocks
        raise httpx2.ReadError("the server was killed")


def make_broken_response(*blocks: bytes) -> httpx2.Response:
    return httpx2.Response(200, stream=Broken(*blocks))


def make_handler(*answers: httpx2.Response | Exception) -> tuple[Handler, list[httpx2.Request]]:
    asked: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handle, asked


def server(handler: Handler, *, token: str | None = None) -> ServerClient:
    return ServerClient(URL, token=token, transport=httpx2.MockTransport(handler))


ATTEMPTS = 5


@pytest.fixture(autouse=True)
def waits() -> Iterator[None]:
    with stamina.set_testing(True, attempts=ATTEMPTS):
        yield


AWAY = httpx2.ConnectError("Connection refused")


def test_a_document_comes_back_and_the_token_goes_along() -> None:
    handle, asked = make_handler(httpx2.Response(200, json=[{"name": "a"}]))
    assert server(handle, token="abc").get(build_path("runs"), limit=3, type=None) == [{"name": "a"}]
    assert str(asked[0].url) == f"{URL}/api/v1/runs?limit=3"
    assert asked[0].headers["authorization"] == "Bearer abc"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (httpx2.Response(404, json=build_problem(NotFoundError("No run 'x'."))[1]), NotFoundError, r"^No run 'x'\.$"),
        (httpx2.Response(200, text="<html>"), UnavailableError, "is not a scanflow server"),
        (httpx2.Response(500, text="oops"), InternalError, r"127\.0\.0\.1:46666 answered 500: oops"),
    ],
    ids=["ours", "another program", "a proxy"],
)
def test_what_the_server_raised_is_raised_here(answer: httpx2.Response, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        server(make_handler(answer)[0]).get(build_path("runs", "x"))


def test_a_server_that_is_not_there_is_named_with_the_next_command_and_not_waited_for() -> None:
    handle, asked = make_handler(AWAY)
    for ask in (
        lambda client: client.get("/runs"),
        lambda client: client.post("/runs", {}, key="k"),
        lambda client: [*client.events("/e")],
    ):
        with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:46666 cannot be reached .* scanflow up"):
            ask(server(handle))
    assert len(asked) == 3


def test_a_wish_where_the_answer_was_lost_is_sent_again_under_the_same_name() -> None:
    handle, asked = make_handler(httpx2.ReadError("gone"), AWAY, httpx2.Response(201, json={"name": "r"}))
    assert server(handle).post("/runs", {"a": 1}, key="k1") == {"name": "r"}
    assert [request.headers["idempotency-key"] for request in asked] == ["k1"] * 3
    assert {request.content for request in asked} == {b'{"a":1}'}


def test_a_wish_without_a_name_is_not_sent_twice() -> None:
    handle, asked = make_handler(httpx2.ReadError("gone"))
    with pytest.raises(UnavailableError):
        server(handle).put("/agents/a/b", {})
    assert len(asked) == 1


def test_what_was_too_much_at_once_is_repeated_whatever_it_is_and_not_for_ever() -> None:
    status, problem = build_problem(OverLimitError("4 requests wait."))
    busy = httpx2.Response(status, json=problem, headers={"retry-after": "1"})
    handler, asked = make_handler(busy, busy, httpx2.Response(200, json={"id": 1}))
    with_a_body = server(handler)
    assert with_a_body.post("/labels", {"id": "a"}) == {"id": 1}, "nothing was done of it, so that it needs no key"
    assert [request.content for request in asked] == [b'{"id":"a"}'] * 3
    handler, asked = make_handler(busy)
    with pytest.raises(OverLimitError, match="4 requests wait"):
        server(handler).get("/runs")
    assert len(asked) == ATTEMPTS
    waits = [parse_retry_after(httpx2.Response(429, headers=headers), MAX_WAIT_S) for headers in WAITS]
    assert waits == [3.0, 5.0, 0.1]


WAITS = ({"retry-after": "3"}, {"retry-after": "3600"}, {"retry-after": "soon"})


def test_a_server_that_stays_away_is_given_up_after_a_bounded_time() -> None:
    handle, asked = make_handler(httpx2.ReadError("gone"), AWAY)
    with pytest.raises(UnavailableError, match="scanflow up"):
        server(handle).get("/runs")
    assert len(asked) == ATTEMPTS


def test_events_go_on_after_the_last_one_when_the_server_was_restarted() -> None:
    handle, asked = make_handler(
        make_broken_response(b"id: 1\ndata: a\n\n", b"id: 2\ndata: b\n\nid: 3\ndata: cut"),
        AWAY,
        httpx2.Response(503, json={}),
        httpx2.Response(200, content=b"id: 3\ndata: c\n\n"),
    )
    assert [event.data for event in server(handle).events("/events", type="run.failed")] == ["a", "b", "c"]
    assert [request.headers.get("last-event-id") for request in asked] == [None, "2", "2", "2"]
    assert {request.url.params["type"] for request in asked} == {"run.failed"}
    assert {request.headers["accept"] for request in asked} == {"text/event-stream"}


@pytest.mark.parametrize("numbered", [True, False])
def test_no_event_is_reported_twice_by_a_server_that_begins_at_the_first(numbered: bool) -> None:
    blocks = [f"{f'id: {number}' if numbered else ': -'}\ndata: {number}\n\n".encode() for number in range(1, 5)]
    handle, _ = make_handler(
        make_broken_response(*blocks[:2]),
        make_broken_response(*blocks[:3]),
        httpx2.Response(200, content=b"".join(blocks)),
    )
    assert [event.data for event in server(handle).events("/events")] == ["1", "2", "3", "4"]


def test_a_quiet_stream_is_opened_again_for_as_long_as_the_server_is_there() -> None:
    class Quiet(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from ()
            raise httpx2.ReadTimeout("nothing")

    quiet = [httpx2.Response(200, stream=Quiet()) for _ in range(100)]
    handle, asked = make_handler(*quiet, httpx2.Response(200, content=b"data: x\n\n"))
    assert [event.data for event in server(handle).events("/e")] == ["x"]
    assert len(asked) == 101


def test_bytes_go_on_where_they_stood() -> None:
    handle, _ = make_handler(
        make_broken_response(b"one ", b"two "),
        make_broken_response(b"on"),
        httpx2.Response(200, content=b"one two three"),
    )
    assert b"".join(server(handle).stream("/logs", stream="stdout")) == b"one two three"


def test_a_stream_that_is_refused_says_why() -> None:
    status, document = build_problem(NotFoundError("There is no log."))
    handle, asked = make_handler(httpx2.Response(status, json=document))
    with pytest.raises(NotFoundError, match="There is no log"):
        list(server(handle).stream("/logs"))
    assert len(asked) == 1


@pytest.mark.parametrize(
    "url", ["", "localhost:46666", "ftp://x", "http://", "http://x:99999", "http://x:0", "http://h?a=1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidError, match="is not the address of a server"):
        ServerClient(url)
    with pytest.raises(InvalidError, match="SCANFLOW_TOKEN") as error:
        ServerClient("http://me:secret@h:1")
    assert "secret" not in str(error.value)
    for token in ("", " a", "a\nb", "ä"):
        with pytest.raises(InvalidError, match="token cannot be sent"):
            ServerClient(URL, token=token)


def test_a_name_cannot_become_another_path() -> None:
    assert build_path("runs", "@latest", "steps", "a?b") == "/runs/@latest/steps/a%3Fb"
    for name in ("", ".", "..", "a/b"):
        with pytest.raises(UsageError):
            build_path("runs", name)


def test_readiness_is_reported_with_the_message_of_the_server() -> None:
    handle, _ = make_handler(httpx2.Response(503, text="migrating"), AWAY, httpx2.Response(200, text="ready"))
    client = server(handle)
    assert [client.is_ready() for _ in range(3)] == [
        (False, "migrating"),
        (False, "Connection refused"),
        (True, "ready"),
    ]


def test_what_cannot_be_written_as_json_is_refused_before_it_is_sent() -> None:
    handle, asked = make_handler(httpx2.Response(200, json={}))
    with pytest.raises(InvalidError, match="cannot be serialized as JSON"):
        server(handle).post("/runs", {"x": float("nan")})
    assert asked == []
