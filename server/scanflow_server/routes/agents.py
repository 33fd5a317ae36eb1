"""Agents: wanted, looked at, and where each says that it is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from scanflow.agent.records import AgentView
from scanflow.errors import AlreadyRunningError, NotFoundError, did_you_mean
from scanflow_server import requests
from scanflow_server.bodies import AppBody, HereBody, Name, read_application_of
from scanflow_server.context import Given, ServerContext
from scanflow_server.control.agents import has_other_code, view_of
from scanflow_server.problems import PROBLEMS
from scanflow_server.store import agents as stored
from scanflow_server.store import events
from scanflow_server.store.agents import AgentRow

router = APIRouter(prefix="/agents", tags=["agents"], responses=PROBLEMS)


@router.get("")
def agents(context: Given) -> list[AgentView]:
    """List all agents, by application and name."""
    with context.store.read() as connection:
        known = stored.listed(connection)
    return [view_of(context, one) for one in known]


@router.get("/{app}/{agent}")
def agent(context: Given, app: Name, agent: Name) -> AgentView:
    """Show one agent."""
    return view_of(context, _known(context, app, agent))


@router.put("/{app}/{agent}")
def start(context: Given, app: Name, agent: Name, body: AppBody) -> AgentView:
    """Have an agent of an application running from now on; with another application, or other files, than before it is
    started anew.

    One that another team wants is left to that team. When it is wanted no more and has ended, it may be another team's,
    which begins with a folder of its own.
    """
    made = read_application_of(app, body)
    names = [one.name for one in made.agents]
    if agent not in names:
        raise NotFoundError(f"The application {app!r} has no agent {agent!r}.{did_you_mean(agent, names)}")
    document = requests.document_of(made)
    anew = has_other_code(context.agent_job(app, agent), document, body.source, agent)
    with context.store.write() as connection:
        _check_ended(context, stored.get(connection, app, agent), team=made.team)
        requests.keep_application(connection, made, body.source, at=context.clock())
        one = stored.put(
            connection, app=app, name=agent, team=made.team, document=document, source=body.source, anew=anew
        )
    context.work.notify()
    return view_of(context, one)


@router.delete("/{app}/{agent}")
def stop(context: Given, app: Name, agent: Name) -> AgentView:
    """Have an agent ended; what it has kept is kept."""
    one = _known(context, app, agent)
    with context.store.write() as connection:
        stored.unwant(connection, app, agent)
    if one.document is not None:
        context.agent_job(app, agent).daemon.stop()  # at once, since this server may be about to end too
    context.work.notify()
    return view_of(context, _known(context, app, agent))


@router.post("/{app}/{agent}/here", status_code=204)
def here(context: Given, app: Name, agent: Name, body: HereBody) -> Response:
    """Take note of where an agent is; it says so every 5 s."""
    at = context.clock()
    with context.store.write() as connection:
        if stored.here(connection, app=app, name=agent, url=body.url, pid=body.pid, at=at):
            data: dict[str, Any] = {"url": body.url, "pid": body.pid}
            events.tell(connection, "agent.started", f"agent/{agent}", at=at, app=app, data=data)
    return Response(status_code=204)


def _check_ended(context: ServerContext, before: AgentRow | None, *, team: str) -> None:
    if before is None or before.document is None or before.team == team or before.wanted:
        return
    if context.agent_job(before.app, before.name).alive:
        raise AlreadyRunningError(
            f"The agent {before.app}/{before.name} of the team {before.team!r} is still ending. Ask again in a moment."
        )


def _known(context: ServerContext, app: str, name: str) -> AgentRow:
    with context.store.read() as connection:
        found = stored.get(connection, app, name)
        if found is None:
            names = [f"{one.app}/{one.name}" for one in stored.listed(connection)]
            raise NotFoundError(f"There is no agent {app}/{name}.{did_you_mean(f'{app}/{name}', names)}")
    return found
