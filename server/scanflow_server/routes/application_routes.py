"""Routes of applications."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scanflow.app.plain_secrets import check_no_plain_secrets
from scanflow.errors import NotFoundError
from scanflow.names import format_environment_name
from scanflow.text.masking import Masker
from scanflow_server.api_route import DEFINITION, ApiRoute
from scanflow_server.auth import Editor, Reader
from scanflow_server.bodies import AppBody, ApplicationView, Name, check_name
from scanflow_server.request_problems import LABEL, PROBLEMS
from scanflow_server.scope import read_own_application, restrict_team
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.store import application_store
from scanflow_server.store.application_store import ApplicationRow
from scanflow_server.token_roles import TokenHolder

router = APIRouter(prefix="/applications", tags=["applications"], responses=PROBLEMS, route_class=ApiRoute)

Team = Annotated[str | None, Query(pattern=LABEL, max_length=63)]


@router.get("")
def applications(context: ContextDep, caller: Reader) -> list[ApplicationView]:
    """List all stored applications, sorted by name."""
    with context.store.read() as connection:
        return [_make_view(row) for row in application_store.list_all(connection, team=caller.team)]


@router.get("/{app}")
def application(context: ContextDep, caller: Reader, app: Name, team: Team = None) -> ApplicationView:
    """Show an application, with its secrets masked; if several teams have one of that name, the newest."""
    return _make_view(get_own_row(context, caller, app, team))


def get_own_row(context: ServerContext, caller: TokenHolder, app: str, team: str | None) -> ApplicationRow:
    """Return an application with its secrets; NotFoundError: there is none, or it is another team's."""
    with context.store.read() as connection:
        row = application_store.find(connection, app, restrict_team(caller, team))
    if row is None:
        raise NotFoundError(
            f"There is no application {app!r}. The server stores one with its first run, deployment or agent."
        )
    return row


@router.put("/{app}", dependencies=[DEFINITION])
def put(context: ContextDep, caller: Editor, app: Name, body: AppBody) -> ApplicationView:
    """Store an application. What is running does not change."""
    parsed = read_own_application(context, caller, body.application, body.source)
    check_name(app, parsed)
    check_no_plain_secrets(parsed)
    with context.store.write() as connection:
        return _make_view(application_store.keep(connection, parsed, body.source, at=context.clock()))


def _make_view(row: ApplicationRow) -> ApplicationView:
    same = row.model_dump(include={"name", "team", "source", "revision", "updated"})
    environment, shown = format_environment_name(row.name, row.team), Masker(row.document).mask(row.document)
    return ApplicationView(environment=environment, application=shown, **same)
