"""Routes of agents: start, stop, show, and receive heartbeats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from scanflow.agent.agent_records import AgentView, StrategyLimits
from scanflow.app.application import Application
from scanflow.app.application_files import dump_document
from scanflow.app.model import find_duplicate
from scanflow.app.plain_secrets import check_no_plain_secrets
from scanflow.app.secrets import iterate_secrets
from scanflow.deployer.embedded import DEFAULT
from scanflow.errors import AccessDeniedError, AlreadyRunningError, InvalidError, NotFoundError, did_you_mean
from scanflow.files.secret_sources import check_secret_sources
from scanflow_server.api_route import DEFINITION, ApiRoute
from scanflow_server.auth import Editor, Proposer, Reader
from scanflow_server.bodies import AppBody, HeartbeatBody, Name, check_name, check_text
from scanflow_server.control.agent_controller import (
    MAX_ENTRIES,
    describe_agent,
    fetch_journal,
    get_process,
    has_other_code,
)
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.scope import OwnAgent, get_agent, read_own_application
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.store import agent_store, application_store, event_store
from scanflow_server.store.agent_store import AgentRow
from scanflow_server.store.secret_store import load_masker
from scanflow_server.token_roles import PERMISSIONS, TokenHolder

router = APIRouter(prefix="/agents", tags=["agents"], responses=PROBLEMS, route_class=ApiRoute)

_MAX_STRATEGIES = 10_000
_MAX_NAME_LENGTH = 128


class HeartbeatReply(BaseModel):
    """The answer to a heartbeat while somebody looks at the agents; else it has no content."""

    model_config = ConfigDict(frozen=True)

    watched: bool = True


_WATCHED: dict[int | str, dict[str, Any]] = {200: {"model": HeartbeatReply, "description": "Somebody looks at it."}}


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
def start(context: ContextDep, caller: Editor, app: Name, agent: Name, body: AppBody) -> AgentView:
    """Start an agent of an application, and keep it running; restart it if the application or its files have changed.

    One that another team wants is left to that team. When it is wanted no more and has ended, it may be another team's,
    which begins with a folder of its own.
    """
    application = read_own_application(context, caller, body.application, body.source)
    check_name(app, application)
    check_no_plain_secrets(application)
    names = [declared.name for declared in application.agents]
    if agent not in names:
        raise NotFoundError(f"The application {app!r} has no agent {agent!r}.{did_you_mean(agent, names)}")
    _check_secrets(context, application, agent)
    document = dump_document(application)
    process = context.agents.show(app, application.team, agent)
    restart = has_other_code(process, document, body.source)
    with context.store.write() as connection:
        before = agent_store.find(connection, app, agent)
        if before is not None and before.wanted and not caller.can_see(before.team):
            raise AlreadyRunningError(
                f"The agent name {app}/{agent} is taken. Names of applications with agents are shared by all teams: "
                "rename your application."
            )
        _check_ended(context, before, team=application.team)
        restart = restart or (before is not None and before.has_other_strategies)
        application_store.keep(connection, application, body.source, at=context.clock())
        row = agent_store.put(
            connection,
            app=app,
            name=agent,
            team=application.team,
            document=document,
            source=body.source,
            restart=restart,
        )
    context.token_notifier.notify()  # that of an earlier generation is not valid any more
    context.work_notifier.notify()
    return describe_agent(context, row)


def _check_secrets(context: ServerContext, application: Application, name: str) -> None:
    """Refuse an agent of this machine that refers to a secret that is not here."""
    if context.settings.library.backend in {None, DEFAULT}:
        agent = next(declared for declared in application.agents if declared.name == name)
        sources = [secret.source for secret in iterate_secrets([agent.parameters, agent.sensors])]
        check_secret_sources(sources, Path(application.app_dir), who=f"Agent {name!r}")


@router.delete("/{app}/{agent}")
def stop(context: ContextDep, caller: Editor, agent: OwnAgent) -> AgentView:
    """Stop an agent. Its state is kept; its token is not valid any more."""
    with context.store.write() as connection:
        agent_store.mark_unwanted(connection, agent.app, agent.name)
    context.token_notifier.notify()
    if agent.document is not None:
        context.agents.stop(agent.app, agent.team, agent.name)  # at once, since this server may be about to end too
    context.work_notifier.notify()
    return describe_agent(context, get_agent(context, caller, agent.app, agent.name))


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


@router.get("/{app}/{agent}/strategies")
def strategies(context: ContextDep, _caller: Reader, agent: OwnAgent) -> list[StrategyLimits]:
    """List what an agent's strategies may do, as stored at its deployment. What exceeds it waits for approval."""
    with context.store.read() as connection:
        limits = [row.model_dump(mode="json") for row in agent_store.list_limits(connection, agent.app, agent.name)]
        masked = load_masker(connection, agent.app, agent.team).mask(limits)
    return [StrategyLimits.model_validate(document) for document in masked]


