"""Make one action of each change of a service and its operation."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

_JSON = sa.JSON(none_as_null=True)
_ADDED = ("request", "progress", "drivers", "record", "problem")


def upgrade() -> None:
    for name in _ADDED:
        op.add_column("intents", sa.Column(name, _JSON))
    connection = op.get_bind()
    operations = sa.Table("operations", sa.MetaData(), autoload_with=connection)
    intents = sa.Table("intents", sa.MetaData(), autoload_with=connection)
    for row in connection.execute(sa.select(operations).order_by(operations.c.number)).mappings():
        is_it = intents.c.id == row["id"]
        if connection.execute(sa.select(intents.c.id).where(is_it)).first() is None:
            connection.execute(sa.insert(intents).values(_build_action(dict(row))))
        connection.execute(sa.update(intents).where(is_it).values(_build_change(dict(row))))
    op.drop_table("operations")


def _build_change(row: dict[str, Any]) -> dict[str, Any]:
    values = {
        "request": row["request"],
        "progress": row["progress"] or [],
        "drivers": [] if row["ended"] is None else [row["id"]],
        "record": row["result"],
        "problem": row["problem"],
    }
    return {name: sa.null() if value is None else value for name, value in values.items()}


def _build_action(row: dict[str, Any]) -> dict[str, Any]:
    """Return the action of an operation without an intent: an agent's, or one of before people's were actions."""
    id, app, team, service, at = row["id"], row["app"], row["team"], row["service"], row["created"]
    arguments = {name: value for name, value in row["request"].items() if name not in {"application", "source"}}
    intent = {
        "id": id,
        "app": app,
        "team": team,
        "agent": "unknown",
        "strategy": "command",
        "source": "person",
        "primitive": row["kind"],
        "arguments": {"service": service, **arguments},
        "target": f"service/{service}",
        "fields": [],
        "priority": 1_000_001,
        "key": f"person/{id}",
        "at": at,
    }
    state = row["state"] if row["ended"] is not None else "running"
    decision = {"intent": id, "verdict": "act", "reason": "It was requested of an earlier version.", "at": at}
    error = None if row["problem"] is None else row["problem"].get("detail")
    times = {"began": at, "ended": row["ended"]}
    return {
        "id": id,
        "app": app,
        "team": team,
        "key": f"unknown/person/{id}",
        "place": f"service/{team}/{service}",
        "strategy": f"{team}/{app}/unknown/command",
        "state": state,
        "verdict": "act",
        "decided": at,
        "document": {"id": id, "intent": intent, "state": state, "decision": decision, **times, "error": error},
        "tries": 1,
    }
