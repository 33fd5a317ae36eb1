"""The reading half of a connection: however a stream of bytes is cut, the same requests come out of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow_serving.chunked import Chunked
from scanflow_serving.inbox import MAX_HEAD_BYTES, Inbox
from scanflow_serving.problems import Problem
from scanflow_serving.slots import REGION_BYTES, Table

MOST = 1024 * 1024
TABLE = Table(slots=2)

Read = tuple[str, str, str, dict[str, str], bytes]


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    slot = TABLE.take()
    yield Inbox(slot, 0, MOST)
    slot.release()


def read(stream: bytes, cuts: Sequence[int] = (), *, exact: bool = False) -> tuple[list[Read], int | None]:
    """Return the requests in a stream that comes in these pieces, and the status of the problem that ended it."""
    slot = TABLE.take()
    inbox = Inbox(slot, 0, MOST)
    found: list[Read] = []
    try:
        places = sorted({cut for cut in cuts if 0 < cut < len(stream)})
        for begin, end in zip([0, *places], [*places, len(stream)], strict=True):
            piece = stream[begin:end]
            while piece:
                room = inbox.room()
                taken = min(len(room), len(piece))
                assert taken
                room[:taken] = piece[:taken]
                inbox.filled(taken)
                piece = piece[taken:]
                while (request := inbox.next()) is not None:
                    found.append(
                        (request.method, request.path, request.query, dict(request.headers), bytes(request.body))
                    )
                    inbox.answered()
    except Problem as problem:
        # Whether a word is an unknown method or none at all cannot be said of its beginning: 501 or 400.
        return found, problem.status if exact or problem.status != 501 else 400
    finally:
        slot.release()
    return found, None


def written(path: str, body: bytes, chunks: Sequence[int] | None, more: str = "") -> bytes:
    """Return a request; ``chunks``: the sizes in which its body is sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{more}"
    if chunks is None:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    coded = b""
    for size in chunks:
        piece, body = body[:size], body[size:]
        if piece:
            coded += b"%x;note=1\r\n%b\r\n" % (len(piece), piece)
    if body:
        coded += b"%X\r\n%b\r\n" % (len(body), body)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + coded + b"0\r\nTrailer: x\r\n\r\n"


bodies = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [b"GET / HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"x" * 5000, b"y" * REGION_BYTES, b"z" * (REGION_BYTES + 9)]
    ),
)
requests = st.tuples(
    st.sampled_from(["/", "/v2/models/a/infer", "/a?b=c&d"]),
    bodies,
    st.none() | st.lists(st.integers(1, 3000), max_size=5),
)


@given(st.lists(requests, min_size=1, max_size=5), st.lists(st.integers(0, 6000), max_size=30))
def test_requests_are_the_same_however_their_bytes_are_cut(
    given_requests: list[tuple[str, bytes, list[int] | None]], cuts: list[int]
) -> None:
    stream = b"".join(written(*one) for one in given_requests)
    found, status = read(stream, cuts)
    assert status is None
    assert [(f"{path}?{query}".rstrip("?"), body) for _, path, query, _, body in found] == [
        (path, body) for path, body, _ in given_requests
    ]


@given(st.binary(max_size=60), st.integers(1, 4))
def test_a_small_stream_reads_the_same_byte_by_byte(noise: bytes, step: int) -> None:
    stream = written("/a", noise, None) + written("/b", noise, [step]) + noise
    assert read(stream) == read(stream, range(0, len(stream), step))


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=10))
def test_hostile_bytes_end_in_a_problem_or_wait_for_more(noise: bytes, cuts: list[int]) -> None:
    _, status = read(noise, cuts)
    assert status is None or 400 <= status < 600