@router.put("/{app}/{agent}/strategies", status_code=204)
def report_strategies(
    context: ContextDep,
    caller: Proposer,
    app: Name,
    agent: Name,
    body: Annotated[list[StrategyLimits], Body(max_length=_MAX_STRATEGIES)],
) -> Response:
    """Store what an agent's strategies may do.

    The agent reports it itself, at the start of its process; what it reports first after it was deployed is stored, and
    what it reports later changes nothing until it is deployed again. An editor may replace what is stored until then,
    which leaves an event ``agent.limits``.
    """
    caller.check_agent(app, agent)
    _check_strategies(body)
    with context.store.write() as connection:
        row = _get_visible(agent_store.find(connection, app, agent), caller, app, agent)
        if caller.agent is None:
            caller.check("change", row.team)
        elif caller.agent_token_hash != row.token_hash:  # of an earlier deployment, which a server may still accept
            raise AccessDeniedError(f"The agent {app}/{agent} was stopped or deployed again. Its token is not valid.")
        agent_store.put_strategies(connection, row, body, replace=caller.agent is None)
        if caller.agent is None:
            data = {"by": caller.name, "strategies": [strategy.name for strategy in body]}
            at, subject = context.clock(), f"agent/{agent}"
            event_store.record(connection, "agent.limits", subject, at=at, app=app, team=row.team, data=data)
    return Response(status_code=204)


@router.post("/{app}/{agent}/heartbeat", name="heartbeat", status_code=204, responses=_WATCHED)
@router.post("/{app}/{agent}/here", include_in_schema=False, status_code=204)  # by agents from before an upgrade
async def record_heartbeat(
    context: ContextDep, caller: Proposer, app: Name, agent: Name, body: HeartbeatBody
) -> Response:
    """Record an agent's address and the state of its sensors. It reports them when they fire, at most every 5 s, and
    every 20 s while none does; where the answer says ``watched``, as somebody looks at a page of agents, each firing.
    Only the agent's own token, or an editor's, reports them of an agent that this server runs."""
    caller.check_agent(app, agent)
    row = context.heartbeats.get(app, agent)
    is_news = row is None or (row.url, row.pid) != (body.url, body.pid)
    if row is None or is_news or not caller.can_see(row.team) or not _speaks_for(caller, row):
        row = await run_in_threadpool(_register_address, context, caller, app, agent, body)
    context.heartbeats.note(row, at=context.clock(), sensors=_dump_sensors(body))
    return JSONResponse(HeartbeatReply().model_dump()) if context.heartbeats.is_watched else Response(status_code=204)


def _register_address(
    context: ServerContext, caller: TokenHolder, app: str, agent: str, body: HeartbeatBody
) -> AgentRow:
    """Record an agent's address, with an event if it has changed, and return the agent."""
    at = context.clock()
    with context.store.write() as connection:
        before = _get_visible(agent_store.find(connection, app, agent), caller, app, agent)
        if not _speaks_for(caller, before):
            caller.check("change", before.team)
        sensors, url, pid = _dump_sensors(body), body.url, body.pid
        if agent_store.record_address(connection, app=app, name=agent, url=url, pid=pid, at=at, sensors=sensors):
            data: dict[str, Any] = {"url": url, "pid": pid}
            event_store.record(
                connection, "agent.started", f"agent/{agent}", at=at, app=app, team=before.team, data=data
            )
        row = agent_store.find(connection, app, agent)
    assert row is not None
    return row


def _get_visible(row: AgentRow | None, caller: TokenHolder, app: str, agent: str) -> AgentRow:
    """Return an agent that the caller may know of; an unknown one and another team's are told apart by nothing."""
    if row is None or not caller.can_see(row.team):
        raise NotFoundError(f"There is no agent {app}/{agent}. Deploy it first: scanflow agents --start app.py:{agent}")
    return row


def _speaks_for(caller: TokenHolder, row: AgentRow) -> bool:
    """Whether a caller may report the state of an agent: an agent that the server runs has a token of its own."""
    return row.document is None or caller.agent == (row.app, row.name) or "change" in PERMISSIONS[caller.role]


def _check_strategies(strategies: list[StrategyLimits]) -> None:
    check_text([strategy.model_dump(mode="json") for strategy in strategies])
    names = [strategy.name for strategy in strategies]
    if doubled := find_duplicate(names):
        raise InvalidError(f"There are two strategies named {doubled!r}. Rename one.")
    for name in names:
        if not 1 <= len(name) <= _MAX_NAME_LENGTH:
            raise InvalidError(f"The strategy's name {name!r:.60} must have 1 to {_MAX_NAME_LENGTH} characters.")


def _dump_sensors(body: HeartbeatBody) -> list[dict[str, Any]] | None:
    return None if body.sensors is None else [sensor.model_dump(mode="json") for sensor in body.sensors]


def _check_ended(context: ServerContext, before: AgentRow | None, *, team: str) -> None:
    if before is None or before.document is None or before.team == team or before.wanted:
        return
    if get_process(context, before).alive:
        raise AlreadyRunningError(
            f"The agent {before.app}/{before.name} of another team is still stopping. Try again in a moment."
        )
