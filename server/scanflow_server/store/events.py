"""The list of what happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, insert, or_, select

from scanflow.agent.records import Event
from scanflow_server.store.applications import only_team
from scanflow_server.store.tables import events


def append(connection: Connection, happened: Iterable[Event], *, team: str | None = None) -> list[Event]:
    """List events, and return them with their numbers. Inside :meth:`~scanflow_server.store.base.Store.write` only:
    numbers are then seen in their order.

    ``team``: whose they are. None: the team's that alone has an application of that name; else no certain one's, and
    seen only by who sees all teams'.
    """
    listed = []
    for one in happened:
        whose = only_team(connection, one.app) if team is None else team
        values = one.model_dump(exclude={"id"}, mode="json") | {"team": whose or ""}
        id = connection.execute(insert(events).values(values).returning(events.c.id)).scalar_one()
        listed.append(one.model_copy(update={"id": id}))
    return listed


def tell(
    connection: Connection, type: str, subject: str, *, at: float, app: str, team: str | None, data: dict[str, Any]
) -> None:
    """List one event; ``team`` as for :func:`append`."""
    append(connection, [Event(at=at, type=type, app=app, subject=subject, data=data)], team=team)


def after(
    connection: Connection,
    id: int,
    *,
    type: str | Sequence[str] | None = None,
    app: str | None = None,
    team: str | None = None,
    limit: int = 100,
) -> list[Event]:
    """Return the first events listed after that one; of one application or team where it is named.

    ``type`` may end in ``.*`` or ``*``: all that begin so. Of several types, those of any of them.
    """
    query = select(events).where(events.c.id > id).order_by(events.c.id).limit(limit)
    types = [type] if isinstance(type, str) else list(type or ())
    if types:
        query = query.where(or_(*map(_is_of, types)))
    if app is not None:
        query = query.where(events.c.app == app)
    if team is not None:
        query = query.where(events.c.team == team)
    return [_event(row) for row in connection.execute(query).mappings()]


def apps(connection: Connection, *, type: Sequence[str], team: str | None = None) -> list[str]:
    """Return the applications that events of some types are of, in order."""
    query = select(events.c.app).where(or_(*map(_is_of, type)), events.c.app != "").distinct().order_by(events.c.app)
    if team is not None:
        query = query.where(events.c.team == team)
    return list(connection.execute(query).scalars())


def newest(connection: Connection, *, team: str | None = None) -> int:
    query = select(func.max(events.c.id))
    return int(connection.execute(query if team is None else query.where(events.c.team == team)).scalar_one() or 0)


def newest_before(connection: Connection, at: float) -> int:
    """Return the number of the newest event from before that time; 0: there is none."""
    return int(connection.execute(select(func.max(events.c.id)).where(events.c.at < at)).scalar_one() or 0)


def newest_event(connection: Connection, *, team: str | None = None) -> Event | None:
    query = select(events).order_by(events.c.id.desc()).limit(1)
    row = connection.execute(query if team is None else query.where(events.c.team == team)).mappings().first()
    return None if row is None else _event(row)


def _event(row: RowMapping) -> Event:
    return Event.model_validate({name: row[name] for name in Event.model_fields})


def _is_of(type: str) -> ColumnElement[bool]:
    start = type.removesuffix("*")
    return events.c.type.startswith(start, autoescape=True) if type.endswith("*") else events.c.type == type
