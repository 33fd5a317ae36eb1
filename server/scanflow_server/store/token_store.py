"""Tokens by name: hash, role, team, and times of creation, expiry and revocation."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from scanflow.errors import AlreadyRunningError, UsageError
from scanflow.http.home_token import Role
from scanflow_server.store.base import Row
from scanflow_server.store.tables import tokens

HOME = "home"
"""The name of the token in the home folder, which is defined by its file and cannot be revoked here."""


class TokenRow(Row):
    """One token, without the token."""

    name: str
    role: Role
    """``viewer`` reads; ``agent`` sends intents, too; ``editor`` changes what is its team's, and approves; ``admin``
    also creates and revokes tokens."""

    team: str | None = None
    """The team it is for. Null: all teams."""

    person: str | None = None
    """Who made it by signing in, and acts with it. Null: an admin made it, for whom its name says."""

    created: float
    expires: float | None = None
    revoked: float | None = None


def list_all(connection: Connection) -> list[TokenRow]:
    return TokenRow.load_all(connection, select(tokens).order_by(tokens.c.created, tokens.c.name))


def find(connection: Connection, name: str) -> TokenRow | None:
    return TokenRow.load_first(connection, select(tokens).where(tokens.c.name == name))


def load_valid(connection: Connection) -> dict[str, TokenRow]:
    rows = connection.execute(select(tokens).where(tokens.c.revoked.is_(None))).mappings()
    return {str(row["hash"]): TokenRow.model_validate(dict(row)) for row in rows}


def add(connection: Connection, token: TokenRow, digest: str) -> TokenRow:
    if find(connection, token.name) is not None:
        raise AlreadyRunningError(
            f"The token name {token.name!r} is or was in use. Choose another name; names are shared by all teams."
        )
    connection.execute(insert(tokens).values(hash=digest, **token.model_dump()))
    return token


def add_of_person(connection: Connection, token: TokenRow, digest: str) -> TokenRow:
    """Store a token of a person who signed in, named after the person and numbered; return it so."""
    names = connection.scalars(select(tokens.c.name).where(tokens.c.person == token.person))
    number = 1 + max((int(name.rpartition(":")[2]) for name in names), default=0)
    return add(connection, token.model_copy(update={"name": f"{token.person}:{number}"}), digest)


def forget_ended(connection: Connection, before: float, *, most: int) -> int:
    """Delete persons' tokens that ended before a time; return their count. What they did is recorded by person."""
    is_old = (tokens.c.expires < before) | (tokens.c.revoked < before)
    ended = select(tokens.c.name).where(tokens.c.person.is_not(None), is_old).limit(most)
    return connection.execute(delete(tokens).where(tokens.c.name.in_(ended))).rowcount


def find_by_hash(connection: Connection, digest: str) -> TokenRow | None:
    return TokenRow.load_first(connection, select(tokens).where(tokens.c.hash == digest))


def put_home(connection: Connection, digest: str, *, at: float) -> None:
    """Make this digest the only valid token of the home folder."""
    if (row := load_valid(connection).get(digest)) is None or row.name != HOME:
        connection.execute(delete(tokens).where(tokens.c.name == HOME))
        home = TokenRow(name=HOME, role="admin", created=at)
        connection.execute(insert(tokens).values(hash=digest, **home.model_dump()))


def revoke(connection: Connection, token: TokenRow, *, at: float) -> TokenRow:
    """Revoke a token; a revoked one stays as it is."""
    if token.name == HOME:
        raise UsageError(
            "The home's own token is the content of its file. To replace it: scanflow down, remove the file "
            "'token' in the home folder, scanflow up."
        )
    if token.revoked is None:
        connection.execute(update(tokens).where(tokens.c.name == token.name).values(revoked=at))
        return token.model_copy(update={"revoked": at})
    return token
