"""Add the state of agents' sensors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scanflow_server.store.tables import agents

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column(agents.name, sa.Column("sensors", agents.c.sensors.type))
