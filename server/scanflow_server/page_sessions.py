"""Sessions of the server's pages.

A session is identified by a cookie, which a browser sends to every port of the same host: whoever gets hold of it can
read and label, and change nothing else. What changes more also needs the session's key, which a page gets at the login
and keeps where no other port's pages can read it. A session is valid as long as the token that it began with: one that
a person sent, or one that this server made for a person who signed in at the provider, and that leaves it nowhere.

A program with a token gets a code, with which a browser begins a session of that token: once, and within a minute.

Sessions and codes are in the database, so that they outlast the server and all servers of a database share them. It has
hashes of the cookie or code, the key and the token alone.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from scanflow.http.home_token import hash_token
from scanflow_server.server_context import ServerContext
from scanflow_server.store import session_store
from scanflow_server.store.session_store import SessionRow
from scanflow_server.token_roles import TokenHolder

COOKIE: Final = "scanflow_session"
"""What the name of each session's cookie begins with."""

SESSION_S: Final = 12 * 3600.0
CODE_S: Final = 60.0
"""How long a code may be used, in seconds."""

MAX_SESSIONS: Final = 100
"""How many sessions and codes a caller has at once: nobody ends another's by beginning many."""

OWN_FRESH_S: Final = 60.0
SHARED_FRESH_S: Final = 2.0
"""How long a row that was read is used, if nothing was written here since: other servers write to a shared database."""

_MAX_CACHED: Final = 1000

FindCaller: TypeAlias = Callable[[str], Awaitable[TokenHolder | None]]


def get_cookie_name(request: HTTPConnection) -> str:
    """Return the name of the cookie of a session with the server at the port that the browser uses: each port has a
    cookie of its own, so that a login at one server of a host ends no session with another."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


def read_session(request: HTTPConnection) -> str:
    """Return the session that the browser says it has; empty: none."""
    return request.cookies.get(get_cookie_name(request), "")


class NoSessionError(Exception):
    """There is no valid session."""


class NewSession(NamedTuple):
    id: str
    """The value of its cookie."""

    key: str
    """What a form sends that changes more than labels."""


class CodeOwner(NamedTuple):
    """For whom a session begins by a code."""

    token_hash: str
    holder: TokenHolder


class _ReadRow(NamedTuple):
    row: SessionRow | None
    changes: int
    """Of the store, before it was read."""

    at: float


class Sessions:
    """The sessions of browsers: valid for twelve hours, or as said, and no longer than the token is.

    ``find_holder`` returns the holder of a token by the token's hash; None: it is not valid. Of no step's token, which
    is stored nowhere: a step needs no pages.
    """

    def __init__(self, context: ServerContext, find_holder: FindCaller) -> None:
        self._context, self._find_holder = context, find_holder
        self._rows: dict[str, _ReadRow] = {}
        self._fresh_s = SHARED_FRESH_S if context.store.file is None else OWN_FRESH_S

    async def begin(self, token: str, lifetime_s: float = SESSION_S, *, is_own: bool = False) -> NewSession | None:
        """Return a new session; None: the token is not valid. ``is_own``: the token is for it alone."""
        return await self.begin_by_hash(hash_token(token), lifetime_s, is_own=is_own)

    async def begin_by_hash(
        self, token_hash: str, lifetime_s: float = SESSION_S, *, is_own: bool = False
    ) -> NewSession | None:
        """Do what :meth:`begin` does, for a token of which only the hash is known."""
        if await self._find_holder(token_hash) is None:
            return None
        session = NewSession(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        row = SessionRow(
            id_hash=hash_token(session.id), key_hash=hash_token(session.key), token_hash=token_hash, is_own=is_own,
            ends=self._context.clock() + lifetime_s,
        )  # fmt: skip
        await run_in_threadpool(self._add, row)
        return session

    async def find_caller(self, session: str) -> TokenHolder | None:
        """Return the holder of a session's token, and end a session whose token is not valid any more."""
        row = await self._find_cached(session)
        if row is None:
            return None
        caller = await self._find_holder(row.token_hash)
        if caller is None:
            await run_in_threadpool(self._forget, row)
        return caller

    async def has_key(self, session: str, key: str) -> bool:
        """Return whether that is the key of a session."""
        row = await self._find_cached(session)
        return row is not None and hmac.compare_digest(row.key_hash, hash_token(key))

    async def end(self, session: str) -> str | None:
        """End a session, and return the hash of the token that is for it alone; None: there is none."""
        row = await run_in_threadpool(self._find, session)
        if row is None:
            return None
        await run_in_threadpool(self._forget, row)
        return row.token_hash if row.is_own else None

    async def make_code(self, token_hash: str) -> str:
        """Return a code that begins one session of the token's holder."""
        code, ends = secrets.token_urlsafe(32), self._context.clock() + CODE_S
        row = SessionRow(id_hash=hash_token(code), key_hash="", token_hash=token_hash, is_own=False, ends=ends)
        await run_in_threadpool(self._add, row)
        return code

    async def has_code(self, code_hash: str, token_hash: str) -> bool:
        """Return whether a code of that token can still be used."""
        row = await run_in_threadpool(self._find_row, code_hash)
        return row is not None and not row.key_hash and hmac.compare_digest(row.token_hash, token_hash)

    async def take_code(self, code: str) -> CodeOwner | None:
        """Use up a code; None: it was used, or is too old, or its token is not valid any more."""
        token_hash = await run_in_threadpool(self._take, hash_token(code))
        holder = None if token_hash is None else await self._find_holder(token_hash)
        return None if token_hash is None or holder is None else CodeOwner(token_hash, holder)

    async def _find_cached(self, session: str) -> SessionRow | None:
        """Return the row of a session, as it was read if nothing was written since: streams ask every second."""
        now, changes = self._context.clock(), self._context.store_notifier.changes
        last = self._rows.get(session)
        if last is None or last.changes != changes or not 0 <= now - last.at < self._fresh_s:
            last = _ReadRow(await run_in_threadpool(self._find, session), changes, now)
            if len(self._rows) >= _MAX_CACHED:
                self._rows.clear()
            self._rows[session] = last
        return last.row if last.row is not None and now < last.row.ends else None

    def _find(self, session: str) -> SessionRow | None:
        row = self._find_row(hash_token(session)) if session else None
        return row if row is not None and row.key_hash else None

    def _find_row(self, id_hash: str) -> SessionRow | None:
        with self._context.store.read() as connection:
            row = session_store.find(connection, id_hash)
        return row if row is not None and self._context.clock() < row.ends else None

    def _take(self, code_hash: str) -> str | None:
        """Delete a code, and return the hash of its token. Of several who do so at once, one gets it."""
        row = self._find_row(code_hash)
        if row is None or row.key_hash:
            return None
        with self._context.store.write() as connection:
            return row.token_hash if session_store.forget(connection, code_hash) else None

    def _add(self, row: SessionRow) -> None:
        with self._context.store.write() as connection:
            session_store.add(connection, row, most=MAX_SESSIONS)

    def _forget(self, row: SessionRow) -> None:
        with self._context.store.write() as connection:
            session_store.forget(connection, row.id_hash)
