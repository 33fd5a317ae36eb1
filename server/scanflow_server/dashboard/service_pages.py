"""The pages of services: the list, one service, its instances' logs, and a form that asks it for a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from scanflow.agent.agent_records import Action
from scanflow.app.application_files import load_document
from scanflow.app.quantities import format_cores, format_count, round_memory
from scanflow.backends.canary_analysis import RevisionStats, analyse, subtract_stats
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_drawing import draw_service, list_placed_instances
from scanflow.backends.service_records import CanaryPolicy, InstanceRecord, ServiceRecord, compute_quantile
from scanflow.drawing.line_chart import EventLine
from scanflow.errors import ScanflowError
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.sysfs import read_topology
from scanflow.placement.topology_drawing import PlacedProcess, draw_topology
from scanflow.reports.service_load import draw_service_load
from scanflow.reports.service_periods import TYPES, list_unready_periods
from scanflow_server import service_predictions
from scanflow_server.bodies import Operation
from scanflow_server.dashboard.overview_page import build_action_table, list_actions, list_services
from scanflow_server.dashboard.page import Page, PageAction, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link, Moment, StateCell
from scanflow_server.dashboard.page_html import render
from scanflow_server.progress_events import get_operation, make_operation_view
from scanflow_server.routes import service_routes
from scanflow_server.scope import check_own_service
from scanflow_server.service_history import read_stats
from scanflow_server.store import application_store, event_store

_LOG_BYTES: Final = 64 * 1024
_MAX_CHANGES: Final = 20
_MAX_EVENTS: Final = 100
_AFFINITIES: Final = ("any", "cpu", "cpumem", "cpumempin")
SIZE: Final = ("instances", "cores", "affinity")


def load_services(request: PageRequest) -> PageView:
    columns = ("state", "service", "application", "ready", "models", "requests/s", "p95", "error")
    rows = list(map(_build_row, list_services(request)))
    table = CellTable(columns, rows, "No service yet.", "scanflow deploy app.py:WORKFLOW")
    return PageView(title="Services", command="scanflow services", values={"table": table})


def _build_row(record: ServiceRecord) -> list[Cell]:
    rates = [revision.rps for revision in record.revisions if not revision.shadow and revision.rps is not None]
    p95 = [revision.p95_s for revision in record.revisions if not revision.shadow and revision.p95_s is not None]
    return [
        StateCell(record.state),
        Link(record.name, _locate(record.name)),
        Link(record.app, f"/applications/{quote(record.app, safe='')}"),
        f"{record.ready} of {record.shape.instances}",
        ", ".join(list_model_names(record)),
        f"{sum(rates):.1f}" if rates else None,
        format_latency(max(p95, default=None)),
        record.error,
    ]


def _locate(name: str, below: str = "") -> str:
    return f"/services/{quote(name, safe='')}{below}"


def list_model_names(record: ServiceRecord) -> list[str]:
    """Return the versions that a service serves: ``cnn/3``."""
    uris = (uri for revision in record.revisions for uri in revision.models.values())
    return list(dict.fromkeys(uri.removeprefix("models:/") for uri in uris))


def format_latency(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def load_service(request: PageRequest) -> PageView:
    record = get_service(request)
    actions = list_actions(request, target=f"service/{record.name}", team=record.team, limit=_MAX_CHANGES)
    canary = next((revision for revision in record.revisions if revision.role != "current"), None)
    return PageView(
        title=f"Service {record.name}",
        command=f"scanflow services {record.name}",
        values={
            "service": record,
            "address": _locate(record.name),
            "shape": _format_shape(record),
            "canary": canary,
            "verdict": None if canary is None else _judge(request, record, canary.id, actions),
            "operation": _find_operation(request, actions),
            "graph": _plan_graph_drawing(request, record),
            "machine": _plan_machine_drawing(request, record),
            "load": _plan_load_drawing(request, record, actions),
            "revisions": _build_revision_table(record),
            "instances": _build_instance_table(record),
            "changes": build_action_table(actions),
            "affinities": _AFFINITIES,
        },
    )


def get_service(request: PageRequest) -> ServiceRecord:
    """Return the service of a page's address; NotFoundError: there is none, or it is another team's."""
    name = check_own_service(request.context, request.caller, request.parameters["name"])
    return service_routes.service(request.context, request.caller, name)


def _format_shape(record: ServiceRecord) -> str:
    shape = record.shape
    cores = "" if shape.cores is None else f" × {format_cores(shape.cores)}"
    ready = f"{record.ready} of {format_count(shape.instances, 'instance')} ready"
    return f"{ready}{cores}, affinity {shape.affinity}"


def _judge(request: PageRequest, record: ServiceRecord, canary: str, actions: Sequence[Action]) -> str | None:
    """Return what the canary's policy says by now; None: it has none, or when it began is not known."""
    arguments = next((action.intent.arguments for action in actions if action.intent.arguments.get("model")), {})
    beginning = request.context.service_history.find_beginning(record)
    if not arguments.get("policy") or beginning is None or record.current is None:
        return None
    policy, (began, before) = CanaryPolicy.model_validate(arguments["policy"]), beginning
    stats = {
        revision.id: subtract_stats(before.get(revision.id, RevisionStats()), read_stats(revision))
        for revision in record.revisions
    }
    if policy.metric == "mean" and stats[canary].requests >= policy.after_requests:
        return "It is judged by the mean latency, by its supervisor."
    verdict = analyse(policy, current=stats[record.current.id], canary=stats[canary], elapsed_s=request.now - began)
    return f"{verdict.decision}: {verdict.reason}"


