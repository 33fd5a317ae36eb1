"""Deletes old rows from the store, a few at a time, so that writers do not wait for long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sqlalchemy import Connection, Text, and_, cast, delete, func, insert, or_, select

from scanflow_server.store import usage
from scanflow_server.store.intent_store import ActionRow, parse_row
from scanflow_server.store.tables import agents, applications, events, fields, intents, keys, marks, runs, trail


def iterate_documents(connection: Connection) -> Iterator[str]:
    """Yield the JSON texts of all documents that may refer to a function sent by value: applications, agents' and
    requested runs'."""
    for column in (applications.c.document, agents.c.document, runs.c.definition, runs.c.asked):
        yield from connection.execute(select(cast(column, Text)).where(column.is_not(None))).scalars()


# -- events


def get_last_forgotten_event(connection: Connection) -> int:
    return int(connection.execute(select(func.max(marks.c.number)).where(marks.c.gone)).scalar_one() or 0)


def list_bookmarks(connection: Connection) -> list[tuple[int, float]]:
    query = select(marks.c.number, marks.c.at).where(~marks.c.gone).order_by(marks.c.number)
    return [(int(number), float(at)) for number, at in connection.execute(query)]


def add_mark(connection: Connection, number: int, at: float) -> None:
    connection.execute(insert(marks).values(number=number, at=at, gone=False))


def forget_events(connection: Connection, until: int, *, at: float, most: int) -> int:
    """Delete the oldest events up to a number, and return their count."""
    lowest = connection.execute(select(func.min(events.c.id))).scalar_one()
    if lowest is None or lowest > until:
        return 0
    last = min(until, int(lowest) + most - 1)
    for team, n_bytes in usage.sum_up(connection, until_event=last).items():
        usage.add(connection, team, -n_bytes)
    count = connection.execute(delete(events).where(events.c.id <= last)).rowcount
    connection.execute(delete(marks).where(marks.c.number <= last))
    connection.execute(delete(marks).where(marks.c.gone))
    connection.execute(insert(marks).values(number=last, at=at, gone=True))
    return count


# -- requests


def forget_keys(connection: Connection, before: float, *, spare: Collection[str], most: int) -> int:
    old = and_(keys.c.at < before, keys.c.key.not_in(sorted(spare)))
    selection = select(keys.c.key).where(old).limit(most)
    return connection.execute(delete(keys).where(keys.c.key.in_(selection.scalar_subquery()))).rowcount


def list_old_runs(connection: Connection, before: float, *, after: str, most: int) -> list[str]:
    old = and_(~runs.c.active, runs.c.created < before, runs.c.name > after)
    return [
        str(name)
        for name in connection.execute(select(runs.c.name).where(old).order_by(runs.c.name).limit(most)).scalars()
    ]


def forget_run(connection: Connection, name: str) -> bool:
    run = connection.execute(select(runs.c.team, runs.c.definition).where(runs.c.name == name, ~runs.c.active)).first()
    if run is None:
        return False
    usage.add(connection, str(run[0]), -usage.measure(run[1]))
    connection.execute(delete(runs).where(runs.c.name == name))
    return True


# -- intents


def get_newest_intent(connection: Connection) -> int:
    return int(connection.execute(select(func.max(intents.c.number))).scalar_one() or 0)


def list_begun_intents(connection: Connection) -> list[str]:
    begun = and_(intents.c.state.in_(["pending", "running"]), intents.c.tries > 0)
    return [
        str(id)
        for id in connection.execute(select(intents.c.id).where(or_(begun, intents.c.reverting.is_not(None)))).scalars()
    ]


def list_closed_intents(
    connection: Connection, before: float, *, surplus: int, after: int, most: int
) -> list[tuple[int, ActionRow]]:
    """Return intents that may be deleted, with their numbers, in order from ``after``.

    They were decided on before that time, or were not acted on and have a number up to ``surplus``. Those that set the
    owner of a field stay.
    """
    closed = or_(intents.c.state.not_in(["pending", "running"]), intents.c.verdict == "suggest")
    old = or_(intents.c.decided < before, and_(intents.c.number <= surplus, intents.c.verdict != "act"))
    owners = select(fields.c.intent).where(fields.c.intent.is_not(None)).scalar_subquery()
    query = (
        select(intents)
        .where(intents.c.number > after, closed, old, intents.c.guard_until.is_(None), intents.c.reverting.is_(None))
        .where(intents.c.id.not_in(owners))
        .order_by(intents.c.number)
        .limit(most)
    )
    return [(int(row["number"]), parse_row(row)) for row in connection.execute(query).mappings()]


def forget_intents(connection: Connection, ids: Iterable[str]) -> None:
    some = list(ids)
    connection.execute(delete(trail).where(trail.c.intent.in_(some)))
    connection.execute(delete(intents).where(intents.c.id.in_(some)))
