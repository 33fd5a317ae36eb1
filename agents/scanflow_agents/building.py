"""Puts an agent's parts together, from what its folder says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scanflow.agent.registry import Declared, load_agent
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.errors import MissingExtraError
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.transport.async_events import AsyncEvents
from scanflow.transport.async_json import AsyncJson
from scanflow.transport.server import Server
from scanflow_agents.deciding import Strategies
from scanflow_agents.host import Host
from scanflow_agents.outbox import Outbox
from scanflow_agents.remote import Correspondent, ServerEvents
from scanflow_agents.scheduler import ApsAlarms
from scanflow_agents.sensing import Surroundings, hosted
from scanflow_agents.spec import AgentSpec
from scanflow_agents.state import AgentState
from scanflow_agents.templates import template_of
from scanflow_agents.templates.desk import ServerDesk
from scanflow_agents.workers import Workers

__all__ = ["build", "load_declared"]


def load_declared(app: Application, agent: Agent) -> Declared:
    """Return what the agent does: its template's sensors and strategies, and its own in their place.

    Raises:
        UsageError: its code cannot be loaded; the message has the line.
    """
    return load_agent(app, agent, template=None if agent.template is None else template_of(agent.template))


def build(
    folder: Path,
    spec: AgentSpec,
    *,
    clock: Callable[[], float],
    chance: Callable[[], float],
    ails: Callable[[str | None], None] = lambda _why: None,
) -> tuple[Host, Callable[[], Awaitable[None]]]:
    """Return the agent's host, and what lets go of its connections. To be called on the event loop's thread.

    ``ails`` is told what is wrong with the agent while it works, and None when nothing is any more.

    Raises:
        UsageError: what the folder says cannot be hosted.
        UnavailableError: the agent's state cannot be opened.
    """
    app, agent = spec.parse()
    if spec.source is not None:
        app = app.replace(app_dir=str((Path(spec.source).parent / app.app_dir).resolve()))
    declared = load_declared(app, agent)
    state = AgentState(folder / "agent.db")
    workers = Workers()
    server = None if spec.server is None else AsyncJson(spec.server, token=spec.token)
    streams = None if spec.server is None else AsyncEvents(spec.server, token=spec.token)
    correspondent = Correspondent(
        app=app.name,
        agent=agent.name,
        server=server,
    )
    outbox = Outbox(state=state, post=correspondent, clock=clock, chance=chance)
    around = Surroundings(
        application=app,
        agent=agent.name,
        clock=clock,
        workers=workers,
        outbox=lambda: outbox,
        tracker=_tracker(spec),
        services=None if spec.server is None else ServerDesk(Server(spec.server, token=spec.token)),
    )
    misfire: Any = spec.misfire
    host = Host(
        app=app.name,
        agent=agent.name,
        state=state,
        sensors=[
            hosted(
                one,
                around,
                limit_s=spec.sensor_limit_s,
                grace_s=spec.grace_s,
                misfire=misfire,
                strategies=frozenset(strategy.name for strategy in declared.strategies_of(one.name)),
            )
            for one in declared.sensors
        ],
        decider=Strategies(declared.strategies, app=app.name, team=app.team, parameters=agent.parameters),
        outbox=outbox,
        alarms=ApsAlarms(),
        clock=clock,
        call_later=asyncio.get_running_loop().call_later,
        correspondent=None if server is None else correspondent,
        beat_s=spec.beat_s,
        source=None if server is None or streams is None else ServerEvents(server, streams),
        chance=chance,
        ails=ails,
    )
    correspondent.call_self = host.call_self

    async def closing() -> None:
        workers.close()
        await correspondent.close()
        for connection in (server, streams):
            if connection is not None:
                await connection.close()

    return host, closing


def _tracker(spec: AgentSpec) -> KnowledgeBase | None:
    try:
        return open_knowledge(Path(spec.home), spec.tracker_uri)
    except MissingExtraError:
        return None  # sensors that look at runs are told so by what they ask for
