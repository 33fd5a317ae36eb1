"""Limits on the bodies of requests: the server and agents enforce them, and their clients keep to them.

Imports nothing beyond the standard library and our errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final, TypeVar

from scanflow.errors import InvalidError, TooLargeError

SEND_LESS: Final = "Send less."
"""The advice where a body cannot be sent in parts."""

MAX_BODY_BYTES: Final = 2**20
"""The largest body of a request whose route declares no other limit."""

MAX_DEFINITION_BYTES: Final = 4 * 2**20
"""The largest body with an application or a function. 10,000 steps of four parameters each take 3.8 MiB."""

MAX_EVENT_BYTES: Final = 256 * 2**10
"""The largest event, as JSON in UTF-8: it is stored, and sent to all who subscribe to its type."""

MAX_BATCH_BYTES: Final = MAX_BODY_BYTES - 16 * 2**10
"""How much a batch of items takes at most, so that the other fields of its request's body have room."""

STALLED_S: Final = 10.0
"""How long the next part of a body may take, in seconds."""

T = TypeVar("T")


def check_declared_length(headers: Iterable[tuple[bytes, bytes]], *, max_bytes: int, advice: str) -> None:
    """Refuse a request by its ``Content-Length``, before its body is read.

    Raises:
        TooLargeError: names the limit, and ends with ``advice``.
    """
    declared = max((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), default=0)
    if declared > max_bytes:
        raise TooLargeError(
            f"The body has {declared:,} bytes, but this route accepts at most {format_size(max_bytes)}. {advice}"
        )


async def read_body(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], *, max_bytes: int, advice: str
) -> bytes:
    """Read the body of an ASGI request; see :func:`check_declared_length` for one that declares its length.

    Raises:
        TooLargeError: it exceeds the limit; the rest is left unread.
        InvalidError: the client disconnected before its end, or stopped sending.
    """
    body, is_complete = bytearray(), False
    while not is_complete:
        try:
            async with asyncio.timeout(STALLED_S):
                message = await receive()
        except TimeoutError:
            raise InvalidError(
                f"Nothing of the body arrived for {STALLED_S:g} s, after {len(body):,} bytes. Send the request again."
            ) from None
        if message["type"] == "http.disconnect":
            raise InvalidError("The client closed the connection before the end of the body.")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise TooLargeError(f"The body is too large: this route accepts at most {format_size(max_bytes)}. {advice}")
        is_complete = not message.get("more_body", False)
    return bytes(body)


def split_batches(
    items: Iterable[T], measure: Callable[[T], int], *, max_items: int, max_bytes: int = MAX_BATCH_BYTES
) -> Iterator[list[T]]:
    """Split items into batches that each fit a request, in order.

    An item that exceeds the limit by itself is a batch of its own: the server's refusal names it.

    Args:
        items: What to send.
        measure: Returns the size of an item in the body, in bytes.
        max_items: The most items of a batch.
        max_bytes: The most bytes of a batch.
    """
    batch, size = list[T](), 0
    for item in items:
        item_size = measure(item) + 2  # with ", "
        if batch and (len(batch) >= max_items or size + item_size > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch


def format_size(n_bytes: int) -> str:
    return f"{n_bytes // 2**20} MiB" if n_bytes % 2**20 == 0 else f"{n_bytes // 2**10} KiB"
