"""Add the positions of webhooks in the event log."""

from __future__ import annotations

from alembic import op

from scanflow_server.store.tables import notified

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Create the table."""
    notified.create(op.get_bind())
