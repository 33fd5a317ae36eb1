"""The last event that was sent to each webhook."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from scanflow_server.store.tables import notified


def find_position(connection: Connection, webhook: str) -> int | None:
    """Return the number of the last event sent to a webhook; None: it is new."""
    return connection.execute(select(notified.c.event).where(notified.c.webhook == webhook)).scalar_one_or_none()


def put_position(connection: Connection, webhook: str, event: int) -> None:
    if connection.execute(update(notified).where(notified.c.webhook == webhook).values(event=event)).rowcount == 0:
        connection.execute(insert(notified).values(webhook=webhook, event=event))
