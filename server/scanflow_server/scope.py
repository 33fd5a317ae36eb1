"""Dependencies that restrict routes to the caller's team: other teams' resources look like missing ones.

There is one for each path parameter that names a resource. Callers of all teams are not restricted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi import Path as InPath

from scanflow.app.application import Application
from scanflow.backends.run_records import RunRecord
from scanflow.deployer.embedded import DEFAULT
from scanflow.errors import ForbiddenError, NotFoundError, did_you_mean
from scanflow_server import run_requests
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.auth import Reader
from scanflow_server.bodies import Name, RunName, read_application
from scanflow_server.function_owners import FunctionOwners
from scanflow_server.progress_events import get_operation, make_operation_not_found
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.service_drivers import check_service_exists
from scanflow_server.store import agent_store, intent_store
from scanflow_server.store.agent_store import AgentRow
from scanflow_server.store.intent_store import ActionRow
from scanflow_server.token_roles import TokenHolder

_IntentId = Annotated[str, InPath(min_length=1, max_length=128, pattern=r"^[!-.0-~]+$")]
_NO_TEAM = "-"
"""A team name that no team has."""


def restrict_team(caller: TokenHolder, team: str | None) -> str | None:
    """Return the team by which to filter a list requested for ``team`` (None: all), restricted to the caller's."""
    if caller.team is None:
        return team
    return caller.team if team in {None, "", caller.team} else _NO_TEAM


def read_own_application(
    context: ServerContext, caller: TokenHolder, document: Mapping[str, Any], source: str | None = None
) -> Application:
    """Parse an application of the caller's team and make its folder absolute.

    Raises:
        ForbiddenError: it says another team than the caller's, or names files that are the server's.
        NotFoundError: it names a function that another team has sent.
    """
    app = read_application(document, source)
    caller.check("change", app.team)
    if caller.team is not None:
        FunctionOwners(context.settings.folder).check(caller.team, app)
    if caller.team is not None and context.settings.library.backend not in {None, DEFAULT}:
        for path in (app.app_dir, source):
            _check_file(context, path)
    return app


def _check_file(context: ServerContext, path: str | Path | None) -> None:
    """Refuse a path of the server's machine, whose files a team's token does not grant."""
    if path is None:
        return
    settings, real = context.settings, Path(path).resolve()
    if any(real.is_relative_to(Path(folder).resolve()) for folder in settings.team_folders.split(":") if folder):
        return
    if real.is_relative_to(settings.home.resolve()) or real.exists():
        raise ForbiddenError(
            f"{str(path)!r} is on the server's machine, whose files a team's token cannot access. Build an image with "
            "the application's files: scanflow build --push. Or have the server's operator allow a folder: "
            "SCANFLOW_TEAM_FOLDERS"
        )


def get_own_run(context: ServerContext, caller: TokenHolder, run: str) -> RunRecord:
    """Return a run with its tasks; NotFoundError: there is none, or it is another team's."""
    if caller.team is None:
        return run_requests.show_run(context, run)
    return run_requests.show_team_run(context, run, team=caller.team)


def _get_run(context: ContextDep, caller: Reader, run: RunName) -> str:
    return run if caller.team is None else run_requests.show_team_run(context, run, team=caller.team).name


def check_own_service(context: ContextDep, caller: Reader, name: Name) -> str:
    if caller.team is not None:
        check_service_exists(name, [service for service in context.deployer.services() if caller.can_see(service.team)])
    return name


def _get_operation(context: ContextDep, caller: Reader, id: _IntentId) -> ActionRow:
    operation = get_operation(context, id)
    if not caller.can_see(operation.intent.team):
        raise make_operation_not_found(id)
    return operation


def _get_agent(context: ContextDep, caller: Reader, app: Name, agent: Name) -> AgentRow:
    return get_agent(context, caller, app, agent)


def get_agent(context: ServerContext, caller: TokenHolder, app: str, agent: str) -> AgentRow:
    with context.store.read() as connection:
        visible = [row for row in agent_store.list_all(connection) if caller.can_see(row.team)]
    match = next((row for row in visible if (row.app, row.name) == (app, agent)), None)
    if match is None:
        names = [f"{row.app}/{row.name}" for row in visible]
        raise NotFoundError(f"There is no agent {app}/{agent}.{did_you_mean(f'{app}/{agent}', names)}")
    return match


async def get_engine(request: Request) -> ArbiterEngine:
    engine: ArbiterEngine = request.app.state.engine
    return engine


EngineDep = Annotated[ArbiterEngine, Depends(get_engine)]


def get_intent(engine: EngineDep, caller: Reader, id: _IntentId) -> ActionRow:
    """Return an action's row; NotFoundError: there is none, or it is another team's."""
    row = engine.intents.get(id)
    if not caller.can_see(row.intent.team):
        raise intent_store.make_not_found(id)
    return row


OwnRun = Annotated[str, Depends(_get_run)]
OwnService = Annotated[str, Depends(check_own_service)]
OwnOperation = Annotated[ActionRow, Depends(_get_operation)]
OwnAgent = Annotated[AgentRow, Depends(_get_agent)]
OwnIntent = Annotated[ActionRow, Depends(get_intent)]
