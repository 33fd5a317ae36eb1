"""Agents: which ones this server should run, and the address each reports."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update

from scanflow.errors import AlreadyRunningError
from scanflow_server.store.base import Row
from scanflow_server.store.tables import agents


class AgentRow(Row):
    app: str
    name: str
    team: str = "default"
    document: dict[str, Any] | None = None
    source: str | None = None
    wanted: bool = False
    generation: int = 0
    url: str | None = None
    pid: int | None = None
    started: float | None = None
    seen: float | None = None
    restarts: int = 0
    sensors: list[dict[str, Any]] | None = None


def get(connection: Connection, app: str, name: str) -> AgentRow | None:
    return AgentRow.load_first(connection, select(agents).where(_match(app, name)))


def list_all(connection: Connection) -> list[AgentRow]:
    return AgentRow.load_all(connection, select(agents).order_by(agents.c.app, agents.c.name))


def put(
    connection: Connection,
    *,
    app: str,
    name: str,
    team: str,
    document: dict[str, Any],
    source: str | None,
    restart: bool = False,
) -> AgentRow:
    """Request that an agent of an application run. An identical request changes nothing, unless ``restart``."""
    before = get(connection, app, name)
    wanted: dict[str, Any] = {"team": team, "document": document, "source": source, "wanted": True}
    if before is None:
        after = AgentRow(app=app, name=name, generation=1, **wanted)
        connection.execute(insert(agents).values(after.model_dump(mode="json")))
        return after
    if before.document is not None and before.team != team:
        if before.wanted:
            raise AlreadyRunningError(
                f"The team {before.team!r} already has an agent {app}/{name}. Rename your application or, if that "
                f"agent is yours, stop it first: scanflow agents {app}:{name} --stop"
            )
        # Drop the state of the other team's agent.
        wanted |= {"url": None, "pid": None, "started": None, "seen": None, "restarts": 0, "sensors": None}
    same = before.wanted and not restart and (before.document, before.source) == (document, source)
    after = before.model_copy(update={**wanted, "generation": before.generation + (0 if same else 1)})
    connection.execute(update(agents).where(_match(app, name)).values(**wanted, generation=after.generation))
    return after


def mark_unwanted(connection: Connection, app: str, name: str) -> None:
    connection.execute(update(agents).where(_match(app, name)).values(wanted=False))


def record_address(
    connection: Connection,
    *,
    app: str,
    name: str,
    team: str,
    url: str,
    pid: int,
    at: float,
    sensors: list[dict[str, Any]] | None = None,
) -> bool:
    """Record the address of an agent and the state of its sensors; return whether it is another process than before."""
    before = get(connection, app, name)
    if before is None:
        connection.execute(insert(agents).values(AgentRow(app=app, name=name, team=team).model_dump(mode="json")))
    news = before is None or before.pid != pid or before.url != url
    began = at if news or before is None else before.started
    connection.execute(
        update(agents).where(_match(app, name)).values(url=url, pid=pid, seen=at, started=began, sensors=sensors)
    )
    return news


def count_restart(connection: Connection, app: str, name: str) -> None:
    connection.execute(update(agents).where(_match(app, name)).values(restarts=agents.c.restarts + 1))


def _match(app: str, name: str) -> Any:
    return (agents.c.app == app) & (agents.c.name == name)
