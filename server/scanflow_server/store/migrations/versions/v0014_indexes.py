"""Add indexes for lists of events by application or team, and type; and what each team stores."""

from __future__ import annotations

from alembic import op

from scanflow_server.store import usage
from scanflow_server.store.tables import stored_bytes

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_index("ix_events_app_type_id", "events", ["app", "type", "id"])
    op.create_index("ix_events_team_type_id", "events", ["team", "type", "id"])
    connection = op.get_bind()
    stored_bytes.create(connection)
    for team, n_bytes in usage.sum_up(connection).items():
        usage.add(connection, team, n_bytes)
