"""Add indexes for lists of events by application or team, and type."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_index("ix_events_app_type_id", "events", ["app", "type", "id"])
    op.create_index("ix_events_team_type_id", "events", ["team", "type", "id"])
