"""Changes of services that somebody asked for, and how they ended."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, insert, select, update

from scanflow_server.store.tables import operations

Kind = Literal["deploy", "change", "delete"]
_OPEN = ("queued", "running")


class OperationRow(BaseModel):
    """One change of one service."""

    model_config = ConfigDict(frozen=True)

    number: int = 0
    """The order in which changes of one service are made."""

    id: str
    kind: str
    service: str
    app: str = ""
    request: dict[str, Any]
    created: float
    state: Literal["queued", "running", "succeeded", "failed"] = "running"
    """``queued``: its turn has not come."""

    ended: float | None = None
    progress: list[str] | None = None
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None


def add(connection: Connection, operation: OperationRow) -> None:
    """Note a change that is to be made."""
    connection.execute(insert(operations).values(operation.model_dump(mode="json", exclude={"number"})))


def get(connection: Connection, id: str) -> OperationRow | None:
    """Return one of them."""
    row = connection.execute(select(operations).where(operations.c.id == id)).mappings().first()
    return None if row is None else OperationRow.model_validate(dict(row))


def running(connection: Connection) -> list[OperationRow]:
    """Return those that have not ended, the queued ones too, in the order they were requested in."""
    query = select(operations).where(operations.c.state.in_(_OPEN)).order_by(operations.c.number)
    return [OperationRow.model_validate(dict(row)) for row in connection.execute(query).mappings()]


def release(connection: Connection, id: str) -> None:
    """Let a queued one begin."""
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
    """Note how one ended; say whether that is news."""
    done = connection.execute(
        update(operations)
        .where(operations.c.id == id, operations.c.state.in_(_OPEN))
        .values(
            state="succeeded" if problem is None else "failed",
            ended=at,
            progress=progress,
            result=result,
            problem=problem,
        )
    )
    return done.rowcount == 1
