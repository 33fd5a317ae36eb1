"""The definitions of applications as a caller may see them: with their secrets masked."""

from __future__ import annotations

from scanflow.app.application import Application
from scanflow.app.application_files import dump_document, load_document
from scanflow.errors import NotFoundError
from scanflow.text.masking import Masker
from scanflow_server import run_requests
from scanflow_server.bodies import ApplicationView
from scanflow_server.routes import application_routes
from scanflow_server.scope import restrict_team
from scanflow_server.server_context import ServerContext
from scanflow_server.token_roles import TokenHolder


def load_definition(
    context: ServerContext, caller: TokenHolder, name: str, team: str | None
) -> tuple[Application, ApplicationView | None]:
    """Return an application as it is stored, or, of one that was run without the server, as its newest run has it;
    NotFoundError: there is neither."""
    try:
        view = application_routes.application(context, caller, name, team)
        return load_document(view.application), view
    except NotFoundError:
        own = restrict_team(caller, team)
        if not (runs := run_requests.list_runs(context, limit=1, app=name, team=own)):
            raise
    document = dump_document(context.deployer.batch.definition(runs[0].name).app)
    return load_document(Masker(document).mask(document)), None