def _plan_load_drawing(
    request: PageRequest, record: ServiceRecord, actions: Sequence[Action]
) -> Callable[[float], Markup] | None:
    """Return what draws the service's load, for a width; None: there are not two samples yet."""
    samples = request.context.service_history.list_samples(record)
    marks = [
        EventLine(action.began, action.intent.primitive, "soft", address=f"/actions/{quote(action.id, safe='')}")
        for action in actions
        if action.began is not None
    ]
    with request.context.store.read() as connection:
        about = {"app": record.app, "team": record.team}
        events = event_store.list_newest(connection, type=TYPES, limit=_MAX_EVENTS, **about)
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
    return lambda width: draw_topology(read_topology(), processes, width=width)


def _find_operation(request: PageRequest, actions: Sequence[Action]) -> Operation | None:
    """Return the change in progress, or the last one if it failed."""
    begun = [action for action in actions if action.intent.source == "person" or action.began is not None]
    newest = next((action for action in begun if action.state in {"pending", "running"}), next(iter(begun), None))
    if newest is None or newest.state not in {"pending", "running", "failed", "lost"}:
        return None
    return make_operation_view(request.context, get_operation(request.context, newest.id))


def _build_revision_table(record: ServiceRecord) -> CellTable:
    rows: list[list[Cell]] = []
    for revision in record.revisions:
        stats = read_stats(revision)
        uri = next(iter(revision.models.values()), "").removeprefix("models:/")
        model = ", ".join(dict.fromkeys(uri.removeprefix("models:/") for uri in revision.models.values()))
        rows.append(
            [
                revision.role,
                Link(model, f"/models/{quote(uri.partition('/')[0], safe='')}") if model else revision.id,
                "copies" if revision.shadow else f"{revision.weight:.0%}",
                revision.rps,
                f"{revision.requests:,}",
                f"{revision.errors / revision.requests:.2%}" if revision.requests else None,
                format_latency(revision.p50_s),
                format_latency(revision.p95_s),
                format_latency(compute_quantile(stats.buckets, 0.99)),
            ]
        )
    columns = ("role", "version", "share", "requests/s", "requests", "errors", "p50", "p95", "p99 in all")
    return CellTable(columns, rows, "Nothing is served yet.")


def _build_instance_table(record: ServiceRecord) -> CellTable:
    rows = [_build_instance_row(record, instance) for instance in record.instances]
    columns = ("state", "instance", "where", "threads", "memory", "busy", "in flight", "restarts", "since", "error")
    return CellTable(columns, rows, "No instance runs.", f"scanflow scale {record.name} 1")


def _build_instance_row(record: ServiceRecord, instance: InstanceRecord) -> list[Cell]:
    cpus = f"CPUs {format_cpus(instance.cpus)}" if instance.cpus else None
    return [
        StateCell(instance.state),
        Link(instance.instance, _locate(record.name, f"/logs?instance={quote(instance.instance, safe='')}")),
        ", ".join(filter(None, [instance.place, cpus])) or "any CPU",
        instance.threads,
        None if instance.rss_bytes is None else round_memory(instance.rss_bytes >> 20 << 20),
        None if instance.cpu_share is None else f"{instance.cpu_share:.0%}",
        instance.in_flight,
        instance.restarts or None,
        Moment(instance.began),
        instance.error,
    ]


