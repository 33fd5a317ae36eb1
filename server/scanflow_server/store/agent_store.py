"""Agents: which ones this server should run, and the address each reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from scanflow.agent.agent_records import StrategyLimits
from scanflow.agent.strategy_limits import compute_digest
from scanflow.errors import AlreadyRunningError
from scanflow_server.store.base import Row
from scanflow_server.store.tables import agents, strategies

_UNSTARTED = {"token_salt": None, "token_hash": None, "strategies": None, "reported": None}
"""The columns that an agent's process has to fill again when another generation starts."""


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
    token_salt: str | None = None
    token_hash: str | None = None
    strategies: str | None = None
    reported: str | None = None

    @property
    def has_other_strategies(self) -> bool:
        """Whether its process last reported other strategies than those stored at its deployment."""
        return self.reported != self.strategies


def find(connection: Connection, app: str, name: str) -> AgentRow | None:
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
    before = find(connection, app, name)
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
    if not same:
        wanted |= _UNSTARTED
        connection.execute(delete(strategies).where((strategies.c.app == app) & (strategies.c.agent == name)))
    after = before.model_copy(update={**wanted, "generation": before.generation + (0 if same else 1)})
    connection.execute(update(agents).where(_match(app, name)).values(**wanted, generation=after.generation))
    return after


def mark_unwanted(connection: Connection, app: str, name: str) -> None:
    """Request that an agent stop; its token is not valid any more."""
    values = {"wanted": False, "token_salt": None, "token_hash": None}
    connection.execute(update(agents).where(_match(app, name)).values(values))


def put_token(connection: Connection, agent: AgentRow, *, salt: str, digest: str) -> AgentRow | None:
    """Store a new token of an agent; None: it was stopped, or is another generation's by now."""
    is_it = _match(agent.app, agent.name) & agents.c.wanted & (agents.c.generation == agent.generation)
    values = {"token_salt": salt, "token_hash": digest}
    if connection.execute(update(agents).where(is_it).values(values)).rowcount == 0:
        return None
    return agent.model_copy(update=values)


def put_strategies(
    connection: Connection, agent: AgentRow, limits: Sequence[StrategyLimits], *, replace: bool
) -> AgentRow:
    """Store what an agent's strategies may do, as its process reports it; what was stored earlier stays, and only the
    report is noted. ``replace``: an editor says it, not the process, whose report then stays as it is."""
    digest, is_it = compute_digest(limits), _match(agent.app, agent.name)
    values = {} if replace and agent.reported is not None else {"reported": digest}
    if replace or agent.strategies is None:
        values["strategies"] = digest
        own = (strategies.c.app == agent.app) & (strategies.c.agent == agent.name)
        connection.execute(delete(strategies).where(own))
        rows = [
            {"app": agent.app, "agent": agent.name, "name": strategy.name, "limits": strategy.model_dump(mode="json")}
            for strategy in limits
        ]
        if rows:
            connection.execute(insert(strategies), rows)
    connection.execute(update(agents).where(is_it).values(values))
    return agent.model_copy(update=values)


def find_limits(connection: Connection, app: str, agent: str, strategy: str) -> StrategyLimits | None:
    query = select(strategies.c.limits).where(
        (strategies.c.app == app) & (strategies.c.agent == agent) & (strategies.c.name == strategy)
    )
    document = connection.execute(query).scalar()
    return None if document is None else StrategyLimits.model_validate(document)


def list_limits(connection: Connection, app: str, agent: str) -> list[StrategyLimits]:
    own = (strategies.c.app == app) & (strategies.c.agent == agent)
    query = select(strategies.c.limits).where(own).order_by(strategies.c.name)
    return [StrategyLimits.model_validate(document) for document in connection.execute(query).scalars()]


def record_address(
    connection: Connection,
    *,
    app: str,
    name: str,
    url: str,
    pid: int,
    at: float,
    sensors: list[dict[str, Any]] | None = None,
) -> bool:
    """Record the address of an agent and the state of its sensors; return whether it is another process than before."""
    before = find(connection, app, name)
    news = before is None or before.pid != pid or before.url != url
    began = at if news or before is None else before.started
    values = {"url": url, "pid": pid, "seen": at, "started": began, "sensors": sensors}
    connection.execute(update(agents).where(_match(app, name)).values(values))
    return news


def count_restart(connection: Connection, app: str, name: str) -> None:
    connection.execute(update(agents).where(_match(app, name)).values(restarts=agents.c.restarts + 1))


def _match(app: str, name: str) -> Any:
    return (agents.c.app == app) & (agents.c.name == name)
