"""Puts an agent's parts together, from what its folder says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scanflow.errors import MissingExtraError
from scanflow.home_token import ensure_home_token, home_token
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.transport.async_client import AsyncClient
from scanflow.transport.server_client import ServerClient
from scanflow.unchanged_reads import UnchangedReads
from scanflow_agents.host.agent_host import AgentHost
from scanflow_agents.host.control_loop import Strategies
from scanflow_agents.host.outbox import Outbox
from scanflow_agents.host.scheduler import ApsScheduler
from scanflow_agents.host.sensor_runner import SensorEnvironment, hosted_sensor
from scanflow_agents.host.server_client import DeliveryClient, ServerEvents
from scanflow_agents.host.spec import AgentSpec
from scanflow_agents.host.store import AgentStore
from scanflow_agents.host.thread_pool import ThreadPool
from scanflow_agents.templates import load_declared
from scanflow_agents.templates.control_plane import ControlPlane


def build(
    folder: Path,
    spec: AgentSpec,
    *,
    clock: Callable[[], float],
    report_trouble: Callable[[str | None], None] = lambda _why: None,
) -> tuple[AgentHost, Callable[[], Awaitable[None]]]:
    """Return the agent's host, and what closes its connections. To be called on the event loop's thread.

    ``report_trouble`` is told what is wrong with the agent while it works, and None when nothing is any more."""
    app, agent = spec.parse()
    if spec.source is not None:
        app = app.replace(app_dir=str((Path(spec.source).parent / app.app_dir).resolve()))
    declared = load_declared(app, agent)
    state = AgentStore(folder / "agent.db")
    workers, token = ThreadPool(), token_of(spec)
    server = None if spec.server is None else AsyncClient(spec.server, token=token)
    client = DeliveryClient(
        app=app.name, agent=agent.name, server=server, connect=lambda url: AsyncClient(url, token=token)
    )
    outbox = Outbox(state=state, post=client, clock=clock)
    environment = SensorEnvironment(
        application=app,
        agent=agent.name,
        clock=clock,
        workers=workers,
        outbox=lambda: outbox,
        tracker=_tracker(spec),
        services=None if spec.server is None else _control_plane(spec, spec.server, token),
    )
    misfire: Any = spec.misfire
    host = AgentHost(
        app=app.name,
        agent=agent.name,
        state=state,
        sensors=[
            hosted_sensor(
                one,
                environment,
                limit_s=spec.sensor_limit_s,
                grace_s=spec.grace_s,
                misfire=misfire,
                strategies=frozenset(strategy.name for strategy in declared.select_strategies(one.name)),
            )
            for one in declared.sensors
        ],
        decider=Strategies(declared.strategies, app=app.name, team=app.team, parameters=agent.parameters),
        outbox=outbox,
        scheduler=ApsScheduler(),
        clock=clock,
        call_later=asyncio.get_running_loop().call_later,
        client=None if server is None else client,
        beat_s=spec.beat_s,
        source=None if server is None else ServerEvents(server),
        report_trouble=report_trouble,
    )
    client.call_self = host.call_self

    async def closing() -> None:
        workers.close()
        await client.close()
        if server is not None:
            await server.close()

    return host, closing


def _control_plane(spec: AgentSpec, server: str, token: str) -> ControlPlane:
    store = None if spec.store is None else Path(spec.store)
    return ControlPlane(ServerClient(server, token=token), unchanged=UnchangedReads(store))


def token_of(spec: AgentSpec) -> str:
    """Return what lets the agent in at its server and at the other agents of its application."""
    return spec.token or os.environ.get("SCANFLOW_TOKEN") or ensure_home_token(Path(spec.home))


def tokens_of(spec: AgentSpec) -> set[str]:
    """Return what lets others in at the agent: its own token, and the home's where it shares that folder."""
    home = home_token(Path(spec.home))
    return {token_of(spec), *([] if home is None else [home])}


def _tracker(spec: AgentSpec) -> KnowledgeBase | None:
    try:
        return open_knowledge(Path(spec.home), spec.tracker_uri, served=True)
    except MissingExtraError:
        return None  # sensors that look at runs are told so by what they ask for
