"""The reading half of a connection: bytes go in, whole requests come out, one at a time and in order.

Nothing here does any input or output, so that it can be tried with every way in which a stream can be cut.
"""

from __future__ import annotations

import mmap
import time
from typing import Final
from urllib.parse import unquote

import httptools

from scanflow_serving.chunked import Chunked
from scanflow_serving.messages import Request
from scanflow_serving.problems import Problem
from scanflow_serving.slots import IDLE, NOWHERE, REGION_BYTES, Slot

__all__ = ["MAX_HEAD_BYTES", "Inbox"]

MAX_HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request line and its headers together."""

HEAD_S: Final = 10.0
"""Longest that a head may take from its first byte to its last."""

BODY_S: Final = 30.0
"""Longest that a body may take, beside what its length allows at the lowest rate."""

LOWEST_RATE: Final = 16 * 1024
"""Bytes a second that a sender must reach on average."""

_END: Final = b"\r\n\r\n"
_names: dict[bytes, str] = {}
_targets: dict[bytes, tuple[str, str]] = {}
_REMEMBERED: Final = 512
_ONLY_ONCE: Final = frozenset({"host", "content-length", "content-type", "inference-header-content-length"})


class Inbox:
    """What came on a connection and is not answered yet. The kernel writes straight into its slot's area."""

    def __init__(self, slot: Slot, position: int, most: int, *, ahead: int = 0, replays: int = 0) -> None:
        """``most``: bytes of a body. ``ahead``: bytes that are in the area already, read by another process.

        ``position`` is that of the area's first byte.
        """
        self.expects = False
        """Whether the sender waits to be told that it may send the body."""

        self.keep_alive = True
        """Whether another request may follow the one at hand."""

        self.old = False
        """Whether the sender speaks HTTP/1.0."""

        self._slot = slot
        self._area = slot.area
        self._most = most
        self._origin = position
        self._start = 0  # where the request at hand begins in the area
        self._used = ahead
        self._fed = 0  # up to here the parser has seen it
        self._next = 0  # where the request after it begins
        self._parser: httptools.HttpRequestParser | None = None
        self._request: Request | None = None
        self._head_is_whole = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._length = 0
        self._large: memoryview | None = None
        self._got = 0
        self._chunks: Chunked | None = None
        self._received = 0.0
        self._kept = True  # whether the area holds all of the request at hand
        self._replayed = replays > 0
        self._twice = ""

    @property
    def begun(self) -> bool:
        """Whether there is something of a request that is not answered."""
        return self._parser is not None or self._request is not None or self._used > self._start

    @property
    def full(self) -> bool:
        """Whether no more can be read before the request at hand is answered."""
        return self._used == REGION_BYTES and self._large is None

    @property
    def empty(self) -> bool:
        """Whether nothing was read beyond the request at hand."""
        return self._next == self._used

    @property
    def next_at(self) -> int:
        """The position at which the next request begins."""
        return self._origin + self._next

    @property
    def due(self) -> float:
        """When, on the monotonic clock, a request that has begun must have come whole."""
        if self._request is None:
            return self._received + HEAD_S
        got = len(self._chunks.body) if self._chunks else self._got or self._used
        return self._received + HEAD_S + BODY_S + got / LOWEST_RATE

    def unanswered(self) -> bytes | None:
        """Return what was read and not answered; None: it was not kept."""
        if not self._kept:
            return None
        return bytes(self._area[self._start : self._used])

    def room(self) -> memoryview:
        """Return where the next bytes go. It is never empty unless :attr:`full`."""
        if self._large is not None:
            return self._large[self._got :]
        return self._area[self._used :] if self._used else self._area

    def filled(self, count: int) -> None:
        """Note that so many bytes were written there."""
        if self._large is not None:
            self._got += count
            return
        self._used += count
        if self._used > self._slot.high:
            self._slot.high = self._used

    def next(self) -> Request | None:
        """Return the next request if it is whole. It is to be :meth:`answered` before the next call.

        Raises:
            Problem: what came is no request, or one that is not accepted. The stream cannot be read any further.
        """
        if self._request is None and not self._read_head():
            return None
        if not self._read_body():
            return None
        self.expects = False  # who sent the body already need not be asked for it
        return self._request

    def answered(self) -> None:
        """Forget the request at hand."""
        if self._next == self._used:
            self._origin += self._next
            self._start = self._used = 0
        else:
            self._start = self._next
        slot = self._slot
        slot.begins(self._origin + self._start, self._origin)  # before the phase: else an answered one looks new
        slot.phase = IDLE
        if self._replayed:
            slot.replays, self._replayed = 0, False
        self._next = self._start
        self._parser = self._request = self._large = self._chunks = None
        self._got = 0
        self._kept = True

    # -- the head

    def _read_head(self) -> bool:
        if self._start == self._used:
            return False
        parser = self._parser
        if parser is None:
            parser = self._begin()
        memory, base = self._slot.memory, self._slot.area_at
        while self._fed < self._used:
            end = memory.find(_END, base + max(self._start, self._fed - 3), base + self._used)
            stop = self._used if end < 0 else end + 4 - base
            self._feed(parser, self._area[self._fed : stop])
            self._fed = stop
            if stop - self._start > MAX_HEAD_BYTES:
                raise Problem(431, f"The head of the request is longer than {MAX_HEAD_BYTES} bytes.")
            if self._head_is_whole:
                if end < 0:
                    raise Problem(400, "The head of the request does not end in an empty line.")
                self._examine(parser)
                return True
        if self._used == REGION_BYTES:
            self._compact()
        return False

    def _begin(self) -> httptools.HttpRequestParser:
        self._parser = parser = httptools.HttpRequestParser(self)
        self._received = time.monotonic()
        self._fed = self._start
        self._head_is_whole = False
        self._url = b""
        self._headers = {}
        return parser

    @staticmethod
    def _feed(parser: httptools.HttpRequestParser, data: memoryview) -> None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer to speak another protocol may be passed over (RFC 9110, 7.8)
        except httptools.HttpParserInvalidMethodError as error:
            word = bytes(data[:32]).partition(b" ")[0]
            if word.isalpha() and word.isupper() and len(word) < 32:
                raise Problem(501, f"There is no method {word.decode()!r}.") from error
            raise Problem(400, "This is no HTTP/1.1 request: it does not begin with a method.") from error
        except httptools.HttpParserError as error:
            raise Problem(400, f"This is no HTTP/1.1 request: {error}.") from error

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the request's target (the parser calls this)."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header (the parser calls this)."""
        known = _names.get(name)
        if known is None:
            known = name.decode("latin-1").lower()
            if len(_names) < _REMEMBERED:
                _names[name] = known
        headers = self._headers
        text = value.decode("latin-1")
        if known in headers:
            if known in _ONLY_ONCE:
                self._twice = known
            headers[known] = f"{headers[known]}, {text}"
        else:
            headers[known] = text

    def on_headers_complete(self) -> None:
        """Note that the head is whole (the parser calls this)."""
        self._head_is_whole = True
        assert self._parser is not None
        self.keep_alive = self._parser.should_keep_alive()

    def _examine(self, parser: httptools.HttpRequestParser) -> None:
        """Make the request from its head, and learn how its body comes."""
        headers = self._headers
        version = parser.get_http_version()
        self.old = version == "1.0"
        if version != "1.1" and version != "1.0":
            raise Problem(505, f"HTTP/{version} is not spoken here: HTTP/1.1 is.")
        if "host" not in headers and not self.old:
            raise Problem(400, "The request has no header 'Host'.")
        if self._twice:
            raise Problem(400, f"The request has more than one header {self._twice!r}.")
        target = _targets.get(self._url)
        if target is None:
            target = _split(self._url)
            if len(_targets) < _REMEMBERED:
                _targets[self._url] = target
        self._length = 0
        if "content-length" in headers:
            self._length = int(headers["content-length"])  # the parser took it for a number
            if self._length > self._most:
                raise _too_large(self._length, self._most)
        elif "transfer-encoding" in headers:
            self._begin_chunks(headers["transfer-encoding"])
        self.expects = "expect" in headers and self._expectation(headers["expect"])
        self._request = Request(
            parser.get_method().decode(), *target, headers, received=self._received, slot=self._slot
        )

    def _begin_chunks(self, coding: str) -> None:
        if self.old:
            raise Problem(400, "HTTP/1.0 has no header 'Transfer-Encoding'.")
        if coding.strip().lower() != "chunked":
            raise Problem(501, f"The transfer coding {coding[:80]!r} is not known: 'chunked' is.")
        self._chunks = Chunked(self._most)

    def _expectation(self, word: str) -> bool:
        if word.lower() != "100-continue":
            raise Problem(417, f"The expectation {word[:80]!r} cannot be met: '100-continue' can.")
        return not self.old

    # -- the body

    def _read_body(self) -> bool:
        """Return whether the body is whole; then the request has it."""
        request = self._request
        assert request is not None
        if self._chunks is not None:
            return self._read_chunks(self._chunks, request)
        if self._large is not None:
            if self._got < self._length:
                return False
            request.body, self._large = self._large, None  # what follows goes to the area again
            return True
        end = self._fed + self._length
        if end <= self._used:
            if self._length:
                request.body = bytes(self._area[self._fed : end])
            self._next = end
            return True
        if end > REGION_BYTES:
            self._compact()
            if self._fed + self._length > REGION_BYTES:
                self._begin_large()
        return False

    def _begin_large(self) -> None:
        """Receive the rest where numpy can read it. It is not kept for another process."""
        try:
            # Pages come as they are written: a length that is only claimed costs nothing.
            whole = memoryview(mmap.mmap(-1, self._length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        except OSError as error:
            raise Problem(503, f"There is no memory for a body of {self._length} bytes.", retry_after_s=1) from error
        self._got = self._used - self._fed
        whole[: self._got] = self._area[self._fed : self._used]
        end = self._origin + self._fed + self._length
        self._slot.begins(self._origin + self._start, end)
        self._origin, self._large, self._kept = end, whole, False
        self._start = self._used = self._fed = self._next = 0

    def _read_chunks(self, chunks: Chunked, request: Request) -> bool:
        consumed, whole = chunks.feed(self._area[self._fed : self._used])
        self._fed += consumed
        if whole:
            request.body = chunks.body
            self._next = self._fed
        elif self._used == REGION_BYTES:
            if self._kept:
                self._slot.begins(self._origin + self._start, NOWHERE)
            self._origin += self._used
            self._start, self._used, self._fed, self._kept = 0, 0, 0, False
        return whole

    def _compact(self) -> None:
        """Move what was read to the area's beginning."""
        start = self._start
        if start <= 0:
            return
        kept = self._used - start
        self._slot.begins(self._origin + start, NOWHERE)  # while it moves it is in no state to be taken over
        self._area[:kept] = self._area[start : self._used]
        self._origin += start
        self._start, self._used, self._fed = 0, kept, self._fed - start
        self._slot.begins(self._origin, self._origin)


def _too_large(size: int, most: int) -> Problem:
    return Problem(413, f"The body of {size} bytes is larger than the {most} bytes that are allowed.")


def _split(url: bytes) -> tuple[str, str]:
    """Return the path and the query of a request's target."""
    target = url.decode("latin-1")
    if not target.startswith("/") and target != "*":
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError as error:
            raise Problem(400, f"The request's target {target[:80]!r} is none.") from error
        target = (parsed.path or b"/").decode("latin-1") + (
            f"?{parsed.query.decode('latin-1')}" if parsed.query else ""
        )
    path, _, query = target.partition("#")[0].partition("?")
    return (unquote(path) if "%" in path else path), query
