"""Add who made a token by signing in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scanflow_server.store.tables import tokens

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column(tokens.name, sa.Column("person", tokens.c.person.type))
    op.create_index("ix_tokens_person", tokens.name, ["person"])
