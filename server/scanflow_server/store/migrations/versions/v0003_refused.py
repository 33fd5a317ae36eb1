"""What was refused, or only observed, is told as such. Both were told as lost, which is what was cut off midway."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_intents = sa.table(
    "intents",
    sa.column("number", sa.BigInteger),
    sa.column("state", sa.String),
    sa.column("verdict", sa.String),
    sa.column("document", sa.JSON(none_as_null=True)),
)
_PIECE = 500


def upgrade() -> None:
    """Name them anew, in the column and in the record."""
    connection, last = op.get_bind(), -1
    while rows := connection.execute(_after(last)).all():
        for row in rows:
            state = "observed" if row.verdict == "observe" else "refused"
            changed: dict[str, Any] = {**row.document, "state": state}
            which = _intents.c.number == row.number
            connection.execute(_intents.update().where(which).values(state=state, document=changed))
        last = rows[-1].number


def _after(number: int) -> Any:
    """Return a piece of what was told as lost and never begun: few enough to be held at once."""
    lost = sa.and_(_intents.c.state == "lost", _intents.c.verdict != "act", _intents.c.number > number)
    columns = (_intents.c.number, _intents.c.verdict, _intents.c.document)
    return sa.select(*columns).where(lost).order_by(_intents.c.number).limit(_PIECE)
