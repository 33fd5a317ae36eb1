"""What is there for a caller: of things that routes address, those of other teams are not, and are not told of.

One dependency for each part of a path that names something. Who sees all teams' things gets on with what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi import Path as InPath

from scanflow.app.application import Application
from scanflow.deployer.embedded import DEFAULT
from scanflow.errors import ForbiddenError, NotFoundError, did_you_mean
from scanflow_server import requests
from scanflow_server.access import TokenHolder
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.auth import Reader
from scanflow_server.bodies import Name, RunName, read_application
from scanflow_server.commands import check_there
from scanflow_server.context import Given, ServerContext
from scanflow_server.progress_events import get_operation, unknown_operation
from scanflow_server.store import agents, intents
from scanflow_server.store.agents import AgentRow
from scanflow_server.store.intents import ActionRow
from scanflow_server.store.operations import OperationRow

_NOBODYS = "-"
"""A team that no application can have."""


def team_for(caller: TokenHolder, team: str | None) -> str | None:
    """Return by which team a list is filtered that is asked for ``team``'s (None: all): of other teams nothing is."""
    if caller.team is None:
        return team
    return caller.team if team in {None, "", caller.team} else _NOBODYS


def read_own_application(
    context: ServerContext, caller: TokenHolder, document: Mapping[str, Any], source: str | None = None
) -> Application:
    """Return the application that was sent, its folder absolute.

    Raises:
        ForbiddenError: it says another team than the caller's, or names files that are the server's.
    """
    app = read_application(document, source)
    caller.check("change", app.team)
    if caller.team is not None and context.settings.library.backend not in {None, DEFAULT}:
        for path in (app.app_dir, source):
            _check_file(context, path)
    return app


def _check_file(context: ServerContext, path: str | Path | None) -> None:
    """Refuse what the server would read and hand to pods of a team that cannot read it themselves."""
    if path is None:
        return
    settings, real = context.settings, Path(path).resolve()
    if any(real.is_relative_to(Path(one).resolve()) for one in settings.team_folders.split(":") if one):
        return
    if real.is_relative_to(settings.home.resolve()) or real.exists():
        raise ForbiddenError(
            f"{str(path)!r} is a place of the server's machine, whose files a team's token does not get at. Build an "
            "image that has the application's files: scanflow build --push. Or have whoever runs the server name a "
            "folder for them: SCANFLOW_TEAM_FOLDERS"
        )


def _run(context: Given, caller: Reader, run: RunName) -> str:
    return run if caller.team is None else requests.show_run_of(context, run, team=caller.team).name


def _service(context: Given, caller: Reader, name: Name) -> str:
    if caller.team is not None:
        check_there(name, [one for one in context.deployer.services() if caller.sees(one.team)])
    return name


def _operation(
    context: Given, caller: Reader, id: Annotated[str, InPath(pattern=r"^[a-z]+-[0-9a-f]{12}$")]
) -> OperationRow:
    one = get_operation(context, id)
    if not caller.sees(one.team):
        raise unknown_operation(id)
    return one


def _agent(context: Given, caller: Reader, app: Name, agent: Name) -> AgentRow:
    return find_agent(context, caller, app, agent)


def find_agent(context: ServerContext, caller: TokenHolder, app: str, agent: str) -> AgentRow:
    with context.store.read() as connection:
        known = [one for one in agents.list_all(connection) if caller.sees(one.team)]
    found = next((one for one in known if (one.app, one.name) == (app, agent)), None)
    if found is None:
        names = [f"{one.app}/{one.name}" for one in known]
        raise NotFoundError(f"There is no agent {app}/{agent}.{did_you_mean(f'{app}/{agent}', names)}")
    return found


async def engine_of(request: Request) -> ArbiterEngine:
    engine: ArbiterEngine = request.app.state.engine
    return engine


WithEngine = Annotated[ArbiterEngine, Depends(engine_of)]


def _intent(
    engine: WithEngine, caller: Reader, id: Annotated[str, InPath(min_length=1, max_length=128, pattern=r"^[!-.0-~]+$")]
) -> ActionRow:
    found = engine.intents.get(id)
    if not caller.sees(found.intent.team):
        raise intents.make_not_found(id)
    return found


OwnRun = Annotated[str, Depends(_run)]
OwnService = Annotated[str, Depends(_service)]
OwnOperation = Annotated[OperationRow, Depends(_operation)]
OwnAgent = Annotated[AgentRow, Depends(_agent)]
OwnIntent = Annotated[ActionRow, Depends(_intent)]
OWN = (_run, _service, _operation, _agent, _intent)
"""What finds the things that paths name."""
