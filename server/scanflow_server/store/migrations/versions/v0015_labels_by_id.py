"""Add the index by which a label finds its sample."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_index("ix_labels_id", "labels", ["id"])
