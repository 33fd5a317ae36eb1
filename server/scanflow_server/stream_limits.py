"""Limits on clients: how many streams they have, how long one may stall, how much of an unread body is discarded.

The limits of bodies are in :mod:`~scanflow_server.api_route`.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanflow.errors import UnavailableError
from scanflow_server.token_roles import TokenHolder

STALLED_S: Final = 30.0
"""After how long without a byte read by its client a stream is closed, in seconds; a healthy client reopens it."""

MAX_DISCARDED_BYTES: Final = 64 * 2**20
"""How much of a body is discarded after an answer that did not need it; then the connection is closed."""

_DISCARD_TIMEOUT_S: Final = 10.0

_MORE = "or have the server's administrator raise SCANFLOW_MAX_STREAMS."


TOKEN_CHECK_S: Final = 0.9
"""How often the token of an open stream is checked, in seconds."""


_CLOCK_S: Final = 0.001
"""The resolution of uvloop's clock, in seconds: it may wake a waiter by as much too early."""


def compute_next_tick(period_s: float) -> float:
    """Return when the event loop's clock shows the next multiple of a period.

    What looks at something again and again waits until then, so that all of it wakes the server once: an idle stream
    costs more for its wake-ups than for what it does then.
    """
    return ((asyncio.get_running_loop().time() + _CLOCK_S) // period_s + 1) * period_s


class StreamLimit:
    """The streams, or other long requests, that are open, by the token and the team of their callers.

    A token has a quarter of all at most, and a team half, so that none keeps the others out.
    """

    def __init__(self, max_streams: int, *, what: str = "streams", advice: str = _MORE) -> None:
        """``what`` and ``advice`` are for messages."""
        self._max, self._what, self._advice = max_streams, what, advice
        self.max_of_token, self.max_of_team = max(1, max_streams // 4), max(1, max_streams // 2)
        self._by_token, self._by_team = Counter[tuple[str, str | None]](), Counter[str]()
        self.open = 0

    @contextmanager
    def hold(self, caller: TokenHolder | None) -> Iterator[None]:
        """Count a stream while inside.

        Raises:
            UnavailableError: the caller's token, its team or the server has as many as it may have.
        """
        self._check(caller)
        tokens = Counter([] if caller is None else [(caller.name, caller.team)])
        teams = Counter([] if caller is None or caller.team is None else [caller.team])
        self._by_token.update(tokens)
        self._by_team.update(teams)
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            self._by_token -= tokens  # unlike `subtract`, this removes counts of 0
            self._by_team -= teams

    def _check(self, caller: TokenHolder | None) -> None:
        if self.open >= self._max:
            raise UnavailableError(f"{self.open} {self._what} are open, the maximum. Close some, {self._advice}")
        if caller is None:
            return
        if (count := self._by_token[caller.name, caller.team]) >= self.max_of_token:
            raise UnavailableError(
                f"The token {caller.name!r} has {count} {self._what} open, the most that one token may have, a quarter "
                f"of all. Close some, use a token of its own for each program, {self._advice}"
            )
        if caller.team is not None and (count := self._by_team[caller.team]) >= self.max_of_team:
            raise UnavailableError(
                f"The team {caller.team!r} has {count} {self._what} open, the most that one team may have, half of "
                f"all. Close some, {self._advice}"
            )


class LimitedStream(StreamingResponse):
    """A streamed response that is counted while it lasts, and ends when its client stops reading or its token is no
    longer valid."""

    def __init__(
        self,
        blocks: AsyncIterator[bytes],
        streams: StreamLimit,
        *,
        media_type: str,
        headers: dict[str, str] | None = None,
        stalled_s: float = STALLED_S,
        check_s: float = TOKEN_CHECK_S,
    ) -> None:
        """``check_s``: how often the token is checked while nothing is sent, in seconds. Infinite: whoever yields the
        blocks checks it, and the response has an end also then: of one that is cut off a browser reports an error."""
        super().__init__(blocks, media_type=media_type, headers=headers)
        self._streams, self._stalled_s, self._check_s = streams, stalled_s, check_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.get("state", {})
        is_still_valid = state.get("still")

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._stalled_s):
                await send(message)

        async def send_within_limits(message: Message) -> None:
            if is_still_valid is not None and not await is_still_valid():
                if self._check_s == math.inf and message["type"] == "http.response.body":
                    await send_in_time({"type": "http.response.body"})
                raise ClientDisconnect
            await send_in_time(message)

        with self._streams.hold(state.get("caller")):
            streaming = asyncio.ensure_future(super().__call__(scope, receive, send_within_limits))
            watching = None
            if is_still_valid is not None and self._check_s < math.inf:
                watching = asyncio.ensure_future(self._wait_invalid(is_still_valid))
            try:
                await asyncio.wait(filter(None, (streaming, watching)), return_when=asyncio.FIRST_COMPLETED)
                # After these errors the connection is closed without the end of the response.
                with suppress(TimeoutError, ClientDisconnect):
                    if streaming.done():
                        streaming.result()
            finally:
                for task in filter(None, (streaming, watching)):
                    task.cancel()
                await asyncio.gather(*filter(None, (streaming, watching)), return_exceptions=True)

    async def _wait_invalid(self, is_still_valid: Callable[[], Awaitable[bool]]) -> None:
        """Return once the token is no longer valid, as when it expires, of which nothing notifies: a stream in which
        nothing happens ends then, too."""
        while await is_still_valid():
            tick = asyncio.Event()
            asyncio.get_running_loop().call_at(compute_next_tick(self._check_s), tick.set)
            await tick.wait()


class UnreadBodies:
    """Closes the connection after an answer that did not need the request's body. ASGI middleware.

    A part of the rest is discarded first, so that a client that sends all before it reads sees the answer. The HTTP
    server itself discards bodies that declare a length up to that part, and keeps their connections.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _may_be_endless(scope):
            await self._app(scope, receive, send)
            return
        is_read = False

        async def note_end() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def discard() -> None:
            size = 0
            while not is_read and size < MAX_DISCARDED_BYTES:
                size += len((await note_end()).get("body", b""))

        async def send_and_close(message: Message) -> None:
            if is_read:
                await send(message)
            elif message["type"] == "http.response.start":
                await send({**message, "headers": [*message.get("headers", []), (b"connection", b"close")]})
            elif message.get("more_body", False):
                await send(message)
            else:
                await send({**message, "more_body": True})
                with suppress(TimeoutError):
                    async with asyncio.timeout(_DISCARD_TIMEOUT_S):
                        await discard()
                await send({"type": "http.response.body"})

        await self._app(scope, note_end, send_and_close)


def _may_be_endless(scope: Scope) -> bool:
    """Return whether a request has a body without a length, or with one of more than is discarded."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or (length.isdigit() and int(length) > MAX_DISCARDED_BYTES)
