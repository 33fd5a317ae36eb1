"""Add the audit log."""

from __future__ import annotations

from alembic import op

from scanflow_server.store.tables import audit

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    audit.create(op.get_bind())
