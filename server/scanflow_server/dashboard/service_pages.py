"""The pages of services: the list, one service, its instances' logs, and a form that asks it for a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from scanflow.agent.agent_records import Action, Event
from scanflow.app.application_files import load_document
from scanflow.backends.service_change import ServiceChange, Sizing
from scanflow.backends.service_drawing import draw_service, list_placed_instances
from scanflow.backends.service_metrics import WINDOW_S
from scanflow.backends.service_records import CanaryPolicy, ServiceRecord
from scanflow.drawing.line_chart import EventLine
from scanflow.errors import ScanflowError
from scanflow.placement.sysfs import read_topology
from scanflow.placement.topology_drawing import PlacedProcess, draw_topology
from scanflow.reports.load_drawing import draw_service_load
from scanflow.reports.service_periods import RESTARTED, TYPES, list_unready_periods, mark_restart
from scanflow.text.printable import make_log_printable
from scanflow_server import service_predictions
from scanflow_server.bodies import Operation
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.dashboard.device_table import build_device_table
from scanflow_server.dashboard.overview_page import build_action_table, list_actions, list_events, list_services
from scanflow_server.dashboard.page_cells import CellRow, CellTable, LinkCell, StateCell, format_latency
from scanflow_server.dashboard.page_html import render
from scanflow_server.dashboard.subject_links import build_action_address, link_models
from scanflow_server.progress_events import get_operation, make_operation_view
from scanflow_server.routes import service_routes
from scanflow_server.scope import check_own_service
from scanflow_server.service_history import INTERVAL_S
from scanflow_server.store import application_store

_LOG_BYTES: Final = 64 * 1024
_MAX_CHANGES: Final = 20
_MAX_EVENTS: Final = 100
_AFFINITIES: Final = ("any", "cpu", "cpumem", "cpumempin")
_METRICS: Final = ("errors", "p95", "mean")
SIZE: Final = ("instances", "cores", "gpu", "affinity")


def load_services(request: PageRequest) -> PageView:
    rows = map(_build_row, list_services(request))
    table = CellTable.make(rows, "No service yet.", "scanflow demo --keep")
    return PageView.make("Services", "scanflow services", table=table, window=f"{WINDOW_S:.0f} s")


def _build_row(record: ServiceRecord) -> CellRow:
    rates = [revision.rps for revision in record.revisions if not revision.shadow and revision.rps is not None]
    p95 = [revision.p95_s for revision in record.revisions if not revision.shadow and revision.p95_s is not None]
    return {
        "state": StateCell(record.state),
        "service": LinkCell(record.name, _locate(record.name)),
        "application": LinkCell(record.app, f"/applications/{quote(record.app, safe='')}"),
        "ready": f"{record.ready} of {record.shape.instances}",
        "models": link_models(record),
        "requests/s": f"{sum(rates):.1f}" if rates else None,
        "p95": format_latency(max(p95, default=None)),
        "error": record.error,
    }


def _locate(name: str) -> str:
    return f"/services/{quote(name, safe='')}"


def load_service(request: PageRequest) -> PageView:
    record = get_service(request)
    subject, types = f"service/{record.name}", [*TYPES, RESTARTED]
    actions = list_actions(request, target=subject, team=record.team, limit=_MAX_CHANGES)
    events = list_events(request, type=types, subject=subject, app=record.app, team=record.team, limit=_MAX_EVENTS)
    canary = next((revision for revision in record.revisions if revision.role != "current"), None)
    policy = None if canary is None else record.policy
    return PageView.make(
        f"Service {record.name}",
        f"scanflow services {record.name}",
        service=record,
        address=_locate(record.name),
        canary=canary,
        policy=policy,
        metrics=_METRICS,
        verdict=None if policy is None else request.context.service_history.analyse_canary(record, policy, request.now),
        operation=_find_operation(request, actions),
        graph=_plan_graph_drawing(request, record),
        machine=_plan_machine_drawing(request, record),
        devices=build_device_table(request) if any(instance.devices for instance in record.instances) else None,
        load=_plan_load_drawing(request, record, actions, events),
        changes=build_action_table(actions, [event for event in events if event.type == RESTARTED][-_MAX_CHANGES:]),
        affinities=_AFFINITIES,
        window=f"{WINDOW_S:.0f} s",
        interval=f"{INTERVAL_S:.0f} s",
    )


def get_service(request: PageRequest) -> ServiceRecord:
    """Return the service of a page's address; NotFoundError: there is none, or it is another team's."""
    name = check_own_service(request.context, request.caller, request.parameters["name"])
    return service_routes.service(request.context, request.caller, name)


def _plan_load_drawing(
    request: PageRequest, record: ServiceRecord, actions: Sequence[Action], events: Sequence[Event]
) -> Callable[[float], Markup] | None:
    """Return what draws the service's load, for a width; None: there are not two samples yet."""
    samples = request.context.service_history.list_samples(record)
    marks = [
        EventLine(action.began, action.intent.primitive, "soft", address=build_action_address(action.id))
        for action in actions
        if action.began is not None
    ]
    marks += [mark_restart(event, f"/events/{event.id}") for event in events if event.type == RESTARTED]
    periods = list_unready_periods(events, record.name)
    if len(samples) < 2:
        return None
    return lambda width: draw_service_load(
        record.name, samples, record.scaling, marks, periods, width=width, zone=request.zone
    )


