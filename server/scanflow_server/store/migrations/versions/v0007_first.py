"""The tables of the first release. A new database is created from ``store.tables``, without any step."""

from __future__ import annotations

revision = "0007"
down_revision = None


def upgrade() -> None:
    """Do nothing: this is the first step."""
