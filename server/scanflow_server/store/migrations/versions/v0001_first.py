"""The first tables: applications, runs, operations, events, agents and idempotency keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_JSON = sa.JSON(none_as_null=True)
_COUNTED = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "applications",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("team", sa.String(128), nullable=False),
        sa.Column("document", _JSON, nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("name", "team", name="pk_applications"),
    )
    op.create_table(
        "runs",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("app", sa.String(128), nullable=False),
        sa.Column("team", sa.String(128), nullable=False),
        sa.Column("workflow", sa.String(128), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("definition", _JSON),
        sa.Column("source", sa.Text),
        sa.Column("drive", sa.Integer, nullable=False),
        sa.Column("asked", _JSON, nullable=False),
        sa.Column("stop", sa.Boolean, nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.String(32)),
        sa.Column("problem", _JSON),
        sa.PrimaryKeyConstraint("name", name="pk_runs"),
    )
    op.create_index("ix_runs_active", "runs", ["active"])
    op.create_table(
        "operations",
        sa.Column("number", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("service", sa.String(128), nullable=False),
        sa.Column("app", sa.String(128), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("ended", sa.Float),
        sa.Column("progress", _JSON),
        sa.Column("result", _JSON),
        sa.Column("problem", _JSON),
        sa.PrimaryKeyConstraint("number", name="pk_operations"),
        sa.UniqueConstraint("id", name="uq_operations_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_operations_state", "operations", ["state"])
    op.create_table(
        "events",
        sa.Column("id", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("type", sa.String(128), nullable=False),
        sa.Column("app", sa.String(128), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_type", "events", ["type"])
    op.create_table(
        "agents",
        sa.Column("app", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("team", sa.String(128), nullable=False),
        sa.Column("document", _JSON),
        sa.Column("source", sa.Text),
        sa.Column("wanted", sa.Boolean, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("url", sa.Text),
        sa.Column("pid", sa.BigInteger),
        sa.Column("started", sa.Float),
        sa.Column("seen", sa.Float),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("app", "name", name="pk_agents"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("target", sa.String(128), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency_keys"),
    )
