"""Add what agents' strategies may do, and a token for each agent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scanflow_server.store.tables import agents, strategies

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Agents are restarted with a token of their own, and then report their strategies."""
    for name in ("token_salt", "token_hash", "strategies", "reported"):
        op.add_column(agents.name, sa.Column(name, agents.c[name].type))
    strategies.create(op.get_bind())
