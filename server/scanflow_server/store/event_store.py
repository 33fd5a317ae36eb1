"""The event log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    FromClause,
    RowMapping,
    Select,
    Text,
    and_,
    cast,
    exists,
    false,
    func,
    insert,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from scanflow.agent.agent_records import Event
from scanflow.text.times import bound_time
from scanflow_server.store import usage
from scanflow_server.store.application_store import find_only_team
from scanflow_server.store.secret_store import LoadMasker, cache_maskers
from scanflow_server.store.tables import events

_Columns = ReadOnlyColumnCollection[str, Any]

NEAR: Final = 5_000
"""So many of the newest events are looked at one by one: streams, which begin there, need no index."""

MAX_TYPES: Final = 200
"""Of more types than so many all events are read: a database limits how much one query may join."""


def append(
    connection: Connection, new_events: Iterable[Event], *, team: str | None = None, max_mib: int = 0
) -> list[Event]:
    """Record events, and return them with their numbers; their applications' secrets are masked. Only inside
    :meth:`~scanflow_server.store.base.Store.write`, so that they become visible in the order of their numbers.

    ``team``: their owner. None: the only team with an application of that name; if there is none, they have no owner
    and only callers of all teams see them.

    ``max_mib``: what a team may have stored; 0 for no limit.

    Raises:
        TooLargeError: a team would have more than that. The transaction is to be rolled back.
    """
    listed, maskers, sizes = [], cache_maskers(connection), Counter[str]()
    for new_event in new_events:
        event = _mask_event(new_event, maskers)
        whose = find_only_team(connection, event.app) if team is None else team
        values = event.model_dump(exclude={"id"}, mode="json") | {"team": whose or ""}
        id = connection.execute(insert(events).values(values).returning(events.c.id)).scalar_one()
        sizes[whose or ""] += usage.measure(event.type, event.app, event.subject, event.data)
        listed.append(event.model_copy(update={"id": id}))
    for owner, n_bytes in sizes.items():
        usage.check(connection, owner, n_bytes, max_mib=max_mib)
        usage.add(connection, owner, n_bytes)
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
    types = [type] if isinstance(type, str) else list(type or ())
    return _load(connection, _select_matching(connection, id, types, app, team, events.c.id, limit), events.c.id)


def list_newest(
    connection: Connection,
    *,
    type: Sequence[str] = (),
    app: str | None = None,
    team: str | None = None,
    before: int | None = None,
    subject: str | None = None,
    text: str | None = None,
    limit: int,
) -> list[Event]:
    """Return the newest events of these types, of an application or of all, the oldest of them first.

    ``before``: with a lower number; ``text``: with that text in their data as they are shown, with secrets masked.
    """
    content = _Content(before, subject, text)
    query = _select_matching(connection, 0, type, app, team, events.c.id.desc(), limit, content)
    newest = _load(connection, query, events.c.id.desc())[::-1]
    return [event for event in newest if not text or text.lower() in _dump_data(event.data).lower()]


def find(connection: Connection, id: int, *, team: str | None = None) -> Event | None:
    own = (events.c.id == id, *_match_names(None, team))
    row = connection.execute(select(events).where(*own)).mappings().first()
    return None if row is None else _parse_event(row, cache_maskers(connection))


def list_types(connection: Connection, *, team: str | None = None) -> list[str]:
    """Return the types of the events, in order, as many as one query may join."""
    types = _select_distinct(events.c.type, *_match_names(None, team)).c.value
    query = select(types).where(types.is_not(None)).limit(MAX_TYPES)
    return list(connection.execute(query).scalars())


def list_evaluations(
    connection: Connection, run: str, *, type: Sequence[str], app: str, team: str, limit: int
) -> list[Event]:
    """Return those of the newest events of an application that are of these types and name a run in their data."""
    newest = _select_matching(connection, 0, type, app, team, events.c.id.desc(), limit)
    return _load(connection, newest.where(events.c.data["run"].as_string() == run), events.c.id)


def list_apps(connection: Connection, *, type: Sequence[str], team: str | None = None) -> list[str]:
    """Return the applications with events of these types, in order."""
    apps = _select_distinct(events.c.app)
    own = (events.c.app == apps.c.value, events.c.type.in_(type), *_match_names(None, team))
    query = select(apps.c.value).where(apps.c.value != "", exists().where(*own)).order_by(apps.c.value)
    return list(connection.execute(query).scalars())


class _Content(NamedTuple):
    """What events are filtered by that no index knows, and the number that theirs is lower than."""

    before: int | None = None
    subject: str | None = None
    text: str | None = None

    def match(self, columns: _Columns) -> list[ColumnElement[bool]]:
        conditions = [columns["id"] < self.before] if self.before is not None else []
        if self.subject:
            conditions.append(columns["subject"] == self.subject)
        if self.text:  # a database has the text of a JSON document as it came, or as it writes it itself
            stored, forms = cast(columns["data"], Text), {json.dumps(self.text)[1:-1], _dump_data(self.text)[1:-1]}
            conditions.append(or_(*(stored.icontains(form, autoescape=True) for form in sorted(forms))))
        return conditions


def _dump_data(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _select_matching(
    connection: Connection,
    id: int,
    types: Sequence[str],
    app: str | None,
    team: str | None,
    order: ColumnElement[Any],
    limit: int,
    content: _Content = _Content(),  # noqa: B008 - it has no parts that change
) -> Select[Any]:
    """Select events after a number. A database would read all of them to find the few of one type or application, or
    sort all that match: each exact type is selected by an index that has them in order, and then they are merged."""
    after, own = and_(events.c.id > id, *content.match(events.c)), _match_names(app, team)
    if not types and not own:
        return select(events).where(after).limit(limit)
    if get_newest_id(connection) - id > NEAR:
        names = _select_distinct(events.c.type, *own[:1]).c.value
        exact = connection.execute(select(names).where(names.is_not(None)).limit(MAX_TYPES + 1)).scalars().all()
        if len(exact) <= MAX_TYPES and (types or not (content.subject or content.text)):  # else all events are read
            listed = [name for name in exact if not types or any(_matches(name, type) for type in types)]
            each = (
                select(events.c.id).where(events.c.type == name, after, *own).order_by(order).limit(limit)
                for name in listed
            )
            ids = (
                union_all(*(select(part.subquery().c.id) for part in each))
                if listed
                else select(events.c.id).where(false())
            )
            return select(events).where(events.c.id.in_(ids)).limit(limit)
        rows: FromClause = events
    else:  # limited, so that no index is taken that has to be sorted
        rows = select(events).where(events.c.id > id).order_by(events.c.id).limit(NEAR).subquery()
    among = or_(*(_match_type(rows.c, type) for type in types)) if types else true()
    matching = select(rows.c.id).where(rows.c.id > id, *content.match(rows.c), *_match_names(app, team, rows.c), among)
    return select(events).where(events.c.id.in_(matching)).limit(limit)


def _select_distinct(column: ColumnElement[str], *where: ColumnElement[bool]) -> CTE:
    """Select the values of a column, each by a look at an index: neither database skips rows for a DISTINCT."""
    values = select(func.min(column).label("value")).where(*where).cte("found", recursive=True)
    following = select(func.min(column)).where(column > values.c.value, *where).scalar_subquery()
    return values.union_all(select(following).where(values.c.value.is_not(None)))


def _match_names(app: str | None, team: str | None, columns: _Columns = events.c) -> list[ColumnElement[bool]]:
    return [columns[name] == value for name, value in (("app", app), ("team", team)) if value is not None]


def _matches(type: str, pattern: str) -> bool:
    return type.startswith(pattern[:-1]) if pattern.endswith("*") else type == pattern


def _load(connection: Connection, query: Select[Any], order: ColumnElement[Any]) -> list[Event]:
    maskers = cache_maskers(connection)
    return [_parse_event(row, maskers) for row in connection.execute(query.order_by(order)).mappings().all()]


def get_newest_id(connection: Connection, *, team: str | None = None) -> int:
    query = select(func.max(events.c.id))
    return int(connection.execute(query if team is None else query.where(events.c.team == team)).scalar_one() or 0)


def get_newest_id_before(connection: Connection, at: float) -> int:
    """Return the number of the newest event before a time; 0: there is none."""
    return int(connection.execute(select(func.max(events.c.id)).where(events.c.at < at)).scalar_one() or 0)


def find_newest_event(connection: Connection, *, team: str | None = None) -> Event | None:
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
    event = Event.model_validate({name: row[name] for name in Event.model_fields} | {"at": bound_time(row["at"])})
    # Masked again: its application may have got a secret after the event. What looks like one was masked before.
    return _mask_event(event, maskers) if maskers(event.app, None) else event


def _mask_event(event: Event, maskers: LoadMasker) -> Event:
    if not event.data:
        return event
    return event.model_copy(update={"data": maskers(event.app, None).mask(event.data)})


def _match_type(columns: _Columns, type: str) -> ColumnElement[bool]:
    column: ColumnElement[str] = columns["type"]
    return column.startswith(type[:-1], autoescape=True) if type.endswith("*") else column == type
