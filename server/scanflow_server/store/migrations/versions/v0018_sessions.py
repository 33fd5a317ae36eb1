"""Add the sessions of browsers."""

from __future__ import annotations

from alembic import op

from scanflow_server.store.tables import sessions

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    sessions.create(op.get_bind())
