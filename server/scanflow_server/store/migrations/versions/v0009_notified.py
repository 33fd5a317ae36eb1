"""Webhooks are told what happened since they were told last."""

from __future__ import annotations

from alembic import op

from scanflow_server.store.tables import notified

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the table."""
    notified.create(op.get_bind())
