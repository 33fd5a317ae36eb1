"""The audit log: who changed or was refused what, from where. Rows are added, never changed."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from scanflow_server.store.base import Row
from scanflow_server.store.tables import audit


class AuditEntry(Row):
    """One request that changed something, was refused, or logged in."""

    id: int = 0
    at: float
    who: str
    """The name of the token; empty: the request had none that is valid."""

    role: str = ""
    team: str | None = None
    """The team that the token is for. Null: all teams, or there is no token."""

    address: str
    """Of the client, as the server sees it."""

    method: str
    path: str
    """Without the query, which may hold data."""

    status: int
    what: str = ""
    """What it was about, where the path does not say it."""


def add(connection: Connection, entry: AuditEntry) -> None:
    connection.execute(insert(audit).values(**entry.model_dump(exclude={"id"})))


def list_newest(
    connection: Connection,
    *,
    limit: int,
    team: str | None = None,
    who: str | None = None,
    refused: bool = False,
    before: int | None = None,
) -> list[AuditEntry]:
    """Return the newest entries first; ``team`` None: of all teams. ``before``: older than the entry of this number."""
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    for wanted in (
        None if team is None else audit.c.team == team,
        None if who is None else audit.c.who == who,
        audit.c.status >= 400 if refused else None,
        None if before is None else audit.c.id < before,
    ):
        query = query if wanted is None else query.where(wanted)
    return AuditEntry.load_all(connection, query)


def forget_older(connection: Connection, at: float, *, most: int) -> int:
    """Delete the oldest entries from before a time, and return their count."""
    oldest = select(audit.c.id).where(audit.c.at < at).order_by(audit.c.id).limit(most)
    return connection.execute(delete(audit).where(audit.c.id.in_(oldest))).rowcount
