"""Whose label queue it is: a team's. What was asked before belongs to whichever team of the application asks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the team, by which things of one name are told apart."""
    with op.batch_alter_table("labels", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.add_column(sa.Column("team", sa.String(128), nullable=False, server_default=""))
        table.drop_constraint("uq_labels_app_id", type_="unique")
        table.create_unique_constraint("uq_labels_app_team_id", ["app", "team", "id"])