def _plan_graph_drawing(request: PageRequest, record: ServiceRecord) -> Callable[[float], Markup]:
    """Return what draws the service's graph; where its application changed since, its revisions alone."""
    with request.context.store.read() as connection:
        row = application_store.find(connection, record.app, record.team)
    workflow = None
    with suppress(ScanflowError):
        workflow = None if row is None else load_document(row.document).workflow(record.name)
    return lambda width: draw_service(record, workflow, width=width)


def _plan_machine_drawing(request: PageRequest, record: ServiceRecord) -> Callable[[float], Markup] | None:
    """Return what draws this machine and what services have of it; None: the instances are elsewhere."""
    if not any(instance.place is None for instance in record.instances):
        return None
    processes = [
        process if request.caller.can_see(other.team) else PlacedProcess("a service of another team", process.cpus)
        for other in request.context.deployer.services()
        for process in list_placed_instances([other], _locate(other.name))
    ]
    machine = read_topology()
    return lambda width: draw_topology(machine, processes, width=width)


def _find_operation(request: PageRequest, actions: Sequence[Action]) -> Operation | None:
    """Return the change in progress, or the last one if it failed."""
    begun = [action for action in actions if action.intent.source == "person" or action.began is not None]
    newest = next((action for action in begun if action.state in {"pending", "running"}), next(iter(begun), None))
    if newest is None or newest.state not in {"pending", "running", "failed", "lost"}:
        return None
    return make_operation_view(request.context, get_operation(request.context, newest.id))


def load_logs(request: PageRequest) -> PageView:
    record, instance = get_service(request), request.query.get("instance") or None
    parts = service_routes.read_log_tails(request.context, record, instance, _LOG_BYTES)
    logs = [(part.source, make_log_printable(part.data)) for part in parts if part.data]
    command = f"scanflow logs {record.name}" + (f" --instance {instance}" if instance else "")
    return PageView.make(f"Logs of {record.name}", command, address=_locate(record.name), service=record, logs=logs)


def load_try(request: PageRequest) -> PageView:
    record = get_service(request)
    request.caller.check("change", record.team)
    with service_predictions.connect(request.context, record) as client:
        inputs = service_predictions.load_inputs(client, record)
    return PageView.make(
        f"Try {record.name}",
        f"scanflow predict {record.name} --data JSON",
        address=_locate(record.name),
        inputs=inputs,
        has_fields=service_predictions.has_fields(inputs),
        example=service_predictions.write_example(inputs),
    )


def predict(request: PageRequest, form: Mapping[str, str]) -> Markup:
    """Ask a service for a prediction, as its callers do; whoever may change it may send it a request."""
    record = get_service(request)
    request.caller.check("change", record.team)
    try:
        with service_predictions.connect(request.context, record, form.get("token")) as client:
            answer, problem = service_predictions.answer_form(client, record, form), ""
    except ScanflowError as error:
        answer, problem = "", str(error)
    return render("service_prediction", answer=answer, problem=problem)


def resize(request: PageRequest, form: Mapping[str, str]) -> str:
    shape = get_service(request).shape
    filled: dict[str, Any] = {name: form[name] for name in SIZE if form.get(name, "").strip()}
    size = Sizing(**filled)
    differing = {name: getattr(size, name) for name in SIZE if getattr(size, name) not in {None, getattr(shape, name)}}
    return _change(request, differing)


def split_traffic(request: PageRequest, form: Mapping[str, str]) -> str:
    change: dict[str, Any] = {"model": form.get("model", "").strip() or None, "shadow": form.get("shadow") == "on"}
    share = form.get("share", "").strip().removesuffix("%").strip()
    change["weight"] = float(share) / 100 if share.replace(".", "", 1).isdecimal() else share or 0.0
    if form.get("metric"):
        change["policy"] = {name: form[name] for name in CanaryPolicy.model_fields if form.get(name)}
    return _change(request, change)


def _change(request: PageRequest, change: Mapping[str, Any]) -> str:
    record = get_service(request)
    request.caller.check("change", record.team)
    body = ServiceChange(**change)
    service_routes.change(request.context, request.engine, request.caller, record.name, body)
    return _locate(record.name)


def delete(request: PageRequest, _form: Mapping[str, str]) -> str:
    record = get_service(request)
    request.caller.check("change", record.team)
    service_routes.delete(request.context, request.engine, request.caller, record.name)
    return "/services"


SERVED: Final = (
    DashboardPage(path="/services", template="services", load=load_services),
    DashboardPage(path="/services/{name}", template="service", load=load_service),
    DashboardPage(path="/services/{name}/logs", template="service_logs", load=load_logs),
    DashboardPage(path="/services/{name}/try", template="service_try", load=load_try),
    PageAction(path="/services/{name}/predict", perform=predict),
    PageAction(path="/services/{name}/resize", perform=resize),
    PageAction(path="/services/{name}/traffic", perform=split_traffic),
    PageAction(path="/services/{name}/promote", perform=lambda request, _form: _change(request, {"promote": True})),
    PageAction(path="/services/{name}/rollback", perform=lambda request, _form: _change(request, {"rollback": True})),
    PageAction(path="/services/{name}/delete", perform=delete),
)
