"""The pages of applications: the list, and one application with its graph, its environment and its last runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from scanflow.app.application import Application
from scanflow.app.application_files import load_document
from scanflow.app.quantities import format_count
from scanflow.backends.run_records import RunRecord
from scanflow.deployer import RunRequest
from scanflow.deployer.embedded import DEFAULT
from scanflow.errors import NotFoundError
from scanflow.text.masking import mask_place
from scanflow_server import run_requests
from scanflow_server.bodies import ApplicationView
from scanflow_server.dashboard.overview_page import list_agents, list_services, matches
from scanflow_server.dashboard.page import Page, PageAction, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link, Moment, StateCell
from scanflow_server.dashboard.run_pages import parse_parameter_lines
from scanflow_server.routes import application_routes
from scanflow_server.scope import restrict_team
from scanflow_server.store import application_store
from scanflow_server.store.application_store import ApplicationRow


def load_applications(request: PageRequest) -> PageView:
    views = application_routes.applications(request.context, request.caller)
    rows: list[list[Cell]] = [
        [
            Link(view.name, build_application_address(view.name, view.team)),
            view.team,
            format_count(len(view.application.get("workflows", ())), "workflow"),
            format_count(len(view.application.get("agents", ())), "agent"),
            Moment(view.updated),
        ]
        for view in views
    ]
    columns = ("application", "team", "workflows", "agents", "stored")
    table = CellTable(columns, rows, "No application yet.", "scanflow run")
    return PageView(title="Applications", command="scanflow status", values={"table": table})


def build_application_address(app: str, team: str) -> str:
    return f"/applications/{quote(app, safe='')}?team={quote(team, safe='')}"


def load_application(request: PageRequest) -> PageView:
    view = _get_view(request)
    app = load_document(view.application)
    services = [service for service in list_services(request) if matches(service, app.name, app.team)]
    agents = [agent for agent in list_agents(request) if matches(agent, app.name, app.team)]
    return PageView(
        title=app.name,
        command=f"scanflow status --app {app.name}",
        values={
            "app": app,
            "view": view,
            "environment": _build_environment_table(request, app),
            "workflows": _build_workflow_table(request, app),
            "batches": [workflow.name for workflow in app.workflows if workflow.type != "online"],
            "services": CellTable(
                ("state", "service", "instances"),
                [
                    [StateCell(service.state), Link(service.name, f"/services/{service.name}"), len(service.instances)]
                    for service in services
                ],
                "No service of it is deployed.",
                "scanflow deploy",
            ),
            "agents": CellTable(
                ("state", "agent", "error"),
                [
                    [StateCell(agent.state), Link(agent.name, f"/agents/{agent.app}/{agent.name}"), agent.error]
                    for agent in agents
                ],
                "No agent of it runs.",
                "scanflow agents --start",
            ),
        },
    )


def _get_view(request: PageRequest) -> ApplicationView:
    app, team = request.parameters["app"], request.query.get("team") or None
    return application_routes.application(request.context, request.caller, app, team)


def _build_environment_table(request: PageRequest, app: Application) -> CellTable:
    library = request.context.settings.library
    backend = library.backend or app.backend or DEFAULT
    folder = request.context.settings.home / "environments" / app.environment
    tracker = app.tracker.uri if app.tracker is not None and app.tracker.uri else library.tracker_uri
    rows = [
        ("backend", backend),
        ("folder", str(folder)) if backend == DEFAULT else ("namespace", app.environment),
        ("tracker", mask_place(str(tracker)) if tracker else "the home's own"),
    ]
    return CellTable(("environment", ""), rows)


def _build_workflow_table(request: PageRequest, app: Application) -> CellTable:
    rows: list[list[Cell]] = []
    for workflow in app.workflows:
        run = None if workflow.type == "online" else _find_last_run(request, app, workflow.name)
        rows.append(
            [
                workflow.name,
                workflow.type,
                format_count(len(workflow.nodes), "node"),
                *([None, None, None] if run is None else _build_last_run(run)),
            ]
        )
    return CellTable(("workflow", "type", "nodes", "last run", "state", "started"), rows, "It has no workflow.")


def _find_last_run(request: PageRequest, app: Application, workflow: str) -> RunRecord | None:
    about: Any = {"app": app.name, "team": app.team, "workflow": workflow}
    return next(iter(run_requests.list_runs(request.context, limit=1, **about)), None)


def _build_last_run(run: RunRecord) -> list[Cell]:
    return [Link(run.name, f"/runs/{run.name}"), StateCell(run.state), Moment(run.created)]


def run_workflow(request: PageRequest, form: Mapping[str, str]) -> str:
    """Run a workflow of the stored application, with parameters as a command line has them."""
    row = _get_row(request, form.get("team") or None)
    request.caller.check("change", row.team)
    app, name = load_document(row.document), form.get("workflow", "")
    parameters = app.workflow(name).parse_parameters(parse_parameter_lines(form.get("parameters", "")))
    source = None if row.source is None else Path(row.source)
    wanted = RunRequest(app, name, parameters=parameters, source=source)
    return f"/runs/{run_requests.request_run(request.context, wanted, by=request.caller.name, own=True).name}"


def _get_row(request: PageRequest, team: str | None) -> ApplicationRow:
    """Return a stored application with its secrets, for the server's own use."""
    app = request.parameters["app"]
    with request.context.store.read() as connection:
        row = application_store.find(connection, app, restrict_team(request.caller, team))
    if row is None:
        raise NotFoundError(f"There is no application {app!r}.")
    return row


PAGES: Final = (
    Page(path="/applications", template="applications", section="/applications", load=load_applications),
    Page(path="/applications/{app}", template="application", section="/applications", load=load_application),
)
ACTIONS: Final = (PageAction(path="/applications/{app}/run", perform=run_workflow),)
