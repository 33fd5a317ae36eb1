"""Requested changes of services, and how they ended."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Connection, insert, select, update

from scanflow_server.store.base import Row
from scanflow_server.store.tables import operations

Kind = Literal["deploy", "change", "delete"]
_OPEN = operations.c.state.in_(("queued", "running"))


class OperationRow(Row):
    number: int = 0
    id: str
    kind: str
    service: str
    app: str = ""
    team: str = ""
    """Empty: unknown, for operations created before teams were recorded."""

    request: dict[str, Any]
    created: float
    state: Literal["queued", "running", "succeeded", "failed"] = "running"
    """``queued``: it waits for its turn."""

    ended: float | None = None
    progress: list[str] | None = None
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None


def add(connection: Connection, operation: OperationRow) -> None:
    connection.execute(insert(operations).values(operation.model_dump(mode="json", exclude={"number"})))


def get(connection: Connection, id: str) -> OperationRow | None:
    return OperationRow.load_first(connection, select(operations).where(operations.c.id == id))


def list_open(connection: Connection) -> list[OperationRow]:
    return OperationRow.load_all(connection, select(operations).where(_OPEN).order_by(operations.c.number))


def release(connection: Connection, id: str) -> None:
    waits = (operations.c.id == id) & (operations.c.state == "queued")
    connection.execute(update(operations).where(waits).values(state="running"))


def end(
    connection: Connection,
    id: str,
    *,
    at: float,
    progress: list[str],
    result: dict[str, Any] | None = None,
    problem: dict[str, Any] | None = None,
) -> bool:
    """Record the end of an operation; return whether it was open."""
    state = "succeeded" if problem is None else "failed"
    values = {"state": state, "ended": at, "progress": progress, "result": result, "problem": problem}
    return connection.execute(update(operations).where(operations.c.id == id, _OPEN).values(values)).rowcount == 1
