"""Applications in their latest revision."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, update

from scanflow.app.application import Application
from scanflow.app.application_files import dump_document
from scanflow_server.store.base import Row
from scanflow_server.store.tables import applications


class ApplicationRow(Row):
    name: str
    team: str
    document: dict[str, Any]
    source: str | None = None
    revision: int = 1
    updated: float


def put(
    connection: Connection, *, name: str, team: str, document: dict[str, Any], source: str | None, at: float
) -> ApplicationRow:
    """Store an application; an unchanged one makes no new revision."""
    before = find(connection, name, team)
    if before is not None and (before.document, before.source) == (document, source):
        return before
    revision = 1 if before is None else before.revision + 1
    after = ApplicationRow(name=name, team=team, document=document, source=source, revision=revision, updated=at)
    match = (applications.c.name == name) & (applications.c.team == team)
    write = insert(applications) if before is None else update(applications).where(match)
    connection.execute(write.values(after.model_dump(mode="json")))
    return after


def keep(connection: Connection, app: Application, source: str | None, *, at: float) -> ApplicationRow:
    return put(connection, name=app.name, team=app.team, document=dump_document(app), source=source, at=at)


def find(connection: Connection, name: str, team: str | None = None) -> ApplicationRow | None:
    """Return the application of that name, the newest if no team is given."""
    query = select(applications).where(applications.c.name == name).order_by(applications.c.updated.desc())
    return ApplicationRow.load_first(connection, query if team is None else query.where(applications.c.team == team))


def list_all(connection: Connection, *, team: str | None = None) -> list[ApplicationRow]:
    query = select(applications).order_by(applications.c.name, applications.c.team)
    return ApplicationRow.load_all(connection, query if team is None else query.where(applications.c.team == team))


def find_only_team(connection: Connection, name: str) -> str | None:
    """Return the only team with an application of that name; None: no team or several have one."""
    teams = connection.execute(select(applications.c.team).where(applications.c.name == name).limit(2)).scalars().all()
    return str(teams[0]) if len(teams) == 1 else None


def select_exclusive_names(team: str) -> Select[tuple[str]]:
    """Select the names of the applications that no other team has."""
    query = select(applications.c.name).group_by(applications.c.name).having(func.count() == 1)
    return query.having(func.min(applications.c.team) == team)


def load_revisions(connection: Connection) -> dict[tuple[str, str], int]:
    """Return the revision of each application, by its name and team."""
    rows = connection.execute(select(applications.c.name, applications.c.team, applications.c.revision))
    return {(str(name), str(team)): int(revision) for name, team, revision in rows}
