"""The event log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, insert, or_, select

from scanflow.agent.records import Event
from scanflow_server.store.applications import find_only_team
from scanflow_server.store.secrets import LoadMasker, cache_maskers
from scanflow_server.store.tables import events


def append(connection: Connection, new_events: Iterable[Event], *, team: str | None = None) -> list[Event]:
    """Record events, and return them with their numbers; their applications' secrets are masked. Only inside
    :meth:`~scanflow_server.store.base.Store.write`, so that they become visible in the order of their numbers.

    ``team``: their owner. None: the only team with an application of that name; if there is none, they have no owner
    and only callers of all teams see them.
    """
    listed, maskers = [], cache_maskers(connection)
    for new_event in new_events:
        event = _mask_event(new_event, maskers)
        whose = find_only_team(connection, event.app) if team is None else team
        values = event.model_dump(exclude={"id"}, mode="json") | {"team": whose or ""}
        id = connection.execute(insert(events).values(values).returning(events.c.id)).scalar_one()
        listed.append(event.model_copy(update={"id": id}))
    return listed


def record(
    connection: Connection, type: str, subject: str, *, at: float, app: str, team: str | None, data: dict[str, Any]
) -> None:
    """Record one event; ``team`` as for :func:`append`."""
    append(connection, [Event(at=at, type=type, app=app, subject=subject, data=data)], team=team)


def list_after(
    connection: Connection,
    id: int,
    *,
    type: str | Sequence[str] | None = None,
    app: str | None = None,
    team: str | None = None,
    limit: int = 100,
) -> list[Event]:
    """Return the first events after that number, filtered by application or team if given.

    ``type`` may end in ``.*`` or ``*`` to match a prefix. Several types match any of them.
    """
    query = select(events).where(events.c.id > id).order_by(events.c.id).limit(limit)
    types = [type] if isinstance(type, str) else list(type or ())
    if types:
        query = query.where(or_(*map(_match_type, types)))
    if app is not None:
        query = query.where(events.c.app == app)
    if team is not None:
        query = query.where(events.c.team == team)
    maskers = cache_maskers(connection)
    return [_parse_event(row, maskers) for row in connection.execute(query).mappings().all()]


def list_apps(connection: Connection, *, type: Sequence[str], team: str | None = None) -> list[str]:
    """Return the applications with events of these types, in order."""
    query = (
        select(events.c.app).where(or_(*map(_match_type, type)), events.c.app != "").distinct().order_by(events.c.app)
    )
    if team is not None:
        query = query.where(events.c.team == team)
    return list(connection.execute(query).scalars())


def get_newest_id(connection: Connection, *, team: str | None = None) -> int:
    query = select(func.max(events.c.id))
    return int(connection.execute(query if team is None else query.where(events.c.team == team)).scalar_one() or 0)


def get_newest_id_before(connection: Connection, at: float) -> int:
    """Return the number of the newest event before a time; 0: there is none."""
    return int(connection.execute(select(func.max(events.c.id)).where(events.c.at < at)).scalar_one() or 0)


def get_newest_event(connection: Connection, *, team: str | None = None) -> Event | None:
    query = select(events).order_by(events.c.id.desc()).limit(1)
    row = connection.execute(query if team is None else query.where(events.c.team == team)).mappings().first()
    return None if row is None else _parse_event(row, cache_maskers(connection))


def find_newest(connection: Connection, type: str, subject: str, *, app: str) -> Event | None:
    """Return the newest event of a type about a subject; None: there is none."""
    which = (events.c.type == type, events.c.subject == subject, events.c.app == app)
    query = select(events).where(*which).order_by(events.c.id.desc()).limit(1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _parse_event(row, cache_maskers(connection))


def _parse_event(row: RowMapping, maskers: LoadMasker) -> Event:
    # Masked again: its application may have got the secret after the event.
    return _mask_event(Event.model_validate({name: row[name] for name in Event.model_fields}), maskers)


def _mask_event(event: Event, maskers: LoadMasker) -> Event:
    if not event.data:
        return event
    return event.model_copy(update={"data": maskers(event.app, None).mask(event.data)})


def _match_type(type: str) -> ColumnElement[bool]:
    start = type.removesuffix("*")
    return events.c.type.startswith(start, autoescape=True) if type.endswith("*") else events.c.type == type
