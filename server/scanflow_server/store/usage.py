"""How much each team's events, samples to label, requested runs and functions take, as they were sent.

Counted in the transaction that writes or deletes them, so that nothing has to be summed up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    Text,
    case,
    cast,
    false,
    func,
    insert,
    literal,
    select,
    update,
)

from scanflow.errors import TooLargeError
from scanflow_server.store.tables import events, labels, runs, stored_bytes

ROW_BYTES: Final = 100
"""What a row takes beside its texts, about: its numbers, names and entries in indexes."""

_MIB: Final = 2**20


def measure(*values: Any) -> int:
    """Return how much a row with these values takes: texts as they are, all else as JSON."""
    texts = (value if isinstance(value, str) else json.dumps(value) for value in values if value is not None)
    return ROW_BYTES + sum(map(len, texts))


def get(connection: Connection, team: str) -> int:
    return int(connection.execute(select(stored_bytes.c.bytes).where(stored_bytes.c.team == team)).scalar() or 0)


def list_all(connection: Connection) -> dict[str, int]:
    """Return the bytes of each team; the name is empty for what has no team."""
    return {str(team): int(n_bytes) for team, n_bytes in connection.execute(select(stored_bytes))}


def add(connection: Connection, team: str, n_bytes: int) -> None:
    """Count what was written, or with a negative number what was deleted."""
    total = stored_bytes.c.bytes + n_bytes
    own = update(stored_bytes).where(stored_bytes.c.team == team)
    if connection.execute(own.values(bytes=case((total < 0, 0), else_=total))).rowcount == 0:
        connection.execute(insert(stored_bytes).values(team=team, bytes=max(0, n_bytes)))


def check(connection: Connection, team: str, n_bytes: int, *, max_mib: int) -> None:
    """Refuse what would exceed a team's share, before it is written. ``max_mib`` 0: there is no limit.

    Raises:
        TooLargeError: names the share, and what is stored already.
    """
    stored = get(connection, team) if max_mib else 0
    if max_mib and stored + n_bytes > max_mib * _MIB:
        whose = f"The team {team!r}" if team else "What belongs to no team"
        raise TooLargeError(
            f"{whose} has {stored / _MIB:,.1f} MiB of events, samples to label, requested runs and functions on "
            f"the server, and the request would add {n_bytes / _MIB:,.1f} MiB, but one team may have {max_mib:,} MiB. "
            "Nothing was stored. Events, ended runs and their functions are deleted with age: SCANFLOW_KEEP_EVENTS, "
            "SCANFLOW_KEEP_EVENTS_DAYS and SCANFLOW_KEEP_ENDED_DAYS say when. Or have the server's administrator raise "
            "SCANFLOW_MAX_TEAM_MIB."
        )


def sum_up(connection: Connection, *, until_event: int | None = None) -> dict[str, int]:
    """Return what all rows of each team take; or with ``until_event`` the events up to that number."""
    total = Counter[str]()
    for table, columns in _MEASURED.items():
        lengths = sum(map(_length, columns), start=literal(ROW_BYTES))
        query = select(table.c.team, func.sum(lengths)).group_by(table.c.team)
        if until_event is not None:
            query = query.where(table.c.id <= until_event if table is events else false())
        for team, n_bytes in connection.execute(query):
            total[str(team)] += int(n_bytes)
    return dict(total)


def _length(column: Column[Any]) -> ColumnElement[int]:
    return func.coalesce(func.length(cast(column, Text)), 0)


_MEASURED: Final[Mapping[Table, Sequence[Column[Any]]]] = {
    events: (events.c.type, events.c.app, events.c.subject, events.c.data),
    labels: (labels.c.id, labels.c.data, labels.c.row, labels.c.picture),
    runs: (runs.c.definition,),
}
"""What is measured of each table's rows."""
