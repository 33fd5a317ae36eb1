"""Who may ask this server: hashes of tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("revoked", sa.Float),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
        sa.PrimaryKeyConstraint("name", name="pk_tokens"),
    )
