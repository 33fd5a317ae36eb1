"""Applications as they are kept."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scanflow.errors import NotFoundError
from scanflow.names import environment_name
from scanflow_server import requests
from scanflow_server.auth import Editor, Reader
from scanflow_server.bodies import AppBody, ApplicationView, Name, check_name
from scanflow_server.context import Given
from scanflow_server.problems import PROBLEMS
from scanflow_server.scope import read_own_application, team_for
from scanflow_server.store import applications as application_store
from scanflow_server.store.applications import ApplicationRow

router = APIRouter(prefix="/applications", tags=["applications"], responses=PROBLEMS)

Team = Annotated[str | None, Query(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


@router.get("")
def applications(context: Given, caller: Reader) -> list[ApplicationView]:
    """List the applications that were ever sent, by name."""
    with context.store.read() as connection:
        return [_view(one) for one in application_store.list_all(connection, team=caller.team)]


@router.get("/{app}")
def application(context: Given, caller: Reader, app: Name, team: Team = None) -> ApplicationView:
    """Show one; where several teams have one of that name, the newest."""
    with context.store.read() as connection:
        found = application_store.get(connection, app, team_for(caller, team))
    if found is None:
        raise NotFoundError(f"There is no application {app!r}. It is kept from its first run, deployment or agent on.")
    return _view(found)


@router.put("/{app}")
def put(context: Given, caller: Editor, app: Name, body: AppBody) -> ApplicationView:
    """Keep an application as it is now. What is running stays as it is."""
    made = read_own_application(context, caller, body.application, body.source)
    check_name(app, made)
    with context.store.write() as connection:
        return _view(requests.keep_application(connection, made, body.source, at=context.clock()))


def _view(one: ApplicationRow) -> ApplicationView:
    same = one.model_dump(include={"name", "team", "source", "revision", "updated"})
    return ApplicationView(environment=environment_name(one.name, one.team), application=one.document, **same)
