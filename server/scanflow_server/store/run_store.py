"""Requested runs: what each should do next, and how that ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from pydantic import Field
from sqlalchemy import Connection, func, insert, select, update

from scanflow_server.store import usage
from scanflow_server.store.base import Row
from scanflow_server.store.tables import runs


class DriveRequest(Row):
    action: Literal["run", "resume", "spin"]
    """``run`` and ``spin`` start a run, ``resume`` continues one that has ended or was interrupted."""

    application: dict[str, Any] | None = None
    """The application that a resumed run continues with. None: the one in its file."""

    functions: dict[str, str] = Field(default_factory=dict)
    """Digests of its steps' functions."""

    by: str | None = None
    """The author of the request. None: an agent's action."""


class RequestedRun(Row):
    name: str
    app: str
    team: str
    workflow: str
    created: float
    definition: dict[str, Any] | None = None
    source: str | None = None
    drive: int = 1
    asked: DriveRequest
    stop: bool = False
    active: bool = True
    outcome: str | None = None
    problem: dict[str, Any] | None = None


def add(connection: Connection, run: RequestedRun) -> None:
    connection.execute(insert(runs).values(run.model_dump(mode="json")))
    usage.add(connection, run.team, usage.measure(run.definition))


def find(connection: Connection, name: str) -> RequestedRun | None:
    return RequestedRun.load_first(connection, select(runs).where(runs.c.name == name))


class Drive(NamedTuple):
    """One drive of a run, without its documents, which may be large."""

    name: str
    number: int
    stop: bool = False
    team: str = ""


def list_active(connection: Connection, names: Iterable[str] | None = None) -> list[Drive]:
    """Return the drives that are not known to have ended, in the order of requests; of these runs, if any are named."""
    query = (
        select(runs.c.name, runs.c.drive, runs.c.stop, runs.c.team)
        .where(runs.c.active)
        .order_by(runs.c.created, runs.c.name)
    )
    if names is not None:
        query = query.where(runs.c.name.in_(list(names)))
    return [Drive(*row) for row in connection.execute(query)]


def load_states(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """Return the states of these runs, as far as they were requested; until it ends, a run counts as running."""
    query = select(runs.c.name, runs.c.active, runs.c.outcome).where(runs.c.name.in_(list(names)))
    return {name: describe_state(active, outcome) for name, active, outcome in connection.execute(query)}


def describe_state(active: bool, outcome: str | None) -> str:
    return "running" if active else outcome or "failed"


def count_active(connection: Connection, *, team: str | None = None) -> int:
    query = select(func.count()).select_from(runs).where(runs.c.active)
    return int(connection.execute(query if team is None else query.where(runs.c.team == team)).scalar_one())


def drive_again(connection: Connection, name: str, asked: DriveRequest) -> None:
    fresh = {"asked": asked.model_dump(mode="json"), "stop": False, "active": True, "outcome": None, "problem": None}
    connection.execute(update(runs).where(runs.c.name == name).values(drive=runs.c.drive + 1, **fresh))


def stop(connection: Connection, name: str) -> None:
    connection.execute(update(runs).where(runs.c.name == name, runs.c.active).values(stop=True))


def record_end(
    connection: Connection, name: str, drive: int, *, outcome: str, problem: dict[str, Any] | None = None
) -> bool:
    """Record the end of a drive; return whether it was active."""
    statement = update(runs).where(runs.c.name == name, runs.c.drive == drive, runs.c.active)
    return connection.execute(statement.values(active=False, outcome=outcome, problem=problem)).rowcount == 1
