"""What agents want: intents and what became of them, who owns which field, what was said of an intent, and labels."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_NAME = 128
_JSON = sa.JSON(none_as_null=True)
_COUNTED = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make their tables."""
    op.create_table(
        "intents",
        sa.Column("number", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(_NAME), nullable=False),
        sa.Column("app", sa.String(_NAME), nullable=False),
        sa.Column("team", sa.String(_NAME), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("strategy", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("decided", sa.Float, nullable=False),
        sa.Column("document", _JSON, nullable=False),
        sa.Column("approved_by", sa.Text),
        sa.Column("due", sa.Float),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("guard_before", sa.Float),
        sa.Column("guard_until", sa.Float),
        sa.Column("reverting", sa.Text),
        sa.UniqueConstraint("id", name="uq_intents_id"),
        sa.UniqueConstraint("app", "team", "key", name="uq_intents_app_team_key"),
        sa.PrimaryKeyConstraint("number", name="pk_intents"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_intents_place", "intents", ["place"])
    op.create_index("ix_intents_strategy", "intents", ["strategy"])
    op.create_index("ix_intents_state", "intents", ["state"])
    op.create_table(
        "fields",
        sa.Column("place", sa.String(512), nullable=False),
        sa.Column("field", sa.String(256), nullable=False),
        sa.Column("strategy", sa.Text),
        sa.Column("app", sa.String(_NAME)),
        sa.Column("agent", sa.String(_NAME)),
        sa.Column("intent", sa.String(_NAME)),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("written", _JSON),
        sa.Column("foreign_value", _JSON),
        sa.Column("foreign_since", sa.Float),
        sa.PrimaryKeyConstraint("place", "field", name="pk_fields"),
    )
    op.create_table(
        "trail",
        sa.Column("number", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("intent", sa.String(_NAME), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_trail"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_trail_intent", "trail", ["intent"])
    op.create_table(
        "labels",
        sa.Column("number", _COUNTED, autoincrement=True, nullable=False),
        sa.Column("app", sa.String(_NAME), nullable=False),
        sa.Column("id", sa.String(256), nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.Column("guess", _JSON),
        sa.Column("score", sa.Float),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("label", _JSON),
        sa.Column("by", sa.Text),
        sa.Column("asked", sa.Float, nullable=False),
        sa.Column("given", sa.Float),
        sa.UniqueConstraint("app", "id", name="uq_labels_app_id"),
        sa.PrimaryKeyConstraint("number", name="pk_labels"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_labels_app_state", "labels", ["app", "state"])