def load_logs(request: PageRequest) -> PageView:
    record, instance = get_service(request), request.query.get("instance") or None
    parts = service_routes.read_log_tails(request.context, record, instance, _LOG_BYTES)
    names = [each.instance for each in record.instances]
    return PageView(
        title=f"Logs of {record.name}",
        command=f"scanflow logs {record.name}" + (f" --instance {instance}" if instance else ""),
        values={
            "address": _locate(record.name),
            "service": record,
            "logs": [(part.source, part.data.decode("utf-8", "replace")) for part in parts if part.data],
            "choices": [
                Link(name, _locate(record.name, f"/logs?instance={quote(name, safe='')}"))
                for name in (*names, "supervisor")
            ],
        },
    )


def load_try(request: PageRequest) -> PageView:
    record = get_service(request)
    request.caller.check("change", record.team)
    with service_predictions.connect(request.context, record) as client:
        inputs = service_predictions.load_inputs(client, record)
    return PageView(
        title=f"Try {record.name}",
        command=f"scanflow predict {record.name} --data JSON",
        values={
            "address": _locate(record.name),
            "inputs": inputs,
            "has_fields": service_predictions.has_fields(inputs),
            "example": service_predictions.write_example(inputs),
        },
    )


def predict(request: PageRequest, form: Mapping[str, str]) -> Markup:
    """Ask a service for a prediction, as its callers do; whoever may change it may send it a request."""
    record = get_service(request)
    request.caller.check("change", record.team)
    try:
        with service_predictions.connect(request.context, record, form.get("token")) as client:
            inputs = service_predictions.load_inputs(client, record)
            text = form.get("rows", "").strip()
            parse = service_predictions.parse_rows(inputs, text) if text else None
            tensors = service_predictions.parse_fields(inputs, form) if parse is None else parse
            answer, problem = service_predictions.predict(client, record.name, tensors), ""
    except ScanflowError as error:
        answer, problem = "", str(error)
    return render("service_prediction", answer=answer, problem=problem)


def resize(request: PageRequest, form: Mapping[str, str]) -> str:
    shape = get_service(request).shape
    before = {name: "" if getattr(shape, name) is None else f"{getattr(shape, name):g}" for name in SIZE[:2]}
    before["affinity"] = shape.affinity
    return _change(request, {name: form[name] for name in SIZE if form.get(name, "").strip() not in {"", before[name]}})


def split_traffic(request: PageRequest, form: Mapping[str, str]) -> str:
    change: dict[str, Any] = {"model": form.get("model", "").strip() or None, "shadow": form.get("shadow") == "on"}
    share = form.get("share", "").strip().removesuffix("%").strip()
    change["weight"] = float(share) / 100 if share.replace(".", "", 1).isdecimal() else share or 0.0
    if form.get("metric"):
        names = ("metric", "ratio", "after_requests")
        change["policy"] = {name: form[name] for name in names if form.get(name)}
    return _change(request, change)


def promote(request: PageRequest, _form: Mapping[str, str]) -> str:
    return _change(request, {"promote": True})


def roll_back(request: PageRequest, _form: Mapping[str, str]) -> str:
    return _change(request, {"rollback": True})


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


PAGES: Final = (
    Page(path="/services", template="services", section="/services", load=load_services),
    Page(path="/services/{name}", template="service", section="/services", load=load_service),
    Page(path="/services/{name}/logs", template="service_logs", section="/services", load=load_logs),
    Page(path="/services/{name}/try", template="service_try", section="/services", load=load_try),
)
ACTIONS: Final = (
    PageAction(path="/services/{name}/predict", perform=predict),
    PageAction(path="/services/{name}/resize", perform=resize),
    PageAction(path="/services/{name}/traffic", perform=split_traffic),
    PageAction(path="/services/{name}/promote", perform=promote),
    PageAction(path="/services/{name}/rollback", perform=roll_back),
    PageAction(path="/services/{name}/delete", perform=delete),
)
