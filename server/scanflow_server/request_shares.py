"""The requests that are answered at once, shared among tokens and teams: a busy token keeps no other one waiting.

Streams are counted until they begin; afterwards :mod:`~scanflow_server.stream_limits` counts them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scanflow.errors import OverLimitError
from scanflow_server.request_problems import make_problem_response
from scanflow_server.token_roles import TokenHolder

_WAITING_PER_REQUEST: Final = 16
"""How many requests of one token wait, for each that may be answered at once."""

_Token = tuple[str, str | None]


class RequestShares:
    """Whose requests are answered, and whose wait. Belongs to one event loop.

    A token has a quarter of all at most, and a team half. What exceeds that waits its turn behind requests of the same
    token only; tokens take turns.
    """

    def __init__(self, max_requests: int) -> None:
        self._max, self.max_waiting = max_requests, _WAITING_PER_REQUEST * max_requests
        self.max_of_token, self.max_of_team = max(1, max_requests // 4), max(1, max_requests // 2)
        self._by_token, self._by_team = Counter[_Token](), Counter[str]()
        self._waiting = OrderedDict[_Token, deque[asyncio.Future[None]]]()
        self.refused = 0

    @property
    def answered(self) -> int:
        """The requests that are being answered."""
        return self._by_token.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def acquire(self, caller: TokenHolder) -> None:
        """Wait until a request of this caller may be answered; :meth:`release` it afterwards.

        Raises:
            OverLimitError: too many of the same token wait already.
        """
        token = caller.name, caller.team
        queue = self._waiting.get(token)
        if queue is None and self._fits(token):
            self._count(token)
            return
        if len(queue or ()) >= self.max_waiting:
            self.refused += 1
            raise OverLimitError(
                f"{len(queue or ()):,} requests of the token {caller.name!r} wait for an answer, the most that one "
                "token may have. Nothing was done. Send fewer at once, use a token of its own for each program, or "
                "have the server's administrator raise SCANFLOW_MAX_REQUESTS."
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(token, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:  # the client is gone
            if turn.done() and not turn.cancelled():
                self.release(caller)
            else:
                self._drop(token, turn)
            raise

    def release(self, caller: TokenHolder) -> None:
        """Count a request as answered, and let those that wait have their turn."""
        token = caller.name, caller.team
        self._by_token -= Counter([token])
        self._by_team -= Counter([] if caller.team is None else [caller.team])
        for next_token in list(self._waiting):
            if self._fits(next_token):
                turn = self._waiting[next_token][0]
                self._drop(next_token, turn)
                if next_token in self._waiting:
                    self._waiting.move_to_end(next_token)
                if not turn.done():
                    self._count(next_token)
                    turn.set_result(None)
                    return

    def _fits(self, token: _Token) -> bool:
        team = token[1]
        return (
            self.answered < self._max
            and self._by_token[token] < self.max_of_token
            and (team is None or self._by_team[team] < self.max_of_team)
        )

    def _count(self, token: _Token) -> None:
        self._by_token[token] += 1
        if token[1] is not None:
            self._by_team[token[1]] += 1

    def _drop(self, token: _Token, turn: asyncio.Future[None]) -> None:
        queue = self._waiting[token]
        queue.remove(turn)
        if not queue:
            del self._waiting[token]


class SharedRequests:
    """Has each request with a token wait for its share. ASGI middleware, behind the one that finds the caller."""

    def __init__(self, app: ASGIApp, *, shares: RequestShares) -> None:
        self._app, self._shares = app, shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: TokenHolder | None = scope.get("state", {}).get("caller")
        if scope["type"] != "http" or caller is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._shares.acquire(caller)
        except OverLimitError as error:
            await make_problem_response(error)(scope, receive, send)
            return
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._shares.release(caller)

        async def release_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                release()
            await send(message)

        try:
            await self._app(scope, receive, release_and_send)
        finally:
            release()
