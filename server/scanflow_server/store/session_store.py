"""Sessions of browsers, and codes that begin one: hashes of cookies, keys and tokens, and when they end."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select

from scanflow_server.store.base import Row
from scanflow_server.store.tables import sessions, tokens


class SessionRow(Row):
    """One session, or a code that begins one, without what opens it."""

    id_hash: str
    """The hash of its cookie's value, or of the code."""

    key_hash: str
    """The hash of what a form sends that changes more than labels; empty: it is a code."""

    token_hash: str
    is_own: bool
    """Whether the token is for it alone."""

    ends: float
    """In seconds since the epoch."""


def add(connection: Connection, session: SessionRow, *, most: int) -> None:
    """Store a session. Of its caller at most so many are kept: of more, those that end first go."""
    count = int(connection.execute(select(func.count()).where(_is_of_caller(session.token_hash))).scalar_one())
    if count >= most:
        own = select(sessions.c.id_hash).where(_is_of_caller(session.token_hash))
        first = own.order_by(sessions.c.ends).limit(count + 1 - most)
        connection.execute(delete(sessions).where(sessions.c.id_hash.in_(first.scalar_subquery())))
    connection.execute(insert(sessions).values(**session.model_dump()))


def _is_of_caller(token_hash: str) -> ColumnElement[bool]:
    """Return the condition for sessions of a token, and of all others that the same person made by signing in."""
    others = tokens.alias()
    by_person = (
        select(others.c.hash).join(tokens, tokens.c.person == others.c.person).where(tokens.c.hash == token_hash)
    )
    return or_(sessions.c.token_hash == token_hash, sessions.c.token_hash.in_(by_person))


def find(connection: Connection, id_hash: str) -> SessionRow | None:
    return SessionRow.load_first(connection, select(sessions).where(sessions.c.id_hash == id_hash))


def forget(connection: Connection, id_hash: str) -> bool:
    """Delete a session, and return whether it was there."""
    return connection.execute(delete(sessions).where(sessions.c.id_hash == id_hash)).rowcount > 0


def forget_ended(connection: Connection, at: float, *, most: int) -> int:
    """Delete sessions that ended by a time, and return their count."""
    ended = select(sessions.c.id_hash).where(sessions.c.ends <= at).limit(most)
    return connection.execute(delete(sessions).where(sessions.c.id_hash.in_(ended.scalar_subquery()))).rowcount
