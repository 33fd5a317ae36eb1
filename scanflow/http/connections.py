"""HTTP connections for uvicorn whose heads are small and arrive in time: its own wait for a head without end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
"""The largest head of a request, in bytes."""

TOO_LONG: Final = f"The head of the request is longer than {MAX_HEAD_BYTES} bytes. Send fewer headers."

HEAD_S: Final = 10.0
"""How long a head may take from the opening of its connection or its first byte to its last, in seconds; and the rest
of a body, whose last byte came before an answer that did not wait for it."""


class HeadTooLargeError(Exception):
    """The parser's callback ends with it, so that uvicorn stops reading the connection."""


def check_head(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a complete head by its length, without spaces around values.

    Raises:
        HeadTooLargeError: it is longer than :data:`MAX_HEAD_BYTES`.
    """
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD_BYTES:
        raise HeadTooLargeError


def is_head_too_large(error: BaseException | None) -> bool:
    """Return whether a parser's error comes of :func:`check_head`."""
    return error is not None and isinstance(error.__context__, HeadTooLargeError)


class LimitedConnection(HttpToolsProtocol):
    """A connection that is closed while no head completes: without a word before the first byte, then with 408 or 431.

    Between requests uvicorn's ``timeout_keep_alive`` holds.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_receiving = False
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self.heard_at = 0.0
        """When its last byte arrived, on the monotonic clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.heard_at = time.monotonic()
        self._deadline = self.loop.call_later(HEAD_S, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._reads_head():
            if not self._discards_body():
                self._stop_timer()
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, TOO_LONG)
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self._expire)

    def on_headers_complete(self) -> None:
        check_head(self.url, self.headers)
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if is_head_too_large(sys.exception()):
            self._refuse(431, TOO_LONG)
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._discards_body() and not self.transport.is_closing():
            self._stop_timer()
            rest_s = max(0.0, self.heard_at + HEAD_S - time.monotonic())
            self._deadline = self.loop.call_later(rest_s, self.transport.close)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_receiving = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_receiving = False

    def close_idle(self) -> None:
        """Close it at once, as it has no request in progress."""
        self.transport.abort()

    @property
    def _cycle(self) -> Any:
        """The request that uvicorn has; None before the first, which its types do not say."""
        return self.cycle

    def _reads_head(self) -> bool:
        return self._is_receiving and (self._cycle is None or self._cycle.scope is not self.scope)

    def _discards_body(self) -> bool:
        """Return whether a request was answered before its body was complete."""
        return self._is_receiving and not self._reads_head() and self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self._head_bytes:
            self._refuse(408, f"The head of the request was not complete within {HEAD_S:g} s. Send it again.")
        else:
            self.transport.close()

    def _refuse(self, status: int, detail: str) -> None:
        """Answer, unless an earlier request is still being answered, and close."""
        self._stop_timer()
        phrase = HTTPStatus(status).phrase
        if self._cycle is None or self._cycle.response_complete:
            body = json.dumps({"type": "about:blank", "title": phrase, "status": status, "detail": detail}).encode()
            head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/problem+json\r\n"
            end = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + end.encode() + body)
        self.transport.close()
