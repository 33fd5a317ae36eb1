"""Sessions of the server's pages.

A session is identified by a cookie, which a browser sends to every port of the same host: whoever gets hold of it can
read and label, and change nothing else. It is valid as long as the token that it began with.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from scanflow_server.access import TokenHolder

COOKIE: Final = "scanflow_session"
SESSION_S: Final = 12 * 3600.0
_MAX_SESSIONS = 1000

FindCaller: TypeAlias = Callable[[str], Awaitable[TokenHolder | None]]


class NoSessionError(Exception):
    """There is no valid session."""


class Sessions:
    """The sessions of this server: valid for twelve hours, or as long as the token is."""

    def __init__(self, callers: FindCaller, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = callers, clock
        self._began: dict[str, tuple[str, float]] = {}

    async def begin(self, token: str) -> str | None:
        """Return the id of a new session; None: the token is not valid."""
        if not token or await self._find(token) is None:
            return None
        while len(self._began) >= _MAX_SESSIONS:
            del self._began[next(iter(self._began))]
        session = secrets.token_urlsafe(32)
        self._began[session] = token, self._clock()
        return session

    async def find_caller(self, session: str) -> TokenHolder | None:
        token, began = self._began.get(session, ("", 0.0))
        if not token:
            return None
        caller = await self._find(token) if self._clock() - began < SESSION_S else None
        if caller is None:
            self.end(session)
        return caller

    def end(self, session: str) -> None:
        self._began.pop(session, None)
