"""The pages of applications: the list, and one application with its graph, its environment and its last runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from scanflow.agent.agent_records import AgentView
from scanflow.app.application import Application
from scanflow.app.application_drawing import Part, PartLink, draw_application
from scanflow.app.application_files import load_document
from scanflow.app.quantities import format_count
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import RunRequest
from scanflow.deployer.embedded import DEFAULT
from scanflow.drawing.graph_boxes import NodeKind
from scanflow.reports.loop_events import TYPES
from scanflow.text.masking import mask_place
from scanflow_server import run_requests
from scanflow_server.bodies import ApplicationView
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.dashboard.overview_page import list_agents, list_events, list_services
from scanflow_server.dashboard.page_cells import FIRST_RUN, Cell, CellRow, CellTable, LinkCell, Moment, StateCell
from scanflow_server.dashboard.run_pages import read_texts
from scanflow_server.dashboard.subject_links import build_agent_address
from scanflow_server.known_applications import load_definition
from scanflow_server.routes import application_routes
from scanflow_server.store import agent_store

_CHANGED: Final[Mapping[str, NodeKind]] = {"workflow": "workflow", "service": "service"}
"""What strategies may change of what is drawn, by the kind of a target."""


def load_applications(request: PageRequest) -> PageView:
    views = application_routes.applications(request.context, request.caller)
    table = CellTable.make(map(_build_row, views), "No application yet.", FIRST_RUN)
    return PageView.make("Applications", "scanflow status", table=table)


def _build_row(view: ApplicationView) -> CellRow:
    address = f"/applications/{quote(view.name, safe='')}?team={quote(view.team, safe='')}"
    return {
        "application": LinkCell(view.name, address),
        "team": view.team,
        "workflows": ", ".join(str(workflow["name"]) for workflow in view.application.get("workflows", ())),
        "agents": ", ".join(str(agent["name"]) for agent in view.application.get("agents", ())),
        "stored": Moment(view.updated),
    }


def load_application(request: PageRequest) -> PageView:
    team = request.query.get("team") or None
    app, view = load_definition(request.context, request.caller, request.parameters["app"], team)
    agents = list_agents(request, app=app.name, team=app.team)
    deployed: dict[Part, AgentView | ServiceRecord] = {
        **{Part("service", record.name): record for record in list_services(request, app=app.name, team=app.team)},
        **{Part("agent", agent.name): agent for agent in agents},
    }
    states = {part: str(own.state) for part, own in deployed.items()}
    links = [link for agent in agents for link in _list_requests(request, agent)]
    rows: list[list[Cell]] = []
    addresses = {Part("agent", agent.name): build_agent_address(app.name, agent.name) for agent in app.agents}
    for workflow in app.workflows:
        part = Part("service" if workflow.type == "online" else "workflow", workflow.name)
        row, address = _build_workflow_row(request, app, workflow)
        addresses[part] = f"/services/{workflow.name}" if part.kind == "service" else address
        if isinstance(row[-2], StateCell):
            states[part] = row[-2].state
        rows.append(row)
    return PageView.make(
        app.name,
        "scanflow status",
        app=app,
        has_report=bool(list_events(request, type=TYPES, app=app.name, limit=1)),  # as /reports has it
        view=view,
        graph=lambda width: draw_application(app, states=states, addresses=addresses, links=links, width=width),
        workflows=CellTable(("workflow", "type", "size", "last run", "state", "started"), rows, "No workflow."),
        batches=[workflow.name for workflow in app.workflows if view is not None and workflow.type != "online"],
        parts=CellTable.make(
            [_build_part_row(part.name, addresses.get(part, "/"), own) for part, own in deployed.items()],
            "No service of it is deployed, and no agent runs.",
            "scanflow deploy" if any(workflow.type == "online" for workflow in app.workflows) else "",
        ),
        environment=_build_environment_table(request, app),
    )


def _list_requests(request: PageRequest, agent: AgentView) -> Iterator[PartLink]:
    """Yield what the strategies of an agent may change, as it has reported them."""
    with request.context.store.read() as connection:
        limits = agent_store.list_limits(connection, agent.app, agent.name)
    for strategy in limits:
        for call in strategy.calls:
            kind, _, name = call.target.partition("/")
            tooltip = f"the strategy {strategy.name} of {agent.name} may {call.primitive}"
            if kind in _CHANGED:
                yield PartLink(Part("agent", agent.name), Part(_CHANGED[kind], name), tooltip=tooltip)


def _build_workflow_row(request: PageRequest, app: Application, workflow: Workflow) -> tuple[list[Cell], str]:
    """Return a row with the last run of a workflow, and the address of that run; of all its runs, if there is none."""
    about: Any = {"app": app.name, "team": app.team, "workflow": workflow.name}
    runs = [] if workflow.type == "online" else run_requests.list_runs(request.context, limit=1, **about)
    row: list[Cell] = [workflow.name, workflow.type, format_count(len(workflow.nodes), "node")]
    if not runs:
        return [*row, None, None, None], f"/runs?app={app.name}&workflow={quote(workflow.name)}"
    address = f"/runs/{runs[0].name}"
    return [*row, LinkCell(runs[0].name, address), StateCell(runs[0].state), Moment(runs[0].created)], address


def _build_part_row(name: str, address: str, own: AgentView | ServiceRecord) -> CellRow:
    return {"state": StateCell(own.state), "service or agent": LinkCell(name, address), "error": own.error}


def _build_environment_table(request: PageRequest, app: Application) -> CellTable:
    settings, library = request.context.settings, request.context.settings.library
    backend = library.backend or app.backend or DEFAULT
    tracker = app.tracker.uri if app.tracker is not None and app.tracker.uri else library.tracker_uri
    place = str(settings.home / "environments" / app.environment) if backend == DEFAULT else app.environment
    rows = [
        ("backend", backend),
        ("folder" if backend == DEFAULT else "namespace", place),
        ("tracker", mask_place(str(tracker)) if tracker else "the home's own"),
    ]
    return CellTable(("what", "which"), rows)


def run_workflow(request: PageRequest, form: Mapping[str, str]) -> str:
    """Run a workflow of the stored application, with parameters as a command line has them."""
    app, team = request.parameters["app"], form.get("team") or None
    row = application_routes.get_own_row(request.context, request.caller, app, team)
    source = None if row.source is None else Path(row.source)
    wanted = RunRequest(load_document(row.document), form.get("workflow", ""), texts=read_texts(form), source=source)
    run = run_requests.request_run(request.context, wanted, by=request.caller.name, own=True)
    return f"/runs/{run.name}"


SERVED: Final = (
    DashboardPage(path="/applications", template="applications", load=load_applications),
    DashboardPage(path="/applications/{app}", template="application", load=load_application),
    PageAction(path="/applications/{app}/run", perform=run_workflow),
)
