"""Applications as they were last sent, or changed since."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, insert, select, update

from scanflow_server.store.tables import applications


class ApplicationRow(BaseModel):
    """One application."""

    model_config = ConfigDict(frozen=True)

    name: str
    team: str
    document: dict[str, Any]
    """As it travels."""

    source: str | None = None
    """The file it came from."""

    revision: int = 1
    """Counts its changes."""

    updated: float


def put(
    connection: Connection, *, name: str, team: str, document: dict[str, Any], source: str | None, at: float
) -> ApplicationRow:
    """Keep an application as it is now; one that is as it was makes no new revision."""
    before = get(connection, name, team)
    if before is not None and (before.document, before.source) == (document, source):
        return before
    after = ApplicationRow(
        name=name,
        team=team,
        document=document,
        source=source,
        revision=1 if before is None else before.revision + 1,
        updated=at,
    )
    if before is None:
        connection.execute(insert(applications).values(after.model_dump(mode="json")))
    else:
        this = (applications.c.name == name) & (applications.c.team == team)
        connection.execute(update(applications).where(this).values(after.model_dump(mode="json")))
    return after


def get(connection: Connection, name: str, team: str | None = None) -> ApplicationRow | None:
    """Return the application of that name, the newest where no team is named."""
    query = select(applications).where(applications.c.name == name).order_by(applications.c.updated.desc())
    if team is not None:
        query = query.where(applications.c.team == team)
    row = connection.execute(query).mappings().first()
    return None if row is None else ApplicationRow.model_validate(dict(row))


def listed(connection: Connection) -> list[ApplicationRow]:
    """Return all of them, by name."""
    rows = connection.execute(select(applications).order_by(applications.c.name, applications.c.team)).mappings()
    return [ApplicationRow.model_validate(dict(row)) for row in rows]
