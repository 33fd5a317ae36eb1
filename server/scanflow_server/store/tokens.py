"""Tokens by name: their hashes, when each was made, and when it was revoked."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from scanflow.errors import AlreadyRunningError, NotFoundError, UsageError, did_you_mean
from scanflow_server.store.base import Row
from scanflow_server.store.tables import tokens

HOME = "home"
"""The name of the token in the home folder; it is what that file says, so it is not revoked here."""


class TokenRow(Row):
    """One token, without the token."""

    name: str
    created: float
    revoked: float | None = None


def listed(connection: Connection) -> list[TokenRow]:
    return TokenRow.all(connection, select(tokens).order_by(tokens.c.created, tokens.c.name))


def valid(connection: Connection) -> dict[str, str]:
    rows = connection.execute(select(tokens.c.hash, tokens.c.name).where(tokens.c.revoked.is_(None)))
    return {str(row.hash): str(row.name) for row in rows}


def add(connection: Connection, name: str, digest: str, *, at: float) -> TokenRow:
    if any(one.name == name for one in listed(connection)):
        raise AlreadyRunningError(f"There is, or was, a token {name!r}. Choose another name: scanflow token list")
    connection.execute(insert(tokens).values(name=name, hash=digest, created=at))
    return TokenRow(name=name, created=at)


def put_home(connection: Connection, digest: str, *, at: float) -> None:
    """Let the token of the home folder in, and no other that the folder had before."""
    if valid(connection).get(digest) != HOME:
        connection.execute(delete(tokens).where(tokens.c.name == HOME))
        connection.execute(insert(tokens).values(name=HOME, hash=digest, created=at))


def revoke(connection: Connection, name: str, *, at: float) -> TokenRow:
    """Let nobody in by this token from now on; one that was revoked before stays as it is."""
    if name == HOME:
        raise UsageError(
            "The home's own token is what its file says. To replace it: scanflow down, remove the file "
            "'token' in the home folder, scanflow up."
        )
    known = {one.name: one for one in listed(connection)}
    if name not in known:
        raise NotFoundError(f"There is no token {name!r}.{did_you_mean(name, known)}")
    if known[name].revoked is None:
        connection.execute(update(tokens).where(tokens.c.name == name).values(revoked=at))
        return known[name].model_copy(update={"revoked": at})
    return known[name]
