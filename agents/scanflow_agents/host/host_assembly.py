"""Build an agent's host from its specification."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from scanflow.agent.strategy_limits import describe_limits
from scanflow.errors import MissingExtraError
from scanflow.files.unchanged_reads import UnchangedReads
from scanflow.http.home_token import ensure_home_token, read_home_token
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.processes.masked_output import OutputMask
from scanflow.transport.async_client import AsyncClient
from scanflow.transport.server_client import ServerClient
from scanflow_agents.host.agent_host import AgentHost
from scanflow_agents.host.agent_secrets import anchor_secrets, mask_secrets_of
from scanflow_agents.host.agent_state import AgentStore
from scanflow_agents.host.host_clients import DeliveryClient, ServerEvents
from scanflow_agents.host.outbox import Outbox
from scanflow_agents.host.scheduler import ApsScheduler
from scanflow_agents.host.sensor_runner import SensorEnvironment, build_hosted_sensor
from scanflow_agents.host.spec import AgentSpec
from scanflow_agents.host.strategy_runner import Strategies
from scanflow_agents.host.thread_pool import ThreadPool
from scanflow_agents.templates import load_declared
from scanflow_agents.templates.template_client import ControlPlane


def build(
    folder: Path,
    spec: AgentSpec,
    *,
    clock: Callable[[], float],
    report_trouble: Callable[[str | None], None],
    output: OutputMask,
) -> tuple[AgentHost, Callable[[], Awaitable[None]]]:
    """Return the agent's host, and a function that closes its connections. To be called on the event loop's thread.

    ``report_trouble`` receives a description of the failures in the running agent, and None once there are none.
    ``output`` masks the agent's secrets."""
    app, agent = spec.parse()
    if spec.source is not None:
        app = app.replace(app_dir=str((Path(spec.source).parent / app.app_dir).resolve()))
    app = anchor_secrets(app)
    agent = next(other for other in app.agents if other.name == agent.name)
    mask_secrets_of(agent, app, output)
    declared = load_declared(app, agent)
    state = AgentStore(folder / "agent.db")
    workers, token = ThreadPool(), get_token(spec)
    server = None if spec.server is None else AsyncClient(spec.server, token=token)
    client = DeliveryClient(
        app=app.name,
        agent=agent.name,
        server=server,
        connect=lambda url: AsyncClient(url, token=get_peer_token(spec)),
        strategies=[describe_limits(strategy, agent.parameters) for strategy in declared.strategies],
    )
    outbox = Outbox(state=state, post=client, clock=clock)
    environment = SensorEnvironment(
        application=app,
        agent=agent.name,
        clock=clock,
        workers=workers,
        outbox=lambda: outbox,
        tracker=open_tracker(spec, app.team),
        services=None if spec.server is None else _build_control_plane(spec, spec.server, token),
    )
    host = AgentHost(
        app=app.name,
        agent=agent.name,
        state=state,
        sensors=[
            build_hosted_sensor(
                sensor,
                environment,
                limit_s=spec.sensor_limit_s,
                strategies=frozenset(strategy.name for strategy in declared.select_strategies(sensor.name)),
            )
            for sensor in declared.sensors
        ],
        decider=Strategies(declared.strategies, app=app.name, team=app.team, parameters=agent.parameters, store=state),
        outbox=outbox,
        scheduler=ApsScheduler(),
        clock=clock,
        call_later=asyncio.get_running_loop().call_later,
        client=None if server is None else client,
        heartbeat_s=spec.heartbeat_s,
        source=None if server is None else ServerEvents(server),
        report_trouble=report_trouble,
        masker=output.masker,
    )
    client.call_self = host.call_self

    async def close() -> None:
        workers.close()
        await client.close()
        if server is not None:
            await server.close()

    return host, close


def _build_control_plane(spec: AgentSpec, server: str, token: str) -> ControlPlane:
    store = None if spec.store is None else Path(spec.store)
    return ControlPlane(ServerClient(server, token=token), unchanged=UnchangedReads(store))


def get_token(spec: AgentSpec) -> str:
    """Return the agent's own token, for the server."""
    return spec.token or os.environ.get("SCANFLOW_TOKEN") or ensure_home_token(Path(spec.home))


def get_peer_token(spec: AgentSpec) -> str:
    """Return the token of the agents of its application among themselves."""
    return spec.peer_token or os.environ.get("SCANFLOW_PEER_TOKEN") or get_token(spec)


def list_accepted_tokens(spec: AgentSpec) -> set[str]:
    """Return the tokens that the agent's API accepts: its peers', and the home's if it shares that folder."""
    home = read_home_token(Path(spec.home))
    return {get_peer_token(spec), *([] if home is None else [home])}


def open_tracker(spec: AgentSpec, team: str) -> KnowledgeBase | None:
    try:
        return open_knowledge(Path(spec.home), spec.tracker_uri, served=True).for_team(team)
    except MissingExtraError:
        return None  # sensors that need runs raise an error
