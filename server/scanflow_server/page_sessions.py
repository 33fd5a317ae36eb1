"""Sessions of the server's pages.

A session is identified by a cookie, which a browser sends to every port of the same host: whoever gets hold of it can
read and label, and change nothing else. What changes more also needs the session's key, which a page gets at the login
and keeps where no other port's pages can read it. A session is valid as long as the token that it began with: one that
a person sent, or one that this server made for a person who signed in at the provider, and that leaves it nowhere.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from scanflow_server.token_roles import TokenHolder

COOKIE: Final = "scanflow_session"
SESSION_S: Final = 12 * 3600.0
_MAX_SESSIONS = 1000

FindCaller: TypeAlias = Callable[[str], Awaitable[TokenHolder | None]]


class NoSessionError(Exception):
    """There is no valid session."""


class NewSession(NamedTuple):
    id: str
    """The value of its cookie."""

    key: str
    """What a form sends that changes more than labels."""


class _Session(NamedTuple):
    token: str
    ends: float
    is_own: bool
    """Whether the token is for it alone."""

    key: str


class Sessions:
    """The sessions of this server: valid for twelve hours, or as said, and no longer than the token is."""

    def __init__(self, callers: FindCaller, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = callers, clock
        self._sessions: dict[str, _Session] = {}

    async def begin(self, token: str, lifetime_s: float = SESSION_S, *, is_own: bool = False) -> NewSession | None:
        """Return a new session; None: the token is not valid. ``is_own``: the token is for it alone."""
        if not token or await self._find(token) is None:
            return None
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = NewSession(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._sessions[session.id] = _Session(token, self._clock() + lifetime_s, is_own, session.key)
        return session

    async def find_caller(self, session: str) -> TokenHolder | None:
        if (current := self._sessions.get(session)) is None:
            return None
        caller = await self._find(current.token) if self._clock() < current.ends else None
        if caller is None:
            self.end(session)
        return caller

    def has_key(self, session: str, key: str) -> bool:
        """Return whether that is the key of a session."""
        current = self._sessions.get(session)
        return current is not None and secrets.compare_digest(current.key.encode(), key.encode())

    def end(self, session: str) -> str | None:
        """End a session, and return the token that is for it alone; None: there is none."""
        current = self._sessions.pop(session, None)
        return current.token if current is not None and current.is_own else None
