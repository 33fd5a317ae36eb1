"""The list of what happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, or_, select

from scanflow.agent.records import Event
from scanflow_server.store.tables import events


def append(connection: Connection, happened: Iterable[Event]) -> list[Event]:
    """List events, and return them with their numbers. Inside :meth:`~scanflow_server.store.base.Store.write` only:
    numbers are then seen in their order."""
    listed = []
    for one in happened:
        values = one.model_dump(exclude={"id"}, mode="json")
        id = connection.execute(insert(events).values(values).returning(events.c.id)).scalar_one()
        listed.append(one.model_copy(update={"id": id}))
    return listed


def tell(connection: Connection, type: str, subject: str, *, at: float, app: str, data: dict[str, Any]) -> None:
    append(connection, [Event(at=at, type=type, app=app, subject=subject, data=data)])


def after(
    connection: Connection,
    id: int,
    *,
    type: str | Sequence[str] | None = None,
    app: str | None = None,
    limit: int = 100,
) -> list[Event]:
    """Return the first events listed after that one.

    ``type`` may end in ``.*`` or ``*``: all that begin so. Of several types, those of any of them.
    """
    query = select(events).where(events.c.id > id).order_by(events.c.id).limit(limit)
    types = [type] if isinstance(type, str) else list(type or ())
    if types:
        query = query.where(or_(*map(_is_of, types)))
    if app is not None:
        query = query.where(events.c.app == app)
    return [Event.model_validate(dict(row)) for row in connection.execute(query).mappings()]


def newest(connection: Connection) -> int:
    return int(connection.execute(select(func.max(events.c.id))).scalar_one() or 0)


def newest_before(connection: Connection, at: float) -> int:
    """Return the number of the newest event from before that time; 0: there is none."""
    return int(connection.execute(select(func.max(events.c.id)).where(events.c.at < at)).scalar_one() or 0)


def newest_event(connection: Connection) -> Event | None:
    row = connection.execute(select(events).order_by(events.c.id.desc()).limit(1)).mappings().first()
    return None if row is None else Event.model_validate(dict(row))


def _is_of(type: str) -> ColumnElement[bool]:
    start = type.removesuffix("*")
    return events.c.type.startswith(start, autoescape=True) if type.endswith("*") else events.c.type == type
