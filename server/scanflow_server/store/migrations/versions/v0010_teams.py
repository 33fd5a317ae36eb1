"""Add roles and teams of tokens, and teams of events and operations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scanflow_server.store.tables import events, tokens

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make old tokens admins, and assign events and operations to the only team of their application."""
    op.add_column("operations", sa.Column("team", sa.String(128), nullable=False, server_default=""))
    for table, names in ((tokens, ("role", "team", "expires")), (events, ("team",))):
        for name in names:
            column = table.c[name]
            added = sa.Column(name, column.type, nullable=column.nullable, server_default=column.server_default)
            op.add_column(table.name, added)
    op.create_index("ix_events_team", "events", ["team"])
    op.execute(sa.update(tokens).values(role="admin"))
    op.execute("UPDATE operations SET team = coalesce((SELECT team FROM intents WHERE id = operations.id), '')")
    for name in ("operations", "events"):
        team = f"SELECT CASE count(*) WHEN 1 THEN min(team) END FROM applications WHERE name = {name}.app"  # noqa: S608
        op.execute(f"UPDATE {name} SET team = coalesce(({team}), '') WHERE team = ''")  # noqa: S608
    # The target of an action belongs to its own team, and so do the fields.
    for kind in ("service", "run", "model"):
        own = f"'{kind}/' || team || substr(place, {len(kind) + 1})"
        op.execute(f"UPDATE intents SET place = {own} WHERE place LIKE '{kind}/%'")  # noqa: S608
        theirs = "SELECT place FROM intents WHERE id = fields.intent"
        op.execute(
            f"UPDATE fields SET place = ({theirs}) WHERE place LIKE '{kind}/%' AND EXISTS ({theirs})"  # noqa: S608
        )
