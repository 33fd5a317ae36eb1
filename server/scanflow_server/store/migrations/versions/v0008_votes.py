"""Add votes of labellers, and the purpose, row and picture of samples."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scanflow_server.store.tables import labels, votes

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make the label in use of each sample its first vote."""
    for name in ("purpose", "disputed", "row", "picture"):
        column = labels.c[name]
        op.add_column(
            "labels", sa.Column(name, column.type, nullable=column.nullable, server_default=column.server_default)
        )
    votes.create(op.get_bind())
    votes_in_use = sa.select(*(labels.c[name] for name in ("app", "team", "id", "label", "by", "given"))).where(
        labels.c.state == "given"
    )
    op.execute(sa.insert(votes).from_select(["app", "team", "id", "label", "by", "at"], votes_in_use))
