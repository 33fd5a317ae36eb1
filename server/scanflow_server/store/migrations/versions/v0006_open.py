"""What the engine and the arbiter ask at each look, found without reading all that was ever wanted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_OPEN = sa.text("(state IN ('pending', 'running') OR guard_until IS NOT NULL OR reverting IS NOT NULL)")


def upgrade() -> None:
    """Make an index of what is not over, and indexes by time for each place and strategy."""
    op.create_index("ix_intents_open", "intents", ["place"], sqlite_where=_OPEN, postgresql_where=_OPEN)
    for column in ("place", "strategy"):
        op.drop_index(f"ix_intents_{column}", table_name="intents")
        op.create_index(f"ix_intents_{column}_decided", "intents", [column, "decided"])
