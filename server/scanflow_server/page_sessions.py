"""Sessions of the server's pages.

A session is identified by a cookie, which a browser sends to every port of the same host: whoever gets hold of it can
read and label, and change nothing else. It is valid as long as the token that it began with: one that a person sent, or
one that this server made for a person who signed in at the provider, and that leaves it nowhere.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from scanflow_server.token_roles import TokenHolder

COOKIE: Final = "scanflow_session"
SESSION_S: Final = 12 * 3600.0
_MAX_SESSIONS = 1000

FindCaller: TypeAlias = Callable[[str], Awaitable[TokenHolder | None]]


class NoSessionError(Exception):
    """There is no valid session."""


class Sessions:
    """The sessions of this server: valid for twelve hours, or as said, and no longer than the token is."""

    def __init__(self, callers: FindCaller, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = callers, clock
        self._tokens: dict[str, tuple[str, float, bool]] = {}
        """The token of each session, when the session ends, and whether the token is for it alone."""

    async def begin(self, token: str, lifetime_s: float = SESSION_S, *, is_own: bool = False) -> str | None:
        """Return the id of a new session; None: the token is not valid. ``is_own``: the token is for it alone."""
        if not token or await self._find(token) is None:
            return None
        while len(self._tokens) >= _MAX_SESSIONS:
            del self._tokens[next(iter(self._tokens))]
        session = secrets.token_urlsafe(32)
        self._tokens[session] = token, self._clock() + lifetime_s, is_own
        return session

    async def find_caller(self, session: str) -> TokenHolder | None:
        token, ends, _ = self._tokens.get(session, ("", 0.0, False))
        if not token:
            return None
        caller = await self._find(token) if self._clock() < ends else None
        if caller is None:
            self.end(session)
        return caller

    def end(self, session: str) -> str | None:
        """End a session, and return the token that is for it alone; None: there is none."""
        token, _, is_own = self._tokens.pop(session, ("", 0.0, False))
        return token if is_own else None
