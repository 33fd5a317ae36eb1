"""Which event was the newest when, and up to which they are gone: so that old ones can be forgotten, and that told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "event_marks",
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("gone", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_event_marks"),
    )
