"""Routes of agents: start, stop, show, and receive heartbeats."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from scanflow.agent.records import AgentView
from scanflow.errors import AlreadyRunningError, NotFoundError, did_you_mean
from scanflow_server import requests
from scanflow_server.access import TokenHolder
from scanflow_server.api_route import DEFINITION, ApiRoute
from scanflow_server.auth import Editor, Proposer, Reader
from scanflow_server.bodies import AppBody, HeartbeatBody, Name, check_name
from scanflow_server.context import ContextDep, ServerContext
from scanflow_server.control.agents import MAX_ENTRIES, describe_agent, fetch_journal, get_process, has_other_code
from scanflow_server.problems import PROBLEMS
from scanflow_server.scope import OwnAgent, find_agent, read_own_application
from scanflow_server.store import agents as agent_store
from scanflow_server.store import events
from scanflow_server.store.agents import AgentRow
from scanflow_server.store.secrets import load_masker

router = APIRouter(prefix="/agents", tags=["agents"], responses=PROBLEMS, route_class=ApiRoute)


@router.get("")
def agents(context: ContextDep, caller: Reader) -> list[AgentView]:
    """List all agents, sorted by application and name."""
    with context.store.read() as connection:
        rows = [row for row in agent_store.list_all(connection) if caller.can_see(row.team)]
    return [describe_agent(context, row) for row in rows]


@router.get("/{app}/{agent}")
def agent(context: ContextDep, _caller: Reader, agent: OwnAgent) -> AgentView:
    """Show one agent."""
    return describe_agent(context, agent)


@router.put("/{app}/{agent}", dependencies=[DEFINITION])
def start(context: ContextDep, request: Request, caller: Editor, app: Name, agent: Name, body: AppBody) -> AgentView:
    """Start an agent of an application, and keep it running; restart it if the application or its files have changed.

    One that another team wants is left to that team. When it is wanted no more and has ended, it may be another team's,
    which begins with a folder of its own.
    """
    application = read_own_application(context, caller, body.application, body.source)
    check_name(app, application)
    names = [declared.name for declared in application.agents]
    if agent not in names:
        raise NotFoundError(f"The application {app!r} has no agent {agent!r}.{did_you_mean(agent, names)}")
    document = requests.to_document(application)
    process = context.agents.show(app, application.team, agent)
    restart = has_other_code(process, document, body.source)
    with context.store.write() as connection:
        before = agent_store.get(connection, app, agent)
        if before is not None and before.wanted and not caller.can_see(before.team):
            raise AlreadyRunningError(
                f"The agent name {app}/{agent} is taken. Names of applications with agents are shared by all teams: "
                "rename your application."
            )
        _check_ended(context, before, team=application.team)
        requests.keep_application(connection, application, body.source, at=context.clock())
        row = agent_store.put(
            connection,
            app=app,
            name=agent,
            team=application.team,
            document=document,
            source=body.source,
            restart=restart,
        )
    request.app.state.callers.reload()  # it has a token of its own
    context.work_notifier.notify()
    return describe_agent(context, row)


@router.delete("/{app}/{agent}")
def stop(context: ContextDep, caller: Editor, agent: OwnAgent) -> AgentView:
    """Stop an agent. Its state is kept."""
    with context.store.write() as connection:
        agent_store.mark_unwanted(connection, agent.app, agent.name)
    if agent.document is not None:
        context.agents.stop(agent.app, agent.team, agent.name)  # at once, since this server may be about to end too
    context.work_notifier.notify()
    return describe_agent(context, find_agent(context, caller, agent.app, agent.name))


@router.get("/{app}/{agent}/journal")
def journal(
    context: ContextDep,
    _caller: Reader,
    agent: OwnAgent,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 1000,
) -> list[dict[str, Any]]:
    """Return the entries of an agent's journal after that number, the oldest first: samples, intents, calls, decisions,
    misses and errors. The agent must be running."""
    entries = fetch_journal(context, agent, after=after, limit=limit)
    with context.store.read() as connection:
        masked: list[dict[str, Any]] = load_masker(connection, agent.app, agent.team).mask(entries)
    return masked


@router.post("/{app}/{agent}/here", name="here", status_code=204)
async def record_heartbeat(
    context: ContextDep, caller: Proposer, app: Name, agent: Name, body: HeartbeatBody
) -> Response:
    """Record an agent's address and the state of its sensors. It reports them every 5 s while they fire, else every
    20."""
    row = context.heartbeats.get(app, agent)
    if row is None or (row.url, row.pid) != (body.url, body.pid) or not caller.can_see(row.team):
        row = await run_in_threadpool(_register_address, context, caller, app, agent, body)
    context.heartbeats.note(row, at=context.clock(), sensors=_dump_sensors(body))
    return Response(status_code=204)


def _register_address(
    context: ServerContext, caller: TokenHolder, app: str, agent: str, body: HeartbeatBody
) -> AgentRow:
    """Record an agent's address, with an event if it has changed, and return the agent."""
    at = context.clock()
    with context.store.write() as connection:
        before = agent_store.get(connection, app, agent)
        if before is not None and not caller.can_see(before.team):
            raise NotFoundError(f"There is no agent {app}/{agent}.")
        team = before.team if before is not None else caller.team or "default"
        sensors, url, pid = _dump_sensors(body), body.url, body.pid
        if agent_store.record_address(
            connection, app=app, name=agent, team=team, url=url, pid=pid, at=at, sensors=sensors
        ):
            data: dict[str, Any] = {"url": url, "pid": pid}
            events.record(connection, "agent.started", f"agent/{agent}", at=at, app=app, team=team, data=data)
        row = agent_store.get(connection, app, agent)
    assert row is not None
    return row


def _dump_sensors(body: HeartbeatBody) -> list[dict[str, Any]] | None:
    return None if body.sensors is None else [sensor.model_dump(mode="json") for sensor in body.sensors]


def _check_ended(context: ServerContext, before: AgentRow | None, *, team: str) -> None:
    if before is None or before.document is None or before.team == team or before.wanted:
        return
    if get_process(context, before).alive:
        raise AlreadyRunningError(
            f"The agent {before.app}/{before.name} of another team is still stopping. Try again in a moment."
        )