@given(st.integers(0, 120), st.binary(min_size=1, max_size=4), st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_a_request_with_a_few_wrong_bytes_is_refused_or_read(
    place: int, noise: bytes, cuts: list[int], chunked: bool
) -> None:
    good = written("/v2", b"body", [2] if chunked else None)
    spoiled = good[:place] + noise + good[place:]
    assert read(spoiled) == read(spoiled, cuts)


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_chunks_are_read_as_the_parser_of_others_reads_them(body: bytes, sizes: list[int], cuts: list[int]) -> None:
    stream = written("/", body, sizes)

    class Theirs:
        def __init__(self) -> None:
            self.body = b""

        def on_body(self, piece: bytes) -> None:
            self.body += piece

    theirs = Theirs()
    httptools.HttpRequestParser(theirs).feed_data(stream)
    assert read(stream, cuts)[0][0][4] == theirs.body


@pytest.mark.parametrize(
    "coded",
    [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"0x1\r\na\r\n0\r\n\r\n",
        b" 1\r\na\r\n0\r\n\r\n",
        b"1 \r\na\r\n0\r\n\r\n",
        b"1\na\n0\n\n",
        b"1\r\nab\r\n0\r\n\r\n",
        b"11111111111111111\r\n",
        b"1\r\na\r\n0\r\nx\rx\r\n\r\n",
        b"1" * 5000,
        b"1\r\na\r\n0\r\n" + b"a: b\r\n" * 5000,
    ],
)
def test_what_is_no_chunked_body_is_refused(coded: bytes) -> None:
    with pytest.raises(Problem) as caught:
        Chunked(100).feed(memoryview(coded))
    assert caught.value.status in {400, 431}


def test_a_chunked_body_may_be_as_large_as_any_other_and_no_larger() -> None:
    assert Chunked(3).feed(memoryview(b"3\r\nabc\r\n0\r\n\r\n")) == (13, True)
    with pytest.raises(Problem, match="larger than the 3 bytes") as caught:
        Chunked(3).feed(memoryview(b"2\r\nab\r\n2\r\n"))
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\n\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n", 417),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (MOST + 1), 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 20000 + b"\r\n", 431),
    ],
)
def test_a_request_that_is_not_served_says_why_and_ends_the_stream(stream: bytes, status: int) -> None:
    good = written("/", b"ok", None)
    assert read(good + stream, exact=True) == (read(good)[0], status)


def test_an_offer_of_another_protocol_is_passed_over() -> None:
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    found, status = read(written("/a", b"body", None, offer) + written("/b", b"", None))
    assert status is None
    assert [one[1] for one in found] == ["/a", "/b"]


def test_targets_are_split_and_names_are_lower_case() -> None:
    stream = b"GET http://a:1/caf%C3%A9%20x?q=%20#f HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nx-a: 2\r\n\r\n"
    (found,), _ = read(stream)
    assert found == ("GET", "/café x", "q=%20", {"host": "a", "x-a": "1, 2"}, b"")


def test_a_claimed_length_takes_no_memory(inbox: Inbox) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % MOST
    inbox.room()[: len(head)] = head
    inbox.filled(len(head))
    assert inbox.next() is None
    assert len(inbox.room()) == MOST
    assert inbox.unanswered() is None  # such a body is not kept for another process


def test_what_is_read_of_a_request_is_kept_until_it_is_answered(inbox: Inbox) -> None:
    first, second = written("/a", b"1", None), written("/b", b"2", None)
    came = first + second[:20]
    inbox.room()[: len(came)] = came
    inbox.filled(len(came))
    assert inbox.next() is not None
    assert inbox.unanswered() == came
    inbox.answered()
    assert inbox.unanswered() == second[:20]


def test_a_slot_goes_back_to_the_table() -> None:
    first, second = TABLE.take(), TABLE.take()
    alone = TABLE.take()
    assert alone.memory is not first.memory
    for slot in (first, second, alone):
        slot.release()
    with socket.socket() as sock:
        slot = TABLE.take()
        slot.open(sock, 0)
        assert [fd for _, fd, _ in TABLE.files()] == [sock.fileno()]
        slot.release()
        assert TABLE.files() == []
