"""The tables of the first release. A new database gets them as they are in ``store.tables``, without any step."""

from __future__ import annotations

revision = "0007"
down_revision = None


def upgrade() -> None:
    """Nothing comes before this step."""
